"""Appendix A: the full derivative is the sum over all paths, and each path is bounded by its edges."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from mistrnn.analysis import count_paths, edges_of, ordered_derivative
from mistrnn.kernels.cell import Cell, Lags, RowBlock
from mistrnn.layers import MIST, RNN, RecurrentLayer
from mistrnn.layers.recurrence import StateHistory, Step, linear
from tests.layers.cases import every_layer, randomised, seeded, small


def sequence(steps: int = 14) -> Tensor:
    with seeded(2):
        return torch.randn(steps, 3).double()


@every_layer
@pytest.mark.parametrize("tau", [1, 2, 5, 8])
def test_sum_over_paths_equals_autograd(name: str, tau: int) -> None:
    with seeded(1):
        layer = small(name)
    found = ordered_derivative(layer, sequence(), tau)
    torch.testing.assert_close(found.total, found.full, rtol=1e-10, atol=1e-12)
    assert found.full.norm() > 0
    edges = {"mist": [1, 3, 4], "narx": [1, 3, 4]}.get(name, [1])
    assert len(found.paths) == count_paths(edges, tau, len(layer.cell.state))


@every_layer
def test_full_derivative_is_that_of_a_disturbed_state(name: str) -> None:
    """By differences: the layer runs to t - tau, its newest h is moved a little, and it runs on."""
    with seeded(1):
        layer = small(name)
    input, t, tau, small_step = sequence(), 12, 4, 1e-6

    def ending(disturbance: Tensor) -> Tensor:
        _, state = layer(input[: t - tau + 1])
        parts = list(state) if isinstance(state, tuple) else [state]
        parts[0] = parts[0].clone()
        parts[0].reshape(-1, 6)[-1] += disturbance
        return layer(input[t - tau + 1 : t + 1], tuple(parts) if len(parts) > 1 else parts[0])[0][-1]

    moves = small_step * torch.eye(6, dtype=torch.float64)
    with torch.no_grad():
        columns = [(ending(move) - ending(-move)) / (2 * small_step) for move in moves]
    found = ordered_derivative(layer, input, tau, t)
    torch.testing.assert_close(found.full, torch.stack(columns, dim=1), rtol=1e-6, atol=1e-9)


@every_layer
def test_options_are_part_of_the_factors(name: str) -> None:
    with seeded(1):
        layer = small(name, zoneout=0.3, recurrent_dropout=0.2, layer_norm=True).eval()
    found = ordered_derivative(layer, sequence(), 5)
    torch.testing.assert_close(found.total, found.full, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", ["mist", "narx"])
def test_zoneout_is_an_edge_of_its_own_beside_longer_delays(name: str) -> None:
    with seeded(1):
        layer = small(name, delays=[2, 3], zoneout=0.3).eval()
    found = ordered_derivative(layer, sequence(), 5)
    torch.testing.assert_close(found.total, found.full, rtol=1e-10, atol=1e-12)
    assert len(found.paths) == count_paths([1, 2, 3], 5)
    assert found.paths[-1].edges == 5


def own_step(weights: Any, dropout: Tensor | None, delays: Any) -> Step:
    def step(x: Tensor, past: StateHistory) -> tuple[Tensor, ...]:
        recurrent = [linear(past(d), w) for d, w in zip((1, 4), weights["weight_hh"].split(6), strict=True)]
        f, n = (x + torch.cat(recurrent, -1)).split(6, -1)
        return (torch.sigmoid(f) * torch.tanh(n),)

    return step


def own_step_of_two(weights: Any, dropout: Tensor | None, delays: Any) -> Step:
    own = own_step(weights, dropout, delays)

    def step(x: Tensor, past: StateHistory) -> tuple[Tensor, ...]:
        (h,) = own(x, past)
        return h + past(2, component=1), torch.sin(h)

    return step


class Own(RecurrentLayer):
    """A layer as in the guide on adding one: a gate reads the last state, and the new one that of 4 steps ago."""

    cell = Cell("own", own_step, row_blocks=(RowBlock("f"), RowBlock("n")), lags=Lags.DELAYS)
    delays = (1, 5)  # the memory is longer than the delays that the step reads


class OwnWithTwo(Own):
    """A layer with two vectors, the second of which is read at one delay only."""

    cell = replace(Own.cell, step=own_step_of_two, state=("h", "m"))


@pytest.mark.parametrize(("kind", "edges"), [(Own, (1, 4)), (OwnWithTwo, (1, 2, 4))])
@pytest.mark.parametrize("zoneout", [0.0, 0.3])
def test_a_users_layer_has_the_edges_that_it_reads(kind: type[Own], edges: tuple[int, ...], zoneout: float) -> None:
    with seeded(1):
        layer = randomised(kind(3, 6, zoneout=zoneout, dtype=torch.float64)).eval()
    assert edges_of(layer) == edges
    for tau in (1, 4, 5, 8):
        found = ordered_derivative(layer, sequence(), tau)
        torch.testing.assert_close(found.total, found.full, rtol=1e-10, atol=1e-12)
        assert len(found.paths) == count_paths(edges, tau, len(layer.cell.state))


def test_a_subclass_with_a_step_of_its_own_has_its_own_edges() -> None:
    def step(weights: Any, dropout: Tensor | None, delays: Any) -> Step:
        return lambda x, past: (torch.tanh(x[:, -6:] + past(2) + past(3)),)

    class Summing(MIST):
        cell = replace(MIST.cell, step=step)

    with seeded(1):
        layer = randomised(Summing(3, 6, delays=[1, 4], dtype=torch.float64))
    assert edges_of(layer) == (2, 3)
    found = ordered_derivative(layer, sequence(), 5)
    torch.testing.assert_close(found.total, found.full, rtol=1e-10, atol=1e-12)


@every_layer
def test_each_path_is_bounded_by_its_edges(name: str) -> None:
    with seeded(1):
        found = ordered_derivative(small(name), sequence(), 7)
    for path in found.paths:
        assert path.norm <= path.bound * (1 + 1e-12)
        assert path.bound <= found.bound(path) * (1 + 1e-12)
        assert found.bound(path) == found.largest_factor**path.edges
        assert path.times[0] == 6
        assert path.times[-1] == 13
        assert len(path.components) == len(path.times)


def test_a_simple_rnn_has_one_path_with_the_factors_of_the_textbook() -> None:
    with seeded(1):
        layer = small("rnn")
    input = sequence()
    found = ordered_derivative(layer, input, 3)
    h, weight = layer(input)[0], layer.weight_hh_l0
    expected = torch.eye(6, dtype=torch.float64)
    for s in (11, 12, 13):
        expected = (1 - h[s] ** 2).unsqueeze(1) * weight @ expected
    (path,) = found.paths
    assert path.times == (10, 11, 12, 13)
    torch.testing.assert_close(path.derivative, expected)


def test_mist_has_a_path_of_one_edge_at_its_delays() -> None:
    with seeded(1):
        layer = small("mist", delays=[1, 2, 4, 8])
    found = ordered_derivative(layer, sequence(), 8)
    assert found.paths[0].times == (5, 13)
    assert found.paths[0].edges == 1
    assert [path.edges for path in found.paths] == sorted(path.edges for path in found.paths)


def test_lstm_paths_run_through_h_and_c() -> None:
    with seeded(1):
        found = ordered_derivative(small("lstm"), sequence(), 3)
    assert {path.components for path in found.paths} == {("h", a, b, "h") for a in ("h", "c") for b in ("h", "c")}


def test_a_long_single_path_is_followed() -> None:
    layer = RNN(3, 2, dtype=torch.float64)
    found = ordered_derivative(layer, sequence(1_200), 1_100)
    assert [path.edges for path in found.paths] == [1_100]


def test_bad_input_is_named() -> None:
    layer, input = RNN(3, 4).double(), sequence()
    cases: list[tuple[RecurrentLayer, Any, dict[str, Any], str]] = [
        (layer, input, {"tau": 0}, "expected tau to be a whole number >= 1, got 0"),
        (layer, input, {"tau": 14}, "expected more than tau = 14 steps, got 14"),
        (layer, input, {"tau": 3, "t": 14}, "expected 3 <= t < 14, because t - tau and t are steps of it"),
        (layer, input.unsqueeze(1), {"tau": 3}, r"expected one sequence \[T, 3\] in torch.float64, got \[14, 1, 3\]"),
        (layer, input.float(), {"tau": 3}, "in torch.float64, got .* in torch.float32"),
        (layer, input, {"tau": 3, "t": 8.5}, "expected 3 <= t < 14, because t - tau and t are steps of it"),
        (RNN(3, 4, 2).double(), input, {"tau": 3}, "expected one layer in one direction, got RNN"),
        (small("narx", delays=[2, 4]), input, {"tau": 3}, r"expected delays that add up to tau = 3, got \[2, 4\]"),
        (MIST(3, 4).double(), input, {"tau": 12, "max_paths": 100}, "expected at most 100 paths, and there are"),
        (RNN(3, 4, zoneout=0.1).double(), input, {"tau": 3}, "expected RNN in evaluation mode"),
    ]
    for wrong, given, options, message in cases:
        with pytest.raises(ValueError, match=message):
            ordered_derivative(wrong, given, **options)
    with pytest.raises(TypeError, match="expected a layer of mistrnn, such as from_torch makes"):
        ordered_derivative(torch.nn.LSTM(3, 4), input, 3)  # type: ignore[arg-type]
    layer.forward = lambda *arguments, **options: None  # type: ignore[assignment, method-assign]
    with pytest.raises(TypeError, match="ordered_derivative: expected a layer with the forward of mistrnn"):
        ordered_derivative(layer, input, 3)


@pytest.mark.parametrize("zoneout", [np.float32(0.25), torch.tensor(0.25)], ids=["numpy", "torch"])
def test_zoneout_may_be_any_number(zoneout: Any) -> None:
    layer, input = small("mist", delays=[2, 3]).eval(), sequence()
    layer.zoneout = zoneout
    assert edges_of(layer) == (1, 2, 3)
    found = ordered_derivative(layer, input, 5)
    torch.testing.assert_close(found.total, found.full)
