"""Private names of torch stand in `_torch_compat.py` alone."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.utils.prune import BasePruningMethod

PACKAGE = Path(__file__).parents[1] / "src" / "mistrnn"
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if path.name != "_torch_compat.py")


def is_private(name: str) -> bool:
    return name.startswith("_") and not (name.startswith("__") and name.endswith("__"))


def private_attributes() -> set[str]:
    """Return the private attributes of the objects of torch that the package handles."""
    objects = (torch.zeros(1), nn.LSTM(1, 1), torch.optim.SGD([torch.zeros(1)]), BasePruningMethod, torch.Generator())
    return {name for each in objects for name in dir(each) if is_private(name)}


def own_names() -> set[str]:
    """Return the private names that the package defines itself."""
    own = {"_replace", "_fields", "_asdict"}  # public, of named tuples
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                own.add(node.name)
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                own.add(node.attr)
    return own


def private_uses(source: str, attributes: set[str]) -> Iterator[str]:
    """Yield the private names of torch in a module."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            imported = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            imported = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Attribute) and node.attr in attributes:
            yield ast.unparse(node)
            continue
        elif isinstance(node, ast.Attribute) and is_private(node.attr):
            imported = [ast.unparse(node)]
        else:
            continue
        for name in imported:
            first, *rest = name.split(".")
            if first in ("torch", "forward_ad") and any(map(is_private, rest)):
                yield name


ATTRIBUTES = private_attributes() - own_names()


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_module_uses_no_private_name_of_torch(path: Path) -> None:
    assert list(private_uses(path.read_text(), ATTRIBUTES)) == []


@pytest.mark.parametrize(
    "source",
    [
        "import torch._dynamo",
        "from torch.utils import _pytree",
        "from torch.utils._pytree import tree_map",
        "import torch\ntorch._C._is_tracing()",
        "module._forward_hooks.values()",
        "tensor._is_zerotensor()",
        "forward_ad._current_level",
    ],
)
def test_scan_finds_private_names(source: str) -> None:
    assert list(private_uses(source, ATTRIBUTES))


def test_every_name_of_the_compatibility_module_is_used() -> None:
    from mistrnn import _torch_compat

    used = "\n".join(path.read_text() for path in MODULES)
    assert [name for name in _torch_compat.__all__ if name not in used] == []
