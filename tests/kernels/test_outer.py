"""The GPU kernel of weight gradients, its own source run on a CPU by the emulator: sizes, layouts, delays, ways to multiply."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from mistrnn.kernels import choices, outer
from mistrnn.kernels._outer import OuterOfGroups, OuterOfWarps, OuterVariant
from mistrnn.kernels.outer import weight_gradient
from tests.kernels.emulator import emulate, on_linux
from tests.layers.cases import seeded
from tests.tolerance import relative_error

pytestmark = on_linux

ROUNDINGS = {1: 3e-2, 2: 3e-5, 3: 2e-6}
"""How far from float64 a sum of these sizes may be, by parts."""

WAYS: dict[str, tuple[bool, tuple[int, int], tuple[int, int]] | None] = {
    "chosen": None,
    "plain": (False, (2, 2), (1, 3)),
    "turned": (True, (2, 1), (2, 2)),
    "three tiles": (False, (1, 1), (3, 5)),
}
"""Whether the columns are the tall operand, and warps and their tiles along each, where every warp multiplies alone."""

GROUP_WAYS: dict[str, tuple[bool, int, int] | None] = {
    "groups chosen": None,
    "a group": (False, 1, 5),
    "a group turned": (True, 1, 3),
    "two groups": (True, 2, 4),
    "three groups": (False, 3, 9),
}
"""... and groups and tiles where four warps multiply together."""

SIZES_OF_WEIGHTS = [(1, 1, 1), (40, 27, 3), (70, 35, 120)]
"""Rows, columns and steps: with five sequences, the longest are cut into two ranges, neither of which ends with a chunk."""


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("parts", [1, 2, 3])
@pytest.mark.parametrize(("rows", "columns", "steps"), SIZES_OF_WEIGHTS)
def test_weight_gradients_of_any_size_and_layout_are_exact(
    way: str, parts: int, rows: int, columns: int, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = weight_gradient_error(monkeypatch, way, parts, (2, steps, 5, rows, columns), (0,))
    assert error <= ROUNDINGS[parts]


@pytest.mark.parametrize("way", GROUP_WAYS)
@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize(("rows", "columns", "steps"), [*SIZES_OF_WEIGHTS, (130, 201, 11)])
@pytest.mark.parametrize("trials", [1, 3])
def test_weight_gradients_by_groups_of_warps_are_exact(
    way: str, parts: int, rows: int, columns: int, steps: int, trials: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = weight_gradient_error(monkeypatch, way, parts, (trials, steps, 5, rows, columns), (0,))
    assert error <= ROUNDINGS[parts]


@pytest.mark.parametrize(
    ("way", "parts"),
    [("chosen", 2), ("chosen", 3), ("turned", 2), ("turned", 3), ("groups chosen", 2), ("a group turned", 2)],
)
@pytest.mark.parametrize(("delays", "steps"), [((1,), 4), ((1, 2, 3), 9), ((2, 6, 1), 2), (tuple(range(1, 17)), 20)])
def test_weight_gradients_at_delays_read_the_states_before_the_first_step(
    way: str, delays: tuple[int, ...], steps: int, parts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert weight_gradient_error(monkeypatch, way, parts, (2, steps, 3, 11, 7), delays) <= ROUNDINGS[parts]


@pytest.mark.parametrize("way", ["chosen", "groups chosen", "a group", "two groups"])
def test_weight_gradients_of_a_broken_trial_leave_the_others_bits_alone(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    emulate(monkeypatch, 2)
    go(monkeypatch, way, 2)
    with seeded(4):
        dz, read = torch.randn(3, 7, 5, 20), torch.randn(3, 7, 5, 30)
    broken = dz.clone()
    broken[1] = float("nan")
    whole, found = (weight_gradient(outer_run(2, each), each, read) for each in (dz, broken))
    assert torch.equal(found[::2], whole[::2])
    assert found[1].isnan().all()


def go(patch: pytest.MonkeyPatch, way: str, parts: int, delays: bool = False) -> None:
    """Let weight gradients be computed in one of the ways."""
    variant: OuterVariant
    if way in GROUP_WAYS:
        if by_groups := GROUP_WAYS[way]:
            turned, groups, group_tiles = by_groups
            variant = OuterOfGroups(parts, delays, 90, groups, group_tiles)
            patch.setattr(outer, "outer_choice", lambda *_: (turned, variant))
        else:
            assert isinstance(outer.outer_choice(parts, 1, 1, delays, 90)[1], OuterOfGroups)
    elif alone := WAYS[way]:
        turned, warps, tiles = alone
        variant = OuterOfWarps(parts, delays, 90, warps, tiles)
        patch.setattr(outer, "outer_choice", lambda *_: (turned, variant))
    else:  # as on a GPU that has no groups
        patch.setattr(outer, "outer_choice", lambda *given: choices.outer_choice(*given[:-1], 80))


def outer_run(parts: int, dz: Tensor) -> Any:
    """As much of a run as a weight gradient asks for."""
    trials, steps, batch, _ = dz.shape
    return SimpleNamespace(settings=SimpleNamespace(parts=parts), E=trials, T=steps, B=batch, x=dz)


def weight_gradient_error(
    patch: pytest.MonkeyPatch, way: str, parts: int, sizes: tuple[int, ...], delays: tuple[int, ...]
) -> float:
    """How far the kernel's sum is from that in float64."""
    emulate(patch, parts)
    go(patch, way, parts, len(delays) > 1)
    trials, steps, batch, rows, columns = sizes
    with seeded(3):
        dz = torch.randn(trials, steps, batch, rows + 3)[..., 1 : rows + 1]  # rows that begin anywhere
        before = torch.randn(trials, max(delays), batch, columns)
        read = torch.randn(trials, steps, batch, columns)
    found = weight_gradient(outer_run(parts, dz), dz, read, before if any(delays) else None, delays)
    past = torch.cat([before, read], 1).double()
    begins = [max(delays) - delay for delay in delays]
    exact = torch.cat([past[:, begin : begin + steps] for begin in begins], 3).flatten(1, 2)
    return relative_error(found, dz.double().flatten(1, 2).mT @ exact)
