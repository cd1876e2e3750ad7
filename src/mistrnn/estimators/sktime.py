"""The classifier as one of sktime's own, for its pipelines, tuning and benchmarks; needs sktime."""

from typing import Any

from numpy.typing import NDArray
from sklearn.base import clone
from sktime.classification.base import BaseClassifier

from mistrnn.estimators.classifier import SequenceClassifier


class SktimeClassifier(BaseClassifier):  # type: ignore[misc]
    """A `SequenceClassifier` in sktime.

    Args:
        estimator: the classifier, which is copied; one with its defaults if left out.
        random_state: takes the place of the estimator's own, unless None.

    >>> from sktime.datasets import load_unit_test
    >>> from mistrnn import SequenceClassifier
    >>> from mistrnn.estimators.sktime import SktimeClassifier
    >>> X, y = load_unit_test(split="train", return_type="numpy3D")
    >>> SktimeClassifier(SequenceClassifier(hidden_size=8, max_epochs=3), random_state=0).fit(X, y).predict(X).shape
    (20,)
    """

    _tags = {  # noqa: RUF012 (sktime's own way)
        "authors": ["mistrnn"],
        "python_dependencies": ["torch"],
        "X_inner_mtype": "df-list",
        "capability:multivariate": True,
        "capability:unequal_length": True,
        "capability:predict_proba": True,
        "capability:random_state": True,
        "property:randomness": "derandomized",
    }

    def __init__(self, estimator: SequenceClassifier | None = None, random_state: int | None = None) -> None:
        self.estimator = estimator
        self.random_state = random_state
        super().__init__()

    def _fit(self, X: Any, y: Any) -> "SktimeClassifier":
        self.estimator_ = SequenceClassifier() if self.estimator is None else clone(self.estimator)
        if self.random_state is not None:
            self.estimator_.set_params(random_state=self.random_state)
        self.estimator_.fit(_cases(X), y)
        return self

    def _predict(self, X: Any) -> NDArray[Any]:
        return self.estimator_.predict(_cases(X))

    def _predict_proba(self, X: Any) -> NDArray[Any]:
        return self.estimator_.predict_proba(_cases(X))

    @classmethod
    def get_test_params(cls, parameter_set: str = "default") -> list[dict[str, Any]]:
        """Return parameters for sktime's tests."""
        small: dict[str, Any] = {"hidden_size": 6, "num_layers": 1, "kernel_size": 3, "max_epochs": 3}
        return [
            {"estimator": SequenceClassifier(layer=layer, **small), "random_state": 0} for layer in ("mist", "lstm")
        ]


def _cases(tables: Any) -> list[NDArray[Any]]:
    """Return arrays [channels, time] from sktime's tables [time, channels]."""
    return [table.to_numpy().T for table in tables]
