"""One class for each sequence."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin
from sklearn.utils import assert_all_finite, column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted

from mistrnn._docstrings import inherits_arguments
from mistrnn.errors import UsageError
from mistrnn.estimators import _fitting
from mistrnn.estimators._classes import ClassEstimator, label_array
from mistrnn.estimators._convolutions import fit_convolutions
from mistrnn.estimators._settings import check_pooling, check_random_features
from mistrnn.estimators.network import AnyNetwork
from mistrnn.models import Ensemble, SequenceNetwork
from mistrnn.tasks._cases import is_missing
from mistrnn.training.examples import Case, Examples


@inherits_arguments
@dataclass(kw_only=True, eq=False, repr=False)
class SequenceClassifier(ClassifierMixin, ClassEstimator):  # type: ignore[misc]
    """Predicts a class for each sequence: a scikit-learn classifier around a recurrent network, MIST by default.

    Its probabilities are the mean of two members: the recurrent network (or, of a search, the mean of the best), and random
    convolutions with a ridge classifier (`mistrnn.models.RandomConvolutions`). Both are causal, stream and export.

    Args:
        pooling: how a sequence's frames become one vector: some of last, mean and max, joined with +.
        random_features: thresholds of the random convolutions, rounded to a multiple of 84; 0 for the recurrent network alone,
            for example to compare layers.

    X is [cases, channels, time], [cases, time] for one channel, or a list of arrays [channels, time]; y is [cases].

    After `fit`: `classes_`, `network_` (the torch module), `history_` (a dict for each epoch), `n_epochs_`, `best_epoch_`,
    `n_channels_`.

    >>> import numpy as np
    >>> from mistrnn import SequenceClassifier
    >>> rising = np.linspace(-1, 1, 20) + np.random.RandomState(0).randn(30, 1, 20) / 10
    >>> X, y = np.concatenate([rising, -rising]), np.repeat(["up", "down"], 30)
    >>> model = SequenceClassifier(hidden_size=8, max_epochs=40, random_state=0).fit(X, y)
    >>> model.predict(X[:2]).tolist(), model.score(X, y)
    (['up', 'up'], 1.0)
    >>> live = model.stream()
    >>> str([live(row).label for row in X[0].T][-1])
    'up'
    """

    pooling: str = "mean+max"
    random_features: int = 5000

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_pooling(self._name, self.pooling)
        check_random_features(self._name, self.random_features)

    def _completed(
        self, networks: Sequence[SequenceNetwork], examples: Examples, groups: NDArray[Any] | None, seed: int
    ) -> AnyNetwork:
        if self.random_features == 0 or len(self.classes_) == 1:
            return super()._completed(networks, examples, groups, seed)
        first = networks[0]
        convolutions = fit_convolutions(
            examples,
            groups,
            len(self.classes_),
            int(self.random_features),
            first.standardisation,
            seed,
            first.mean.device,
        )
        return Ensemble([*networks, convolutions], self._answer, [*[1 / len(networks)] * len(networks), 1])

    def _learn(self, cases: Sequence[Case], y: Any, sample_weight: NDArray[np.float64]) -> Examples:
        y = self._labels_of(y)
        check_classification_targets(y)
        targets = self._set_classes(y)
        weights = sample_weight * self._class_weights(targets, sample_weight)[targets]
        return Examples(
            cases, list(torch.from_numpy(targets)), list(torch.from_numpy(weights).float()), sample_weight.tolist()
        )

    def _labels_of(self, y: Any) -> NDArray[Any]:
        """Return one label for each case, all of one type."""
        labels: NDArray[Any] = column_or_1d(label_array(y), warn=True)
        if labels.dtype.kind == "f":
            assert_all_finite(labels, input_name="y")
        if labels.dtype == object:
            missing = [k for k, label in enumerate(labels) if is_missing(label)]
            if missing:
                raise UsageError(f"{self._name}: expected a label for every case, got none for case {missing[0]}.")
            kinds = {type(label) for label in label_array(labels)}
            self._check_one_kind(kinds if kinds != {int, float} else {float})
        return labels

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the accuracy."""
        return float(super().score(X, self._labels_of(y), sample_weight))

    def _strata(self, examples: Examples) -> NDArray[Any]:
        return np.array([int(target) for target in examples.targets])

    def predict_proba(self, X: Any) -> NDArray[np.float32]:
        """Return the probability of each class, [cases, classes], in the order of `classes_`."""
        found: NDArray[np.float32] = torch.stack(self._scores(X)).float().softmax(-1).numpy()
        return found

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the most probable class of each case."""
        best = self.predict_proba(X).argmax(-1)
        found: NDArray[Any] = self.classes_[best]
        return found

    def predict_proba_at_every_step(self, X: Any) -> list[NDArray[np.float32]]:
        """Return the probabilities [time, classes] of each case as they would be if it ended at each of its steps."""
        check_is_fitted(self, "network_")
        if self.network_.bidirectional:
            raise UsageError(
                f"{self._name}: expected one direction, because the second one starts at the end of a case."
            )
        scores = _fitting.scores_of(self.network_, self._cases(X), every_step=True)
        return [case.float().softmax(-1).numpy() for case in scores]
