"""Ridge regression against its definition, solved again for each held-out part."""

import pytest
import torch
from torch import Tensor

from mistrnn.training import ridge
from mistrnn.training.ridge import fit_ridge, temperature


def problem(cases: int, features: int, targets: int = 3) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(cases)
    x = torch.rand(cases, features, generator=generator, dtype=torch.float64)
    y = x[:, :targets] * 4 + torch.randn(cases, targets, generator=generator, dtype=torch.float64) + 7
    weights = torch.rand(cases, generator=generator, dtype=torch.float64) + 0.5
    return x, y, weights


def held_out_by_definition(x: Tensor, y: Tensor, weights: Tensor, groups: Tensor, fit: ridge.Ridge) -> Tensor:
    """Return the scores of each group from a fit to all others, with the same scaling of the features."""
    mean = (weights[:, None] * x).sum(0) / weights.sum()
    deviation = ((weights[:, None] * (x - mean).square()).sum(0) / weights.sum()).sqrt()
    z = (x - mean) / deviation.clamp_min(float(deviation.mean()) * 0.1)
    amount = fit.penalty * float(z.square().sum(1).mean())
    found = torch.empty_like(y)
    for name in set(groups.tolist()):
        out = groups == name
        w, a, b = weights[~out], z[~out], y[~out]
        centre, average = (w @ a) / w.sum(), (w @ b) / w.sum()
        a, b = a - centre, b - average
        weight = torch.linalg.solve((a.T * w) @ a + amount * torch.eye(a.size(1)), (a.T * w) @ b)
        found[out] = (z[out] - centre) @ weight + average
    return found


@pytest.mark.parametrize("features", [6, 80])
@pytest.mark.parametrize("grouped", [False, True])
def test_held_out_scores_are_those_of_fits_without_the_cases(features: int, grouped: bool) -> None:
    x, y, weights = problem(30, features)
    groups = torch.arange(30) // 5 if grouped else None
    fit = fit_ridge(x, y, weights, groups, torch.Generator())
    assert torch.equal(fit.chosen, torch.arange(30))
    wanted = held_out_by_definition(x, y, weights, torch.arange(30) if groups is None else groups, fit)
    torch.testing.assert_close(fit.held_out, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("features", [6, 80])
def test_fit_minimises_the_penalised_error(features: int) -> None:
    x, y, weights = problem(40, features)
    fit = fit_ridge(x, y, weights, None, torch.Generator())
    residuals = x @ fit.weight.T + fit.bias - y
    # The intercept is free of any penalty: the weighted residuals sum to zero.
    torch.testing.assert_close(weights @ residuals, torch.zeros(3, dtype=torch.float64), rtol=0, atol=1e-8)
    # The gradient of the error is the negative of the penalty's, parallel to the weights of the scaled features.
    mean = (weights[:, None] * x).sum(0) / weights.sum()
    deviation = ((weights[:, None] * (x - mean).square()).sum(0) / weights.sum()).sqrt()
    z = (x - mean) / deviation
    amount = fit.penalty * float(z.square().sum(1).mean())
    torch.testing.assert_close((z.T * weights) @ residuals, -amount * (fit.weight * deviation).T, rtol=1e-6, atol=1e-8)


def test_penalty_has_the_lowest_held_out_error_of_all() -> None:
    x, y, weights = problem(30, 50)
    few = ridge._Held(x - x.mean(0), y, weights, None)
    errors = {penalty: few.error(penalty) for penalty in ridge.PENALTIES}
    noise = torch.randn(30, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    assert fit_ridge(x, noise, weights, None, torch.Generator()).penalty == max(ridge.PENALTIES)  # nothing to learn
    assert fit_ridge(x, y, weights, None, torch.Generator()).penalty < max(ridge.PENALTIES)
    assert len(set(errors.values())) == len(errors)


def test_many_cases_choose_the_penalty_on_some(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ridge, "MOST_CASES", 10)
    x, y, weights = problem(30, 5)
    fit = fit_ridge(x, y, weights, None, torch.Generator().manual_seed(0))
    assert len(fit.chosen) == 10
    groups = torch.arange(30) // 4
    fit = fit_ridge(x, y, weights, groups, torch.Generator().manual_seed(0))
    assert len(fit.chosen) <= 10
    for name in groups[fit.chosen].tolist():
        assert (groups[fit.chosen] == name).sum() == (groups == name).sum()  # whole groups


def test_constant_features_and_a_single_group_are_no_problem() -> None:
    x, y, weights = problem(12, 4)
    x[:, 3] = 0.25
    fit = fit_ridge(x, y, weights, torch.zeros(12, dtype=torch.int64), torch.Generator())
    assert fit.weight.isfinite().all()
    assert fit.held_out.isfinite().all()
    assert fit_ridge(x[:, 3:], y, weights, None, torch.Generator()).weight.abs().max() < 1e-6


def test_temperature_is_that_of_the_scores() -> None:
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(4000, 3, generator=generator, dtype=torch.float64)
    classes = torch.multinomial((5.0 * scores).softmax(-1), 1, generator=generator).squeeze(1)
    assert temperature(scores, classes, torch.ones(4000)) == pytest.approx(5.0, rel=0.15)
