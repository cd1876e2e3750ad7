"""The classifier as one of aeon's own, for its pipelines, ensembles and benchmarks; needs aeon."""

from typing import Any

from aeon.classification.base import BaseClassifier
from numpy.typing import NDArray
from sklearn.base import clone

from mistrnn.estimators.classifier import SequenceClassifier


class AeonClassifier(BaseClassifier):  # type: ignore[misc]
    """A `SequenceClassifier` in aeon.

    Args:
        estimator: the classifier, which is copied; one with its defaults if left out.
        random_state: takes the place of the estimator's own, unless None.

    >>> from aeon.datasets import load_unit_test
    >>> from mistrnn import SequenceClassifier
    >>> from mistrnn.estimators.aeon import AeonClassifier
    >>> X, y = load_unit_test(split="train")
    >>> AeonClassifier(SequenceClassifier(hidden_size=8, max_epochs=3), random_state=0).fit(X, y).predict(X).shape
    (20,)
    """

    _tags = {  # noqa: RUF012 (aeon's own way)
        "capability:multivariate": True,
        "capability:unequal_length": True,
        "X_inner_type": ["np-list", "numpy3D"],
        "algorithm_type": "deeplearning",
        "non_deterministic": False,
    }

    def __init__(self, estimator: SequenceClassifier | None = None, random_state: int | None = None) -> None:
        self.estimator = estimator
        self.random_state = random_state
        super().__init__()

    def _fit(self, X: Any, y: Any) -> "AeonClassifier":
        self.estimator_ = SequenceClassifier() if self.estimator is None else clone(self.estimator)
        if self.random_state is not None:
            self.estimator_.set_params(random_state=self.random_state)
        self.estimator_.fit(X, y)
        return self

    def _predict(self, X: Any) -> NDArray[Any]:
        return self.estimator_.predict(X)

    def _predict_proba(self, X: Any) -> NDArray[Any]:
        return self.estimator_.predict_proba(X)

    @classmethod
    def _get_test_params(cls, parameter_set: str = "default") -> dict[str, Any]:
        return {"estimator": SequenceClassifier(hidden_size=6, num_layers=1, kernel_size=3, max_epochs=3)}
