"""Small data sets that estimators can learn in a second, and estimators that do."""

from typing import Any

import numpy as np

from mistrnn import FrameLabeler, SequenceClassifier, SequenceRegressor
from mistrnn.estimators._fitting import Epoch
from mistrnn.models import SequenceNetwork

Arrays = tuple[Any, Any]

KINDS = [SequenceClassifier, FrameLabeler, SequenceRegressor]

NO_EPOCH = Epoch(1, 1, 0.1, None, None, 1)
"""The only epoch of a training that a test leaves out."""

SMALL: dict[str, Any] = {
    "hidden_size": 8,
    "num_layers": 1,
    "kernel_size": 3,
    "batch_size": 20,
    "learning_rate": 0.03,
    "random_state": 0,
}
"""Arguments of an estimator that learns `slopes` in some 20 epochs of 5 ms each."""


def slopes(cases: int = 40, channels: int = 2, steps: int = 15, seed: int = 0) -> Arrays:
    """Sequences [cases, channels, steps] that go up or down, and which; easy."""
    random = np.random.RandomState(seed)
    labels = np.array(["down", "up"])[np.arange(cases) % 2]
    signs = np.where(labels == "up", 1.0, -1.0)[:, None, None]
    return signs * np.linspace(-1, 1, steps) + random.randn(cases, channels, steps) / 5, labels


def data(kind: type, **shape: int) -> Arrays:
    """The slopes, with targets for this kind of estimator."""
    x, y = slopes(**shape)
    if kind is FrameLabeler:
        return x, np.where(x[:, 0] > 0, "high", "low")
    return (x, x[:, 0, 0] + 10) if kind is SequenceRegressor else (x, y)


def fitted(kind: type, **parameters: Any) -> tuple[Any, Any, Any]:
    """A small estimator of this kind, and what it was fitted on."""
    x, y = data(kind)
    return kind(**{**SMALL, "max_epochs": 4, **parameters}).fit(x, y), x, y


def network_of(model: Any) -> SequenceNetwork:
    """The recurrent network of a model, which may answer together with others."""
    found: SequenceNetwork = getattr(model.network_, "networks", [model.network_])[0]
    return found


def numbers(model: Any, x: Any) -> Any:
    """What a model answers, as numbers: probabilities, or the numbers of a regressor."""
    return model.predict(x) if isinstance(model, SequenceRegressor) else model.predict_proba(x)


def unequal(x: Any, shortest: int = 5) -> list[Any]:
    """The same sequences, cut to different lengths."""
    return [case[:, : shortest + k % (case.shape[1] - shortest + 1)] for k, case in enumerate(x)]


def early_cue(cases: int, steps: int, seed: int) -> Arrays:
    """Noise [cases, 1, steps], a little higher or lower in its first 10 steps: the class, to be remembered to the end."""
    random = np.random.RandomState(seed)
    x, y = random.randn(cases, 1, steps) / 2, np.arange(cases) % 2
    x[:, 0, :10] += np.where(y, 1.0, -1.0)[:, None]
    return x, y
