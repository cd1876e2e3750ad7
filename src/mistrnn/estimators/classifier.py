"""One class for each sequence."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin
from sklearn.utils import assert_all_finite, column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from mistrnn.errors import UsageError
from mistrnn.estimators import _fitting, _labels
from mistrnn.estimators._estimator import SequenceEstimator
from mistrnn.estimators._fitting import Examples
from mistrnn.estimators._sequences import Case

ClassWeight = Mapping[Any, float] | Literal["balanced"] | None


class Spoken(NamedTuple):
    """What a stream says after a row."""

    label: Any
    probability: float
    """Of that label."""
    probabilities: NDArray[np.float32]
    """Of all classes, in the order of `classes_`."""


@dataclass(kw_only=True, eq=False, repr=False)
class SequenceClassifier(ClassifierMixin, SequenceEstimator):  # type: ignore[misc]
    """Tells sequences apart: a scikit-learn classifier around a recurrent layer, MIST unless told otherwise.

    Args:
        class_weight: how much each class counts: a dict, "balanced" for the same sum of every class, or None.

    The other arguments as in `SequenceEstimator`. X is [cases, channels, time], [cases, time] for one channel, or a list of
    arrays [channels, time]; y is [cases].

    After `fit`: `classes_`, `network_` (the torch module), `history_` (a dict for each epoch), `n_epochs_`, `best_epoch_`,
    `n_channels_`.

    >>> import numpy as np
    >>> from mistrnn import SequenceClassifier
    >>> rising = np.linspace(-1, 1, 20) + np.random.RandomState(0).randn(30, 1, 20) / 10
    >>> X, y = np.concatenate([rising, -rising]), np.repeat(["up", "down"], 30)
    >>> model = SequenceClassifier(hidden_size=8, max_epochs=5, random_state=0).fit(X, y)
    >>> model.predict(X[:2]).tolist(), model.score(X, y)
    (['up', 'up'], 1.0)
    >>> live = model.stream()
    >>> [live(row).label for row in X[0].T][-1]
    'up'
    """

    class_weight: ClassWeight = None

    def _learn(self, cases: Sequence[Case], y: Any, sample_weight: NDArray[np.float64]) -> Examples:
        y = column_or_1d(y, warn=True)
        if y.dtype.kind == "f":
            assert_all_finite(y, input_name="y")
        check_classification_targets(y)
        self.classes_, targets = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise UsageError(
                f"{self._name}: expected at least 2 classes, because one alone leaves nothing to learn, got one class: "
                f"{self.classes_.tolist()}."
            )
        weight = sample_weight * class_weights(self._name, self.class_weight, self.classes_, targets)[targets]
        return Examples(cases, list(torch.from_numpy(targets)), list(torch.from_numpy(weight).float()))

    def _strata(self, examples: Examples) -> NDArray[Any]:
        return np.array([int(target) for target in examples.targets])

    def _output_size(self) -> int:
        return len(self.classes_)

    def _loss(self, scores: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(scores, targets, reduction="none")

    def predict_proba(self, X: Any) -> NDArray[np.float32]:
        """Return the probability of each class, [cases, classes], in the order of `classes_`."""
        return torch.stack(self._scores(X)).softmax(-1).numpy()

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the most probable class of each case."""
        found: NDArray[Any] = self.classes_[self.predict_proba(X).argmax(-1)] if self._fitted() else np.empty(0)
        return found

    def predict_proba_at_every_step(self, X: Any) -> list[NDArray[np.float32]]:
        """Return the probabilities [time, classes] of each case as they would be if it ended at each of its steps."""
        self._fitted()
        if self.network_.layer.bidirectional:
            raise UsageError(
                f"{self._name}: expected one direction, because the second one starts at the end of a case."
            )
        before, self.network_.every_step = self.network_.every_step, True
        try:
            scores = _fitting.scores_of(self.network_, self._cases(X))
        finally:
            self.network_.every_step = before
        return [case.softmax(-1).numpy() for case in scores]

    def _fitted(self) -> bool:
        check_is_fitted(self, "network_")
        return True

    def _spoken(self, scores: Tensor) -> Spoken:
        return spoken(scores, self.classes_)

    def _learnt(self) -> dict[str, Any]:
        return {"classes": _labels.to_json(self.classes_)}

    def _set_learnt(self, learnt: dict[str, Any]) -> None:
        self.classes_ = _labels.from_json(learnt["classes"])


def spoken(scores: Tensor, classes: NDArray[Any]) -> Spoken:
    """Return label and probabilities from scores [K]."""
    probabilities = scores.softmax(-1).numpy()
    best = int(probabilities.argmax())
    return Spoken(classes[best], float(probabilities[best]), probabilities)


def class_weights(
    owner: str, class_weight: ClassWeight, classes: NDArray[Any], targets: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return the weight of each class; a class that a dict does not name has weight 1."""
    if class_weight is None:
        return np.ones(len(classes))
    if isinstance(class_weight, str) and class_weight == "balanced":
        return len(targets) / (len(classes) * np.bincount(targets, minlength=len(classes)))
    if not isinstance(class_weight, Mapping):
        raise UsageError(f'{owner}: expected class_weight to be a dict, "balanced" or None, got {class_weight!r}.')
    known = classes.tolist()
    if unknown := [label for label in class_weight if label not in known]:
        raise UsageError(f"{owner}: expected the classes of class_weight to be in y, got {unknown}; y holds {known}.")
    return np.array([float(class_weight.get(label, 1.0)) for label in known])
