"""Class labels in JSON: values with their type, so that 1, "1", 1.0 and True stay what they are."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mistrnn.errors import UsageError

_KINDS = {"b": "bool", "i": "int", "u": "int", "f": "float", "U": "str"}


def to_json(classes: NDArray[Any]) -> dict[str, Any]:
    """Return the labels as JSON knows them.

    >>> to_json(np.array([1, 2], dtype=np.int8))
    {'type': 'int', 'values': [1, 2]}
    """
    values = classes.tolist()
    kind = _KINDS.get(classes.dtype.kind)
    if kind is None and all(isinstance(value, str) for value in values):
        kind = "str"  # an object array of strings, as pandas has them
    if kind is None:
        raise UsageError(
            f"expected labels to be strings, whole numbers, numbers or bools to save them, got {classes.dtype}."
        )
    return {"type": kind, "values": values}


def from_json(stored: dict[str, Any]) -> NDArray[Any]:
    """Return what `to_json` was given.

    >>> from_json({"type": "str", "values": ["a", "b"]})
    array(['a', 'b'], dtype='<U1')
    """
    python = {"bool": bool, "int": int, "float": float, "str": str}[stored["type"]]
    if not all(type(value) is python for value in stored["values"]):
        raise ValueError(f"labels that are not of type {stored['type']}")
    return np.array(stored["values"], dtype=python)
