"""Docstrings of public names: every argument is explained, inherited ones included."""

import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest

MODULES = ("mistrnn", "mistrnn.layers", "mistrnn.models", "mistrnn.estimators")


def public() -> Iterator[tuple[str, Any]]:
    """Iterate over the public classes and functions, each once."""
    seen = set()
    for module in map(import_module, MODULES):
        for name in dir(module) if module.__name__ == "mistrnn" else module.__all__:
            value = getattr(module, name)
            if id(value) not in seen and (inspect.isclass(value) or inspect.isfunction(value)):
                seen.add(id(value))
                yield f"{module.__name__}.{name}", value


PUBLIC = dict(public())


def unexplained(value: Any) -> list[str]:
    """Return the arguments of a class or function that its docstring does not explain."""
    doc = inspect.getdoc(value) or ""
    if isinstance(value, type) and hasattr(value, "_fields"):  # a named tuple explains its fields one by one
        doc = inspect.getsource(value)
        return [name for name in value._fields if not re.search(rf'^    {name}: .*\n    """', doc, re.MULTILINE)]
    return [
        name
        for name, parameter in inspect.signature(value).parameters.items()
        if parameter.kind is not parameter.VAR_POSITIONAL
        if not re.search(rf"^    \*{{0,2}}{name}: \S", doc, re.MULTILINE)
    ]


@pytest.mark.parametrize(
    "name", ["SequenceClassifier", "FrameLabeler", "SequenceRegressor", "MIST", "LSTM", "Clockwork"]
)
def test_help_of_a_class_explains_every_argument_of_its_signature(name: str) -> None:
    kind = PUBLIC[f"mistrnn.{name}"]
    assert len(inspect.signature(kind).parameters) >= 12
    assert unexplained(kind) == []
