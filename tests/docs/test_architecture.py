"""docs/explanation/architecture.md names only files and objects that exist."""

import re
from functools import reduce
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "mistrnn"
PAGE = (ROOT / "docs" / "explanation" / "architecture.md").read_text(encoding="utf-8")
QUOTED = sorted(set(re.findall(r"`([^`\n]+)`", PAGE)))
PATHS = [text for text in QUOTED if re.fullmatch(r"[\w./-]*/[\w./-]*|[\w-]+\.toml", text)]
DOTTED = [text for text in QUOTED if re.fullmatch(r"\w+(\.\w+)+", text) and Path(text).suffix not in (".json", ".toml")]
DOTTED = [text for text in DOTTED if Path(text).suffix != ".safetensors"]
NATIVE = [text for text in QUOTED if "::" in text]


def found(name: str) -> object:
    """Return what a dotted name below `mistrnn` stands for."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        try:
            module = import_module(".".join(["mistrnn", *parts[:count]]))
        except ModuleNotFoundError:
            continue
        return reduce(getattr, parts[count:], module)
    raise AttributeError(name)


def test_page_names_files_and_objects() -> None:
    assert len(PATHS) > 30
    assert len(DOTTED) > 30
    assert NATIVE


@pytest.mark.parametrize("path", PATHS)
def test_path_on_the_page_exists(path: str) -> None:
    assert (PACKAGE / path).exists() or (ROOT / path).exists()


@pytest.mark.parametrize("name", DOTTED)
def test_name_on_the_page_exists(name: str) -> None:
    assert found(name) is not None


@pytest.mark.parametrize("name", NATIVE)
def test_native_name_on_the_page_is_in_a_source_file(name: str) -> None:
    sources = [path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*") if path.suffix in (".h", ".cpp", ".cuh")]
    owner, member = name.split("::")
    assert any(re.search(rf"\b(class|struct) {owner}\b", text) and f"{member}(" in text for text in sources)


def test_unknown_name_is_found_missing() -> None:
    with pytest.raises(AttributeError):
        found("layers.mist.no_such_name")
