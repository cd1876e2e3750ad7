"""A class for each step of a sequence."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from mistrnn._docstrings import inherits_arguments
from mistrnn.errors import UsageError
from mistrnn.estimators._classes import ClassEstimator, label_array
from mistrnn.estimators._settings import is_whole
from mistrnn.tasks._cases import is_missing
from mistrnn.training.examples import Case, Examples


@inherits_arguments
@dataclass(kw_only=True, eq=False, repr=False)
class FrameLabeler(ClassEstimator):
    """Labels every step of a sequence from what came until then: activities, gestures, sounds.

    Args:
        unlabeled: the label that means that a step has none; NaN and None always do. Such steps are read and not learnt.
        piece_length: train on pieces of at most this many steps, cut anew in every epoch; None for whole cases.

    X is [cases, channels, time] or a list of arrays [channels, time]; y is [cases, time] or a list of arrays [time]. `predict`
    returns the same.

    >>> import numpy as np
    >>> from mistrnn import FrameLabeler
    >>> X = np.random.RandomState(0).randn(20, 1, 50)
    >>> y = np.where(X[:, 0] > 0, "high", "low")
    >>> model = FrameLabeler(hidden_size=8, max_epochs=60, learning_rate=0.02, random_state=0).fit(X, y)
    >>> model.predict(X).shape, model.score(X, y) > 0.9
    ((20, 50), True)
    """

    unlabeled: Any = None
    piece_length: int | None = 1000

    _every_step: ClassVar[bool] = True

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if np.ndim(self.unlabeled):
            raise UsageError(f"{self._name}: expected unlabeled to be one label, got {self.unlabeled!r}.")
        if self.piece_length is not None and not is_whole(self.piece_length):
            raise UsageError(
                f"{self._name}: expected piece_length to be a whole number from 1 on, or None, got {self.piece_length!r}."
            )

    def _learn(self, cases: Sequence[Case], y: Any, sample_weight: NDArray[np.float64]) -> Examples:
        labels = self._labels_of(cases, y)
        there = [self._is_label(row) for row in labels]
        known = [label for row, mask in zip(labels, there, strict=True) for label in row[mask].tolist()]
        if not known:
            raise UsageError(f"{self._name}: expected labels, got none: every step of every case is unlabelled.")
        kinds = {type(label) for label in known}
        given = self.unlabeled
        mixed = any(row.dtype == object for row in labels)
        if not mixed and not is_missing(given) and isinstance(given, str) != (kinds == {str}):
            raise UsageError(
                f"{self._name}: expected unlabeled to be a label of the type of the others, such as {known[0]!r}, got "
                f"{given!r}."
            )
        # NumPy makes floats of a row of integers with a gap.
        gaps = any(row.dtype.kind == "f" and not mask.all() for row, mask in zip(labels, there, strict=True))
        if (kinds == {int, float} or (kinds == {float} and gaps)) and all(float(label).is_integer() for label in known):
            known, kinds = [int(label) for label in known], {int}
        self._check_one_kind(kinds)
        together = np.array(known)
        if together.dtype.kind == "f" and not (np.isfinite(together) & (together == together.round())).all():
            raise UsageError(f"{self._name}: expected classes as labels, got numbers such as {together[0]}.")
        encoded = self._set_classes(together)
        counts = [int(mask.sum()) for mask in there]
        of_class = self._class_weights(encoded, np.repeat(sample_weight, counts))
        targets, weights = [], []
        parts = np.split(encoded, np.cumsum(counts)[:-1])
        for mask, own, weight in zip(there, parts, sample_weight, strict=True):
            target = np.zeros(len(mask), dtype=np.int64)
            target[mask] = own
            targets.append(torch.from_numpy(target))
            weights.append(torch.from_numpy(np.where(mask, weight * of_class[target], 0.0)).float())
        return Examples(cases, targets, weights, sample_weight.tolist())

    def _labels_of(self, cases: Sequence[Case], y: Any) -> list[NDArray[Any]]:
        """Return one array of labels for each case, as long as the case."""
        if hasattr(y, "iloc"):  # a pandas table [cases, time] would be gone through by columns
            y = y.to_numpy()
        if len(y) != len(cases):
            raise UsageError(f"{self._name}: expected labels for {len(cases)} cases, got {len(y)}.")
        rows = [label_array(row) for row in y]
        for number, (case, row) in enumerate(zip(cases, rows, strict=True)):
            if row.shape != (len(case),):
                raise UsageError(
                    f"{self._name}: expected {len(case)} labels for case {number}, one for each step, got an array "
                    f"{list(row.shape)}."
                )
        return rows

    def _is_label(self, labels: NDArray[Any]) -> NDArray[np.bool_]:
        there = np.ones(len(labels), dtype=bool)
        if labels.dtype.kind in "fO":  # NaN is not equal to itself, and pandas' NA not even that
            there = np.array([label is not None and (label == label) is True for label in labels.tolist()], dtype=bool)
        if not is_missing(self.unlabeled):
            there[there] = [label != self.unlabeled for label in labels[there].tolist()]
        return there

    def predict_proba(self, X: Any) -> NDArray[np.float32] | list[NDArray[np.float32]]:
        """Return the probabilities of the classes: [cases, time, classes], or a list of [time, classes] if X is a list."""
        found: list[NDArray[np.float32]] = [case.float().softmax(-1).numpy() for case in self._scores(X)]
        return np.stack(found) if _is_array(X) else found

    def predict(self, X: Any) -> NDArray[Any] | list[NDArray[Any]]:
        """Return the most probable class of each step: [cases, time], or a list of [time] if X is a list."""
        found: list[NDArray[Any]] = [self.classes_[case.argmax(-1).numpy()] for case in self._scores(X)]
        return np.stack(found) if _is_array(X) else found

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the share of the labelled steps that are labelled right."""
        found = self.predict(X)
        labels = self._labels_of([np.empty((len(row), 1)) for row in found], y)
        weights = np.ones(len(labels)) if sample_weight is None else np.asarray(sample_weight, dtype=np.float64)
        if weights.shape != (len(labels),):
            raise UsageError(
                f"{self._name}: expected {len(labels)} sample weights, got an array {list(weights.shape)}."
            )
        right, count = 0.0, 0.0
        for row, label, weight in zip(found, labels, weights, strict=True):
            there = self._is_label(label)
            right, count = right + weight * (row[there] == label[there]).sum(), count + weight * there.sum()
        if not count:
            raise UsageError(f"{self._name}: expected labels to compare with, got none.")
        return float(right / count)


def _is_array(x: Any) -> bool:
    return getattr(x, "ndim", 1) > 1
