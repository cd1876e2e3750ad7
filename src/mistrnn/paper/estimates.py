"""Estimates with 95% intervals from the trials of a sweep: the error of its top tenth, and the share that solves a task.

The paper reports the mean test error of the top 5 of 50 trials by validation. Its expectation over sweeps is estimated from n
trials:

    n <= 50   mean over the best tenth of the n trials, the last of them with a fractional weight
    n > 50    mean of the top 5 over all subsets of 50 trials

The interval is a percentile bootstrap over trials. A resample has fewer distinct trials than the sweep, so its best tenth is
worse on average. The lower end moves down by twice this bias; the upper end stays. In simulations of sweeps from the recorded
trials of table 1, this interval held the true value in 89 to 99% of the cases for n = 20 to 100, and in 81 to 95% for n = 12.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import comb
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mistrnn.intervals import wilson
from mistrnn.training.sweep import TOP_SHARE

DRAWS = 2_000
SEED = 0
"""The same trials lead to the same interval."""
FEWEST_TRIALS = 20
"""Fewer trials have no interval, because it would be too narrow."""


@dataclass(frozen=True)
class Estimate:
    """A value and its 95% interval; no interval for few trials, or for trials that are no random sample."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Share:
    """A count of trials, and the 95% interval (Wilson) of its share."""

    count: int
    trials: int
    low: float
    high: float

    @classmethod
    def of(cls, count: int, trials: int) -> "Share":
        """Return the share of `count` in `trials` trials; without trials its interval is 0 to 1."""
        low, high = wilson(count, trials) if trials else (0.0, 1.0)
        return cls(count, trials, low, high)


def top_tenth(trials: Sequence[dict[str, Any]], size: int = 50) -> Estimate | None:
    """Estimate the mean test error of the top tenth of a sweep of `size` trials from any number of trials.

    Trials without a validation rank last. None if no trial of the best tenth has been validated.

    >>> trials = [{"val_error": k / 100, "test_error": k / 100, "trial": k} for k in range(1, 51)]
    >>> estimate = top_tenth(trials)
    >>> round(estimate.value, 6), estimate.low < 0.03 < estimate.high
    (0.03, True)
    """
    ranked = sorted(trials, key=lambda row: (row["val_error"] is None, row["val_error"] or 0.0, row["trial"]))
    if not ranked:
        return None
    errors = np.array([np.nan if row["test_error"] is None else row["test_error"] for row in ranked])
    weights = rank_weights(len(ranked), size)
    value = float(_weighted(errors, weights))
    if np.isnan(value):
        return None
    if len(ranked) < FEWEST_TRIALS:
        return Estimate(value)
    random = np.random.default_rng(SEED)
    ranks = np.sort(random.integers(len(errors), size=(DRAWS, len(errors))), axis=1)
    resampled = _weighted(errors[ranks], weights)
    resampled = resampled[~np.isnan(resampled)]
    low, high = np.quantile(resampled, [0.025, 0.975]).tolist()
    bias = max(0.0, float(resampled.mean()) - value)
    return Estimate(value, min(value, max(0.0, low - 2 * bias)), max(value, high))


def difference(
    trials: Mapping[Any, dict[str, Any]], others: Mapping[Any, dict[str, Any]], size: int = 50
) -> Estimate | None:
    """Estimate how much the top tenth of one sweep errs more than that of another with the same learning rates.

    Trials are compared in pairs by their keys; the interval is a percentile bootstrap over pairs. None if no trial of a best
    tenth has been validated.

    >>> trials = {k: {"val_error": k / 100, "test_error": k / 100, "trial": k} for k in range(1, 51)}
    >>> others = {k: {**trial, "test_error": trial["test_error"] + 0.02} for k, trial in trials.items()}
    >>> difference(trials, others)
    Estimate(value=-0.02, low=-0.02, high=-0.02)
    """
    pairs = sorted(trials.keys() & others.keys())
    if not pairs:
        return None
    weights = rank_weights(len(pairs), size)
    columns = [_columns([both[key] for key in pairs]) for both in (trials, others)]

    def value(drawn: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the difference of the two top tenths for the drawn places of pairs [..., pairs]."""
        sums = []
        for validation, test in columns:
            order = np.argsort(validation[drawn], axis=-1, kind="stable")
            sums.append(_weighted(np.take_along_axis(test[drawn], order, -1), weights))
        found: NDArray[np.float64] = np.round(sums[0] - sums[1], 12)
        return found

    own = float(value(np.arange(len(pairs))))
    if np.isnan(own):
        return None
    if len(pairs) < FEWEST_TRIALS:
        return Estimate(own)
    resampled = value(np.random.default_rng(SEED).integers(len(pairs), size=(DRAWS, len(pairs))))
    low, high = np.quantile(resampled[~np.isnan(resampled)], [0.025, 0.975]).tolist()
    return Estimate(own, min(own, low), max(own, high))


def _columns(rows: Sequence[dict[str, Any]]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return validation and test errors; trials without a validation rank last, without a test error."""
    validation = [np.inf if row["val_error"] is None else row["val_error"] for row in rows]
    test = [np.nan if row["test_error"] is None else row["test_error"] for row in rows]
    return np.array(validation), np.array(test)


def rank_weights(count: int, size: int) -> NDArray[np.float64]:
    """Return the weights of `count` ranked trials in the mean of the top tenth of a sweep of `size` trials.

    >>> rank_weights(15, 50)[:3].round(3).tolist()
    [0.667, 0.333, 0.0]
    """
    top = max(1, round(TOP_SHARE * size))
    if count <= size:
        share = count * top / size
        weights: NDArray[np.float64] = np.clip(max(1.0, share) - np.arange(count), 0.0, 1.0) / max(1.0, share)
        return weights
    subsets = comb(count, size)
    return np.array(
        [
            sum(comb(rank, place) * comb(count - 1 - rank, size - 1 - place) for place in range(top)) / subsets / top
            for rank in range(count)
        ]
    )


def _weighted(errors: NDArray[np.float64], weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the weighted mean over the last axis, without the NaN of trials that were not validated."""
    known = ~np.isnan(errors)
    totals = (known * weights).sum(-1)
    with np.errstate(invalid="ignore", divide="ignore"):
        means: NDArray[np.float64] = np.where(
            totals > 0, (np.where(known, errors, 0.0) * weights).sum(-1) / totals, np.nan
        )
    return means
