"""Clockwork: what is its own."""

import pytest
import torch

from mistrnn import RNN, Clockwork
from mistrnn.layers.clockwork.reference import periods_of_units, severed
from tests.layers.cases import close, randomised, small


def test_groups_tick_at_their_periods_from_the_first_step_on() -> None:
    layer = small("clockwork", periods=[1, 2, 4], hidden_size=6)
    output, (_, clock) = layer(torch.randn(9, 2, 3, dtype=torch.float64))
    groups = output.unflatten(-1, (3, 2))
    assert output[0].all()  # every group ticks at step 0
    for t in range(1, 9):
        for index, period in enumerate([1, 2, 4]):
            changed = (groups[t, :, index] != groups[t - 1, :, index]).all()
            kept = (groups[t, :, index] == groups[t - 1, :, index]).all()
            assert changed if t % period == 0 else kept
    assert clock.tolist() == [[9, 9]]


def test_severed_weights_start_at_zero_and_stay_there_in_training() -> None:
    layer = Clockwork(3, 8, periods=[1, 2, 4, 8])
    missing = severed(periods_of_units((1, 2, 4, 8), 2, torch.device("cpu")))
    assert missing.sum() == 6 * 4  # the six blocks below the diagonal, 2 x 2 each
    optimiser = torch.optim.SGD(layer.parameters(), lr=0.5, momentum=0.9, weight_decay=0.1)
    for _ in range(5):
        optimiser.zero_grad()
        layer(torch.randn(9, 4, 3))[0].square().sum().backward()
        optimiser.step()
    assert not layer.weight_hh_l0[missing].any()
    assert layer.weight_hh_l0[~missing].all()


def test_severed_weights_have_no_effect_even_if_someone_sets_them() -> None:
    layer = small("clockwork")
    input = torch.randn(9, 2, 3, dtype=torch.float64)
    before = layer(input)[0]
    with torch.no_grad():
        layer.weight_hh_l0[severed(periods_of_units((1, 2, 3), 2, torch.device("cpu")))] = 100.0
    assert torch.equal(layer(input)[0], before)


def test_slow_groups_do_not_see_fast_ones() -> None:
    """Only the fast group reads the input; the slow one must not notice."""
    layer = randomised(Clockwork(1, 4, periods=[1, 2], dtype=torch.float64))
    with torch.no_grad():
        layer.weight_ih_l0[2:] = 0
    a, b = layer(torch.randn(6, 1, 1, dtype=torch.float64))[0], layer(torch.randn(6, 1, 1, dtype=torch.float64))[0]
    assert torch.equal(a[..., 2:], b[..., 2:])
    assert not torch.equal(a[..., :2], b[..., :2])


def test_order_of_periods_is_the_callers() -> None:
    """A list from slow to fast is the same network with its units in another order."""
    fast_first = randomised(Clockwork(2, 4, periods=[1, 3], dtype=torch.float64))
    slow_first = Clockwork(2, 4, periods=[3, 1], dtype=torch.float64)
    order = [2, 3, 0, 1]
    with torch.no_grad():
        slow_first.weight_ih_l0.copy_(fast_first.weight_ih_l0[order])
        slow_first.weight_hh_l0.copy_(fast_first.weight_hh_l0[order][:, order])
        slow_first.bias_l0.copy_(fast_first.bias_l0[order])
    input = torch.randn(7, 2, 2, dtype=torch.float64)
    close(slow_first(input)[0], fast_first(input)[0][..., order])


def test_single_period_of_one_is_the_simple_rnn() -> None:
    clockwork, rnn = randomised(Clockwork(3, 5, periods=1, dtype=torch.float64)), RNN(3, 5, dtype=torch.float64)
    rnn.load_state_dict(clockwork.state_dict())
    input = torch.randn(8, 2, 3, dtype=torch.float64)
    close(clockwork(input)[0], rnn(input)[0])


def test_clock_restarts_with_a_reset_and_stops_at_the_length() -> None:
    layer = Clockwork(1, 8, periods=4, bidirectional=True)
    reset = torch.zeros(6, 3, dtype=torch.bool)
    reset[4, 0] = True
    _, (_, clock) = layer(torch.randn(6, 3, 1), lengths=[6, 3, 0], reset=reset)
    assert clock.tolist() == [[2, 3, 0], [4, 3, 0]]  # forwards, backwards


def test_initial_state_is_read_at_clock_zero() -> None:
    layer = small("clockwork")
    state = (torch.randn(1, 2, 6, dtype=torch.float64), torch.zeros(1, 2, dtype=torch.int64))
    input = torch.randn(3, 2, 3, dtype=torch.float64)
    assert not torch.equal(layer(input, state)[0], layer(input)[0])


@pytest.mark.parametrize("bidirectional", [False, True])
def test_parameter_count_leaves_out_what_is_severed(bidirectional: bool) -> None:
    layer = Clockwork(5, 12, 2, periods=3, bidirectional=bidirectional)
    directions = 2 if bidirectional else 1
    per_direction = 6 * 16 + 12 + 12 * 5  # six blocks of 4 x 4, biases, inputs of the first layer
    second = 6 * 16 + 12 + 12 * 12 * directions
    assert layer.parameter_count() == directions * (per_direction + second)


def test_what_the_fastest_group_alone_has_seen_is_out_of_reach_until_groups_are_scaled() -> None:
    """At odd steps no other group ticks. With N(0, 1/H) the fastest one forgets them, because its own block is small."""

    def reaching_back(layer: Clockwork) -> float:
        """How much of the gradient of the last output arrives at the fastest group's state 54 steps before."""
        with torch.no_grad():
            _, (h, clock) = layer(input[:2])
        h = h.clone().requires_grad_()
        layer(input[2:], (h, clock))[0][-1].sum().backward()
        assert h.grad is not None
        return float(h.grad[0, :, :16].norm() / h.grad.norm())

    torch.manual_seed(0)
    layer, input = Clockwork(3, 128, dtype=torch.float64), torch.randn(56, 4, 3, dtype=torch.float64)
    assert reaching_back(layer) < 1e-18
    layer.scale_groups()
    assert reaching_back(layer) > 1e-9
