"""95% intervals: of a share of independent cases, and of any figure by resampling whole cases."""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

DRAWS = 1_000
SEED = 0
"""The same cases lead to the same interval."""


def wilson(right: int, count: int) -> list[float]:
    """Return the 95% interval of a share (Wilson, 1927).

    >>> [round(end, 3) for end in wilson(9, 10)]
    [0.596, 0.982]
    """
    z, share = 1.96, right / count
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count)) / (1 + z * z / count)
    return [max(0.0, middle - half), min(1.0, middle + half)]


def bootstrap(figure: Callable[[NDArray[np.int64]], float], cases: int) -> list[float] | None:
    """Return the 95% percentile interval of a figure over resampled cases; None if there are too few to resample.

    Args:
        figure: from the places of the drawn cases, some of them several times, to the figure; NaN where it is not defined.
        cases: how many there are.

    >>> heights = np.array([1.6, 1.7, 1.8, 1.9])
    >>> low, high = bootstrap(lambda drawn: heights[drawn].mean(), 4)
    >>> 1.6 <= low < 1.75 < high <= 1.9
    True
    """
    if cases < 2:
        return None
    random = np.random.default_rng(SEED)
    found = np.array([figure(random.integers(cases, size=cases)) for _ in range(DRAWS)])
    found = found[np.isfinite(found)]
    if len(found) < DRAWS / 2:
        return None
    low, high = np.quantile(found, [0.025, 0.975]).tolist()
    return [low, high]
