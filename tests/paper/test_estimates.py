"""Estimates and their intervals: exact values, bias, and coverage in simulated sweeps."""

import statistics
from itertools import combinations
from typing import Any

import numpy as np
import pytest

from mistrnn.paper.estimates import Share, rank_weights, top_tenth


def sweep(errors: list[float | None]) -> list[dict[str, Any]]:
    return [{"trial": k, "val_error": error, "test_error": error} for k, error in enumerate(errors)]


def test_top_tenth_of_a_whole_sweep_is_the_mean_of_its_best_five() -> None:
    errors: list[float | None] = [0.5, None, *(0.1 + 0.01 * k for k in range(48))]
    estimate = top_tenth(sweep(errors))
    assert estimate is not None
    assert estimate.value == pytest.approx(0.12)


def test_top_tenth_of_more_trials_is_the_mean_over_all_subsets() -> None:
    errors = [0.1, 0.2, 0.4, 0.5, 0.7, 0.9, 1.1, 1.3, 1.7, 1.9, 2.3, 2.9]
    best = statistics.fmean(min(subset) for subset in combinations(errors, 10))
    assert errors @ rank_weights(len(errors), 10) == pytest.approx(best)


@pytest.mark.parametrize(("count", "size"), [(1, 50), (12, 50), (49, 50), (50, 50), (51, 50), (100, 50), (7, 3)])
def test_rank_weights_sum_to_one_and_never_rise(count: int, size: int) -> None:
    weights = rank_weights(count, size)
    assert weights.sum() == pytest.approx(1.0)
    assert (np.diff(weights) <= 1e-12).all()


def test_top_tenth_without_a_validated_trial_is_none() -> None:
    assert top_tenth([]) is None
    assert top_tenth(sweep([None] * 50)) is None


def test_top_tenth_of_few_trials_has_no_interval() -> None:
    estimate = top_tenth(sweep([0.1] * 19))
    assert estimate is not None
    assert (estimate.low, estimate.high) == (None, None)


@pytest.mark.parametrize("count", [20, 50, 100])
def test_interval_of_the_top_tenth_holds_the_true_value_in_simulated_sweeps(count: int) -> None:
    random = np.random.default_rng(1)

    def draw(size: int) -> list[float | None]:
        rates = random.uniform(-4, 1, size)  # log10 of the learning rate: a valley, a cliff above
        errors = 0.05 + 0.03 * (rates + 1.3) ** 2 + random.normal(0, 0.003, size)
        return [None if rate > 0 else float(error) for rate, error in zip(rates, errors, strict=True)]

    def best(errors: list[float | None]) -> float:
        return statistics.fmean(sorted(error for error in errors if error is not None)[:5])

    truth = statistics.fmean(best(draw(50)) for _ in range(2_000))
    held = 0
    for _ in range(100):
        estimate = top_tenth(sweep(draw(count)))
        assert estimate is not None
        assert estimate.low is not None
        assert estimate.high is not None
        held += estimate.low <= truth <= estimate.high
    assert held >= 85


def test_share_without_trials_is_unknown() -> None:
    assert (Share.of(0, 0).low, Share.of(0, 0).high) == (0.0, 1.0)
    assert Share.of(3, 50).low == pytest.approx(0.0206, abs=1e-4)
