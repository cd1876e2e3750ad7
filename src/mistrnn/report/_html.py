"""HTML pages from `template/`: everything a person wrote is escaped, and a missing value is an error."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

PARTS = Path(__file__).parent / "template"


def part(name: str) -> str:
    """Return a style sheet or a script of the template folder."""
    return (PARTS / name).read_text(encoding="utf-8")


def render(template: str, context: Mapping[str, Any]) -> bytes:
    """Return a page as the bytes of its file."""
    environment = Environment(
        loader=FileSystemLoader(PARTS), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    text = environment.get_template(template).render(context)
    # Names of files need not be text: bytes that cannot be decoded are written as numbers.
    return text.encode(errors="backslashreplace")
