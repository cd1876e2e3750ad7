"""Arrays as people have them: X as one array [time, channels] for each case, y as classes for cases or steps."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mistrnn.errors import UsageError

SHAPES = "[cases, channels, time], [cases, time] for one channel, or a list of arrays [channels, time]"
LARGEST = 1e30
"""Larger numbers overflow in a network."""

Case = NDArray[np.float64]


def as_cases(owner: str, x: Any) -> list[Case]:
    """Return the cases of X, each [time, channels].

    >>> [case.shape for case in as_cases("Recordings", [np.zeros((2, 7)), np.zeros((2, 4))])]
    [(7, 2), (4, 2)]
    """
    x = _as_array(x)
    is_sequence = isinstance(x, list | tuple) or getattr(x, "dtype", None) == np.dtype(object)
    if not is_sequence and getattr(x, "ndim", 0) not in (2, 3):
        got = f"an array {list(x.shape)}" if hasattr(x, "shape") else type(x).__name__
        raise UsageError(f"{owner}: expected X to be {SHAPES}, got {got}.")
    found = [_as_case(owner, number, case) for number, case in enumerate(x)]
    if not found:
        raise UsageError(f"{owner}: expected at least one case, got none.")
    counts = [case.shape[1] for case in found]
    if len(set(counts)) > 1:
        other = next(number for number, count in enumerate(counts) if count != counts[0])
        raise UsageError(
            f"{owner}: expected the same channels in every case, got {counts[0]} in case 0 and {counts[other]} in case "
            f"{other}. A case is [channels, time]: are the axes the other way round?"
        )
    return found


def _as_array(x: Any) -> Any:
    if isinstance(x, Tensor):
        x = x.detach().cpu()
        return (x.float() if x.dtype == torch.bfloat16 else x).numpy()
    if isinstance(x, np.ma.MaskedArray):
        return np.ma.filled(x.astype(np.float64), np.nan)
    return x.to_numpy() if hasattr(x, "to_numpy") else x


def _as_case(owner: str, number: int, case: Any) -> Case:
    case = _as_array(case)
    try:
        if np.iscomplexobj(case):
            raise TypeError
        values = np.asarray(case, dtype=np.float64)
    except (TypeError, ValueError):  # words, complex numbers, or lists of unequal length
        raise UsageError(f"{owner}: expected case {number} to be an array [channels, time] of real numbers.") from None
    if values.ndim == 1:
        values = values[None]  # one channel
    if values.ndim != 2 or not values.size:
        raise UsageError(
            f"{owner}: expected case {number} to be [channels, time], or [time] for one channel, with at least one step, got "
            f"an array {list(values.shape)}."
        )
    bad = ~(np.abs(values) < LARGEST)  # NaN too
    if bad.any():
        channel, step = (int(place) for place in np.argwhere(bad)[0])
        raise UsageError(
            f"{owner}: expected finite numbers below {LARGEST:g}, got {values[channel, step]} in case {number}, channel "
            f"{channel}, step {step}. Fill gaps (the last value that was seen, or an interpolation) or leave these cases out."
        )
    return values.T


def as_targets(owner: str, y: Any, cases: Sequence[Case]) -> tuple[list[NDArray[np.int64]], list[Any], bool]:
    """Return the classes of y in each case, -1 for none, the class names, and whether a case has one label.

    Targets of a case with one label are [1], those of a case with labels of steps [time].
    """
    rows = list(_as_array(y))
    if len(rows) != len(cases):
        raise UsageError(f"{owner}: expected labels for {len(cases)} cases, got {len(rows)}.")
    nested = [number for number, row in enumerate(rows) if _is_array(row)]
    one_label = not nested
    if nested and len(nested) < len(rows):
        raise UsageError(
            f"{owner}: expected one label for each case, or an array of labels for each, got an array for case {nested[0]} and "
            "none for others."
        )
    labels = [_plain([row]) if one_label else _plain(_as_array(row)) for row in rows]
    for number, (own, case) in enumerate(zip(labels, cases, strict=True)):
        if not one_label and len(own) != len(case):
            raise UsageError(
                f"{owner}: expected {len(case)} labels for case {number}, one for each step, got {len(own)}."
            )
        if any(map(_is_array, own)):
            raise UsageError(f"{owner}: expected labels [time] for case {number}, got an array of arrays.")
    classes = _classes(owner, {label for own in labels for label in own if label is not None})
    place = {label: number for number, label in enumerate(classes)} | {None: -1}
    return [np.array([place[label] for label in own], dtype=np.int64) for own in labels], classes, one_label


def _is_array(value: Any) -> bool:
    return isinstance(value, list | tuple) or getattr(value, "ndim", 0) > 0


def is_missing(value: Any) -> bool:
    """Whether a label or a group is none: None, NaN, or pandas' NA, which does not even say whether it equals itself."""
    try:
        return value is None or bool(value != value)
    except TypeError:
        return True


def _plain(labels: Any) -> list[Any]:
    """Return labels as Python's own objects, None for those that are missing, whole numbers as such."""
    found = []
    for label in labels:
        value = label.item() if isinstance(label, np.generic) else label
        if not _is_array(value) and is_missing(value):
            value = None
        elif isinstance(value, float) and value.is_integer():
            value = int(value)  # NumPy makes floats of integers with a gap
        found.append(value)
    return found


def _classes(owner: str, labels: set[Any]) -> list[Any]:
    kinds = sorted({type(label).__name__ for label in labels})
    if len(kinds) > 1 or not set(kinds) <= {"bool", "int", "str"}:
        raise UsageError(
            f"{owner}: expected classes as labels, all of them words, whole numbers or bools, got {' and '.join(kinds)}."
        )
    if len(labels) < 2:
        raise UsageError(
            f"{owner}: expected at least 2 classes, because one alone leaves nothing to learn, got {sorted(labels)}."
        )
    return sorted(labels)


def as_groups(owner: str, groups: Any, count: int) -> list[str]:
    """Return the name of each case's group."""
    found = list(_as_array(groups))
    if len(found) != count:
        raise UsageError(f"{owner}: expected a group for each of {count} cases, got {len(found)}.")
    missing = [number for number, group in enumerate(found) if is_missing(group)]
    if missing:
        raise UsageError(f"{owner}: expected a group for every case, got none for case {missing[0]}.")
    return [str(group) for group in found]
