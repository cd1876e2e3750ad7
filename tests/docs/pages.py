"""The pages of the documentation and their code blocks."""

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(
    str(path.relative_to(ROOT)) for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS.rglob("*.md"))
)
"""Paths relative to the repository."""


def page(name: str) -> str:
    """Return the text of a page."""
    return (ROOT / name).read_text(encoding="utf-8")


def blocks(name: str, language: str) -> list[str]:
    """Return the fenced code blocks of a page in one language; "" stands for blocks that name none."""
    found = re.findall(r"^( *)```(\w*)[^\n]*\n(.*?)^\1```$", page(name), flags=re.DOTALL | re.MULTILINE)
    return [re.sub(rf"^{indent}", "", text, flags=re.MULTILINE) for indent, words, text in found if words == language]


def names_after(name: str) -> dict[str, Any]:
    """Run the Python blocks of a page from top to bottom and return the names that they define."""
    names: dict[str, Any] = {"__name__": "page"}
    for number, block in enumerate(blocks(name, "python")):
        exec(compile(block, f"{name}, block {number}", "exec"), names)
    return names
