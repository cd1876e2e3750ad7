"""Numbers for each sequence."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import RegressorMixin
from sklearn.utils import check_array
from torch import Tensor

from mistrnn._docstrings import inherits_arguments
from mistrnn.errors import UsageError
from mistrnn.estimators._estimator import SequenceEstimator, Spoken
from mistrnn.estimators._settings import check_pooling
from mistrnn.models.ensemble import Answer
from mistrnn.training.examples import Case, Examples


@inherits_arguments
@dataclass(kw_only=True, eq=False, repr=False)
class SequenceRegressor(RegressorMixin, SequenceEstimator):  # type: ignore[misc]
    """Predicts a number, or several, for each sequence, by least squares on standardised targets.

    Args:
        pooling: how a sequence's frames become one vector: some of last, mean and max, joined with +.

    X is [cases, channels, time], [cases, time] for one channel, or a list of arrays [channels, time]; y is [cases] or [cases,
    numbers].

    >>> import numpy as np
    >>> from mistrnn import SequenceRegressor
    >>> X = np.random.RandomState(0).randn(60, 1, 12)
    >>> y = X[:, 0, 0]  # what came first
    >>> model = SequenceRegressor(hidden_size=16, max_epochs=100, learning_rate=0.02, random_state=0).fit(X, y)
    >>> model.score(X, y) > 0.9
    True
    """

    pooling: str = "mean+max"

    _answer: ClassVar[Answer] = "numbers"

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_pooling(self._name, self.pooling)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def _learn(self, cases: Sequence[Case], y: Any, sample_weight: NDArray[np.float64]) -> Examples:
        targets = check_array(y, ensure_2d=False, dtype=np.float64, input_name="y")
        self._one_number = targets.ndim == 1
        targets = targets.reshape(len(cases), -1)
        with np.errstate(over="ignore", invalid="ignore"):  # said below
            self.y_mean_ = np.average(targets, axis=0, weights=sample_weight)
            away = targets - self.y_mean_
            farthest = np.abs(away).max(axis=0)
            one = np.where(farthest > 0, farthest, 1.0)  # squares of very small numbers would be zero
            self.y_scale_ = one * np.sqrt(np.average((away / one) ** 2, axis=0, weights=sample_weight))
        if not (np.isfinite(self.y_mean_) & np.isfinite(self.y_scale_)).all():
            raise UsageError(f"{self._name}: expected smaller numbers in y: their sum overflows.")
        # Of numbers that are all the same the scale is zero: whatever the network says, they are predicted.
        standardised = torch.from_numpy(away / np.where(self.y_scale_ > 0, self.y_scale_, 1.0)).float()
        return Examples(
            cases, list(standardised), list(torch.from_numpy(sample_weight).float()), sample_weight.tolist()
        )

    def _output_size(self) -> int:
        return len(self.y_mean_)

    def predict(self, X: Any) -> NDArray[np.float64]:
        """Return the numbers: [cases] or [cases, numbers], as y was."""
        scores = torch.stack(self._scores(X))
        return _numbers(self.y_scale_, self.y_mean_, self._one_number, scores)

    def _speaker(self) -> Spoken:
        return partial(_numbers, self.y_scale_, self.y_mean_, self._one_number)

    def _learnt(self) -> dict[str, Any]:
        return {
            "one_number": self._one_number,
            "mean": self.y_mean_.tolist(),
            "scale": self.y_scale_.tolist(),
        }

    def _set_learnt(self, learnt: dict[str, Any]) -> None:
        self._one_number = bool(learnt["one_number"])
        self.y_mean_, self.y_scale_ = (np.array(learnt[name], dtype=np.float64) for name in ("mean", "scale"))


def _numbers(
    scale: NDArray[np.float64], mean: NDArray[np.float64], one_number: bool, scores: Tensor
) -> NDArray[np.float64]:
    found: NDArray[np.float64] = scores.double().numpy() * scale + mean
    return found[..., 0] if one_number else found
