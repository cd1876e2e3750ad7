"""The base class of the estimators that predict classes: class names, class weights, the answer of a stream."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from mistrnn.errors import UsageError
from mistrnn.estimators._estimator import SequenceEstimator, Spoken
from mistrnn.tasks._cases import is_missing
from mistrnn.training.examples import Examples

ClassWeight = Mapping[Any, float] | Literal["balanced"] | None
_KINDS = {"b": "bool", "i": "int", "u": "int", "f": "float", "U": "str"}


class Answer(NamedTuple):
    """The prediction of a stream after a row."""

    label: Any
    probability: float
    """Of that label."""
    probabilities: NDArray[np.float32]
    """Of all classes, in the order of `classes_`."""


@dataclass(kw_only=True, eq=False, repr=False)
class ClassEstimator(SequenceEstimator):
    """The base of the estimators that predict classes.

    Args:
        class_weight: how much each class counts: a dict (1 for those that it does not name), "balanced" for the same sum of
            every class, or None.
        label_smoothing: the share of each target that is spread over all classes, in training.
    """

    class_weight: ClassWeight = None
    label_smoothing: float = 0.1

    def _check_parameters(self) -> None:
        super()._check_parameters()
        value = self.label_smoothing
        if not isinstance(value, int | float | np.number) or not 0 <= value < 1:
            raise UsageError(f"{self._name}: expected label_smoothing to be a number in [0, 1), got {value!r}.")

    def _set_classes(self, labels: NDArray[Any]) -> NDArray[np.int64]:
        """Learn which classes there are, and return the number of each label's."""
        self.classes_, targets = np.unique(labels, return_inverse=True)
        if len(self.classes_) < 2:
            raise UsageError(
                f"{self._name}: expected at least 2 classes, because one alone leaves nothing to learn, got one class: "
                f"{self.classes_.tolist()}."
            )
        return targets

    def _check_one_kind(self, kinds: set[type]) -> None:
        """Refuse labels of several types: words and numbers cannot be put in order, and 1 would equal True."""
        if len(kinds) > 1:
            names = " and ".join(sorted(kind.__name__ for kind in kinds))
            raise UsageError(f"{self._name}: expected labels of one type, got {names}.")

    def _class_weights(self, targets: NDArray[np.int64], sample_weight: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the weight of each class; a class that a dict does not name has weight 1."""
        given, count = self.class_weight, len(self.classes_)
        if given is None:
            return np.ones(count)
        if isinstance(given, str) and given == "balanced":
            sums = np.bincount(targets, sample_weight, minlength=count)
            return np.asarray(sums.sum() / (count * sums))
        if not isinstance(given, Mapping):
            raise UsageError(f'{self._name}: expected class_weight to be a dict, "balanced" or None, got {given!r}.')
        names = self.classes_.tolist()
        unknown = [key for key in given if key not in names]
        if unknown and any(name not in given for name in names):  # else it may be a fold that lacks a rare class
            raise UsageError(f"{self._name}: expected class_weight to name classes among {names}, got {unknown}.")
        try:
            found = np.array([given.get(label, 1.0) for label in names], dtype=np.float64)
        except (TypeError, ValueError):
            found = np.array([np.nan])
        if not (np.isfinite(found).all() and (found >= 0).all() and found.any()):
            raise UsageError(
                f"{self._name}: expected the weights of classes to be finite numbers, none below 0 and one above, got "
                f"{dict(given)}."
            )
        return found

    def _classes_in(self, examples: Examples) -> NDArray[np.bool_]:
        found = np.zeros((len(examples.cases), len(self.classes_)), dtype=bool)
        for own, target, weight in zip(found, examples.targets, examples.weights, strict=True):
            own[target.numpy()[weight.numpy() > 0]] = True
        return found

    def _output_size(self) -> int:
        return len(self.classes_)

    def _speaker(self) -> Spoken:
        return partial(_answer, self.classes_)

    def _learnt(self) -> dict[str, Any]:
        return {"classes": labels_to_json(self.classes_)}

    def _set_learnt(self, learnt: dict[str, Any]) -> None:
        self.classes_ = labels_from_json(learnt["classes"])


def _answer(classes: NDArray[Any], scores: Tensor) -> Answer:
    probabilities = scores.float().softmax(-1).numpy()
    best = int(probabilities.argmax())
    return Answer(classes[best], float(probabilities[best]), probabilities)


def label_array(labels: Any) -> NDArray[Any]:
    """Return labels as an array in which gaps stay gaps and mixed kinds stay mixed, as Python's own objects.

    NumPy would make the word 'nan' of NaN among words, the word '1' of 1, and numbers of bools together with NaN.

    >>> label_array(["a", float("nan")]), label_array([True, None]), label_array(["a", "b"])
    (array(['a', nan], dtype=object), array([True, None], dtype=object), array(['a', 'b'], dtype='<U1'))
    """
    if not isinstance(labels, list | tuple):
        return _of_python(np.asarray(labels))
    plain = [label.item() if isinstance(label, np.generic) else label for label in labels]
    kinds = {type(label) for label in plain}
    nested = any(isinstance(label, list | tuple) or getattr(label, "ndim", 0) for label in plain)
    if nested or kinds <= {int, float} or (len(kinds) == 1 and not any(map(is_missing, plain))):
        return np.asarray(labels)
    found = np.empty(len(plain), dtype=object)
    found[:] = plain
    return found


def _of_python(labels: NDArray[Any]) -> NDArray[Any]:
    """Return labels of mixed kinds as Python's own objects: NumPy's compare in other ways."""
    if labels.dtype != object or labels.ndim != 1:
        return labels
    found = np.empty_like(labels)
    found[:] = [label.item() if isinstance(label, np.generic) else label for label in labels]
    return found


def labels_to_json(classes: NDArray[Any]) -> dict[str, Any]:
    """Return labels as JSON knows them, with their type, so that 1, "1", 1.0 and True stay what they are.

    >>> labels_to_json(np.array([1, 2], dtype=np.int8))
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


def labels_from_json(stored: dict[str, Any]) -> NDArray[Any]:
    """Return what `labels_to_json` was given.

    >>> labels_from_json({"type": "str", "values": ["a", "b"]})
    array(['a', 'b'], dtype='<U1')
    """
    python = {"bool": bool, "int": int, "float": float, "str": str}[stored["type"]]
    if not all(type(value) is python for value in stored["values"]):
        raise ValueError(f"labels that are not of type {stored['type']}")
    return np.array(stored["values"], dtype=python)
