"""Ridge regression from many features to few targets, with the penalty chosen on held-out cases.

All arithmetic is in float64. Held-out scores are exact and cost no further fit: with K = Z Z^T + penalty * I and a = K^-1 Y,
the residuals of a group g that is left out are (K^-1)_gg^-1 a_g.

N cases, F features, K targets.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

PENALTIES = tuple(10.0**exponent for exponent in torch.linspace(-4, 4, 17).tolist())
"""Candidates, in units of the mean squared length of a case."""
MOST_CASES = 2000
"""Cases on which the penalty is chosen; more make no better choice."""
INTERCEPT = 1e3
"""The constant feature, in units of the mean length of a case: so large that its weight is hardly penalised."""


@dataclass(frozen=True)
class Ridge:
    """A fitted linear map."""

    weight: Tensor
    """[K, F]"""
    bias: Tensor
    """[K]"""
    penalty: float
    held_out: Tensor
    """[n, K] scores of cases that were left out of the fit."""
    chosen: Tensor
    """[n] which cases these are."""


def fit_ridge(
    features: Tensor, targets: Tensor, weights: Tensor, groups: Tensor | None, generator: torch.Generator
) -> Ridge:
    """Return the weighted ridge regression with an intercept whose penalty has the lowest squared error on held-out cases.

    Args:
        features: [N, F].
        targets: [N, K] float64.
        weights: [N] positive.
        groups: [N] int64; groups are left out as a whole. Each case by itself if None.
        generator: draws the cases that the penalty is chosen on where there are many.
    """
    count = len(features)
    if groups is None:
        chosen = torch.randperm(count, generator=generator)[:MOST_CASES].sort().values
    else:
        chosen = _whole_groups(groups, generator)
    mean = torch.einsum("n,nf->f", weights, features.double()) / weights.sum()
    deviation = (torch.einsum("n,nf->f", weights, (features - mean).square()) / weights.sum()).sqrt()
    # A feature that hardly varies would be all noise at unit deviation.
    scale = deviation.clamp_min(float(deviation.mean()) * 0.1 + 1e-12)
    z = (features - mean) / scale
    few = _Held(z[chosen], targets[chosen], weights[chosen], None if groups is None else groups[chosen])
    errors = [few.error(penalty) for penalty in PENALTIES]
    penalty = PENALTIES[min(range(len(errors)), key=errors.__getitem__)]
    weight, bias = _solved(z, targets, weights, penalty)
    return Ridge((weight / scale).contiguous(), bias - weight @ (mean / scale), penalty, few.scores(penalty), chosen)


def _whole_groups(groups: Tensor, generator: torch.Generator) -> Tensor:
    """Return the cases of as many groups as fit."""
    groups_of_cases = _members(groups)
    found: list[Tensor] = []
    for number in torch.randperm(len(groups_of_cases), generator=generator).tolist():
        own = groups_of_cases[number]
        if found and sum(map(len, found)) + len(own) > MOST_CASES:
            break
        found.append(own)
    return torch.cat(found).sort().values


def _members(groups: Tensor) -> list[Tensor]:
    """Return the cases of each group."""
    return [(groups == name).nonzero().flatten() for name in sorted(set(groups.tolist()))]


class _Held:
    """Scores of cases, or of groups of them, that are left out one after another."""

    def __init__(self, z: Tensor, targets: Tensor, weights: Tensor, groups: Tensor | None) -> None:
        self._targets, self._weights = targets, weights
        self._root = weights.sqrt().unsqueeze(1)
        gram = z @ z.T
        self._length = float(gram.diagonal().mean()) or 1.0
        gram = (gram + self._length * INTERCEPT**2) * (self._root @ self._root.T)
        self._values, self._vectors = torch.linalg.eigh(gram)
        self._rotated = self._vectors.T @ (self._root * targets)
        members = [] if groups is None else _members(groups)
        # With a single group nothing would be left to learn from.
        self._groups: Sequence[Tensor] | None = members if len(members) > 1 else None

    def scores(self, penalty: float) -> Tensor:
        """Return the held-out scores [n, K]."""
        inverse = 1 / (self._values.clamp_min(0) + penalty * self._length)
        alpha = self._vectors @ (inverse.unsqueeze(1) * self._rotated)
        if self._groups is None:
            residuals = alpha / (self._vectors.square() @ inverse).unsqueeze(1)
        else:
            residuals = torch.empty_like(alpha)
            for own in self._groups:
                rows = self._vectors[own]
                residuals[own] = torch.linalg.solve((rows * inverse) @ rows.T, alpha[own])
        found: Tensor = self._targets - residuals / self._root
        return found

    def error(self, penalty: float) -> float:
        """Return the mean squared error of the held-out scores."""
        squares = (self.scores(penalty) - self._targets).square().sum(1)
        return float((self._weights * squares).sum() / self._weights.sum())


def _solved(z: Tensor, targets: Tensor, weights: Tensor, penalty: float) -> tuple[Tensor, Tensor]:
    """Return weight [K, F] and bias [K]: from N equations where there are fewer cases than features, else from F."""
    root, total = weights.sqrt().unsqueeze(1), weights.sum()
    length = float(z.square().sum(1).mean()) or 1.0
    mean = (weights.unsqueeze(1) * z).sum(0) / total
    average = (weights.unsqueeze(1) * targets).sum(0) / total
    rows, goals = root * (z - mean), root * (targets - average)
    few = len(z) <= z.size(1)
    gram = rows @ rows.T if few else rows.T @ rows
    gram.diagonal().add_(penalty * length)
    solution = torch.cholesky_solve(goals if few else rows.T @ goals, torch.linalg.cholesky(gram))
    weight = solution.T @ rows if few else solution.T
    return weight, average - weight @ mean


def temperature(scores: Tensor, classes: Tensor, weights: Tensor) -> float:
    """Return the factor of the scores [n, K] for which their softmax predicts the classes [n] best.

    The loss is the cross-entropy with label smoothing 1/n: otherwise the factor of scores without a mistake has no limit.
    """
    factors = torch.logspace(-1, 2.5, 71, dtype=scores.dtype)
    smoothing = 1 / len(scores)
    logs = (factors.view(-1, 1, 1) * scores).log_softmax(-1)  # [factors, n, K]
    right = logs.gather(-1, classes.view(1, -1, 1).expand(len(factors), -1, 1)).squeeze(-1)
    losses = -(((1 - smoothing) * right + smoothing * logs.mean(-1)) * weights).sum(-1)
    return float(factors[losses.argmin()])
