"""The weight-gradient kernel, its own source run on a CPU by the emulator: sizes, layouts, delays, ways to multiply."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from mistrnn.kernels.cuda import heuristics
from mistrnn.kernels.cuda.wgrad import launch as wgrad
from mistrnn.kernels.cuda.wgrad.launch import weight_gradient
from mistrnn.kernels.cuda.wgrad.variant import WarpgroupWgrad, WarpWgrad, WgradVariant
from tests.kernels.emulator import emulate, on_linux
from tests.layers.cases import seeded
from tests.tolerance import relative_error

pytestmark = on_linux

ROUNDINGS = {1: 3e-2, 2: 3e-5, 3: 2e-6}
"""Largest relative error against float64 at these sizes, by splits."""

WAYS: dict[str, tuple[bool, tuple[int, int], tuple[int, int]] | None] = {
    "chosen": None,
    "plain": (False, (2, 2), (1, 3)),
    "transposed": (True, (2, 1), (2, 2)),
    "three tiles": (False, (1, 1), (3, 5)),
}
"""Whether the result is transposed, warps along M and N, and tiles per warp, where single warps multiply."""

WARPGROUP_WAYS: dict[str, tuple[bool, int, int] | None] = {
    "warpgroups chosen": None,
    "one warpgroup": (False, 1, 5),
    "one warpgroup transposed": (True, 1, 3),
    "two warpgroups": (True, 2, 4),
    "three warpgroups": (False, 3, 9),
}
"""... and warpgroups and tiles where warpgroups multiply."""

SIZES_OF_WEIGHTS = [(1, 1, 1), (40, 27, 3), (70, 35, 120)]
"""Rows, columns and steps: with five sequences, the longest have two split-K ranges that end within a chunk."""


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("splits", [1, 2, 3])
@pytest.mark.parametrize(("rows", "columns", "steps"), SIZES_OF_WEIGHTS)
def test_weight_gradient_of_any_size_and_layout_is_accurate(
    way: str, splits: int, rows: int, columns: int, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = weight_gradient_error(monkeypatch, way, splits, (2, steps, 5, rows, columns), (0,))
    assert error <= ROUNDINGS[splits]


@pytest.mark.parametrize("way", WARPGROUP_WAYS)
@pytest.mark.parametrize("splits", [1, 2])
@pytest.mark.parametrize(("rows", "columns", "steps"), [*SIZES_OF_WEIGHTS, (130, 201, 11)])
@pytest.mark.parametrize("trials", [1, 3])
def test_weight_gradient_with_warpgroups_is_accurate(
    way: str, splits: int, rows: int, columns: int, steps: int, trials: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = weight_gradient_error(monkeypatch, way, splits, (trials, steps, 5, rows, columns), (0,))
    assert error <= ROUNDINGS[splits]


@pytest.mark.parametrize(
    ("way", "splits"),
    [
        ("chosen", 2),
        ("chosen", 3),
        ("transposed", 2),
        ("transposed", 3),
        ("warpgroups chosen", 2),
        ("one warpgroup transposed", 2),
    ],
)
@pytest.mark.parametrize(("delays", "steps"), [((1,), 4), ((1, 2, 3), 9), ((2, 6, 1), 2), (tuple(range(1, 17)), 20)])
def test_weight_gradient_with_delays_reads_initial_states(
    way: str, delays: tuple[int, ...], steps: int, splits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert weight_gradient_error(monkeypatch, way, splits, (2, steps, 3, 11, 7), delays) <= ROUNDINGS[splits]


@pytest.mark.parametrize("way", ["chosen", "warpgroups chosen", "one warpgroup", "two warpgroups"])
def test_weight_gradient_of_a_diverged_trial_leaves_the_bits_of_the_others(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    emulate(monkeypatch, 2)
    go(monkeypatch, way, 2)
    with seeded(4):
        dz, read = torch.randn(3, 7, 5, 20), torch.randn(3, 7, 5, 30)
    broken = dz.clone()
    broken[1] = float("nan")
    whole, found = (weight_gradient(wgrad_call(2, each), each, read) for each in (dz, broken))
    assert torch.equal(found[::2], whole[::2])
    assert found[1].isnan().all()


def go(patch: pytest.MonkeyPatch, way: str, splits: int, delays: bool = False) -> None:
    """Compute weight gradients in one of the ways."""
    variant: WgradVariant
    if way in WARPGROUP_WAYS:
        if by_warpgroups := WARPGROUP_WAYS[way]:
            transposed, warpgroups, warpgroup_tiles = by_warpgroups
            variant = WarpgroupWgrad(splits, delays, 90, warpgroups, warpgroup_tiles)
            patch.setattr(wgrad, "choose_wgrad", lambda *_: (transposed, variant))
        else:
            assert isinstance(wgrad.choose_wgrad(splits, 1, 1, delays, 90)[1], WarpgroupWgrad)
    elif by_warps := WAYS[way]:
        transposed, warps, tiles = by_warps
        variant = WarpWgrad(splits, delays, 90, warps, tiles)
        patch.setattr(wgrad, "choose_wgrad", lambda *_: (transposed, variant))
    else:  # as on a GPU without wgmma
        patch.setattr(wgrad, "choose_wgrad", lambda *given: heuristics.choose_wgrad(*given[:-1], 80))


def wgrad_call(splits: int, dz: Tensor) -> Any:
    """Return the attributes of a call that a weight gradient reads."""
    trials, steps, batch, _ = dz.shape
    return SimpleNamespace(settings=SimpleNamespace(splits=splits), E=trials, T=steps, B=batch, x=dz)


def weight_gradient_error(
    patch: pytest.MonkeyPatch, way: str, splits: int, sizes: tuple[int, ...], delays: tuple[int, ...]
) -> float:
    """Return the relative error against float64."""
    emulate(patch, splits)
    go(patch, way, splits, len(delays) > 1)
    trials, steps, batch, rows, columns = sizes
    with seeded(3):
        dz = torch.randn(trials, steps, batch, rows + 3)[..., 1 : rows + 1]  # unaligned rows
        before = torch.randn(trials, max(delays), batch, columns)
        read = torch.randn(trials, steps, batch, columns)
    found = weight_gradient(wgrad_call(splits, dz), dz, read, before if any(delays) else None, delays)
    past = torch.cat([before, read], 1).double()
    begins = [max(delays) - delay for delay in delays]
    exact = torch.cat([past[:, begin : begin + steps] for begin in begins], 3).flatten(1, 2)
    return relative_error(found, dz.double().flatten(1, 2).mT @ exact)
