"""Small data sets that estimators can learn in a second."""

from typing import Any

import numpy as np

Arrays = tuple[Any, Any]


def slopes(cases: int = 40, channels: int = 2, steps: int = 15, seed: int = 0) -> Arrays:
    """Sequences [cases, channels, steps] that go up or down, and which; easy."""
    random = np.random.RandomState(seed)
    labels = np.array(["down", "up"])[np.arange(cases) % 2]
    signs = np.where(labels == "up", 1.0, -1.0)[:, None, None]
    return signs * np.linspace(-1, 1, steps) + random.randn(cases, channels, steps) / 5, labels


def unequal(x: Any, shortest: int = 5) -> list[Any]:
    """The same sequences, cut to different lengths."""
    return [case[:, : shortest + k % (case.shape[1] - shortest + 1)] for k, case in enumerate(x)]


def early_cue(cases: int, steps: int, seed: int) -> Arrays:
    """Noise [cases, 1, steps], a little higher or lower in its first 10 steps: the class, to be remembered to the end."""
    random = np.random.RandomState(seed)
    x, y = random.randn(cases, 1, steps) / 2, np.arange(cases) % 2
    x[:, 0, :10] += np.where(y, 1.0, -1.0)[:, None]
    return x, y
