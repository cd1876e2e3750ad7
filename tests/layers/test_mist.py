"""MIST: what is its own."""

import math

import torch

from mistrnn import MIST
from tests.layers.cases import close, small


def test_delays_default_to_eight_powers_of_two() -> None:
    assert MIST(1, 2).delays == (1, 2, 4, 8, 16, 32, 64, 128)
    assert MIST(1, 2, delays=3).delays == (1, 2, 4)
    assert MIST(1, 2, delays=[5, 2]).delays == (5, 2)


def test_parameters_stack_a_r_and_h() -> None:
    layer = MIST(3, 5, delays=4)
    assert layer.weight_ih_l0.shape == (4 + 5 + 5, 3)
    assert layer.weight_hh_l0.shape == (4 + 5 + 5, 5)
    assert layer.bias_l0.shape == (4 + 5 + 5,)


def test_two_steps_of_one_unit_worked_by_hand() -> None:
    layer = MIST(1, 1, delays=[1, 2], dtype=torch.float64)
    with torch.no_grad():
        layer.weight_ih_l0.copy_(torch.tensor([[0.1], [0.2], [0.3], [0.4]]))  # a_1, a_2, r, h
        layer.weight_hh_l0.copy_(torch.tensor([[0.5], [-0.6], [0.7], [0.8]]))
        layer.bias_l0.copy_(torch.tensor([0.01, 0.02, 0.03, 0.04]))
    output, _ = layer(torch.tensor([[[1.0]], [[2.0]]], dtype=torch.float64))
    first = math.tanh(0.4 * 1 + 0.04)  # no history yet
    a1, a2 = math.exp(0.1 * 2 + 0.5 * first + 0.01), math.exp(0.2 * 2 - 0.6 * first + 0.02)
    r = 1 / (1 + math.exp(-(0.3 * 2 + 0.7 * first + 0.03)))
    mixed = a1 / (a1 + a2) * first  # the state two steps ago is zero
    second = math.tanh(0.4 * 2 + 0.8 * r * mixed + 0.04)
    torch.testing.assert_close(output.flatten().tolist(), [first, second], rtol=1e-7, atol=0)


def test_state_is_the_last_longest_delay_of_outputs_oldest_first() -> None:
    layer = small("mist", delays=[1, 4])
    output, (h, history) = layer(torch.randn(9, 2, 3, dtype=torch.float64))
    close(h[0], output[-1])
    close(history[0], output[-4:])
    short, (h, history) = layer(torch.randn(3, 2, 3, dtype=torch.float64))
    close(h[0], short[-1])
    close(history[0], torch.cat([torch.zeros(1, 2, 6, dtype=torch.float64), short]))


def test_a_delay_is_a_direct_connection() -> None:
    """With all the mixture on delay 4, a step sees nothing but the state 4 steps before (and its own input)."""
    layer = small("mist", delays=[1, 4])
    with torch.no_grad():
        layer.weight_ih_l0[:2] = 0
        layer.weight_hh_l0[:8] = 0  # neither mixture nor reset gate look at the state one step ago
        layer.bias_l0[:2] = torch.tensor([-1e4, 1e4])
    input = torch.randn(9, 1, 3, dtype=torch.float64, requires_grad=True)
    output, _ = layer(input)
    (gradient,) = torch.autograd.grad(output[8].sum(), input)
    reached = gradient.abs().sum(-1).flatten() > 0
    assert reached.tolist() == [True, False, False, False, True, False, False, False, True]


def test_long_delays_cost_no_parameters() -> None:
    assert MIST(1, 8, delays=[1, 4096]).parameter_count() == MIST(1, 8, delays=[1, 2]).parameter_count()
    output, (_, history) = MIST(1, 8, delays=[1, 4096])(torch.randn(3, 2, 1))
    assert output.isfinite().all()
    assert history.shape == (1, 4096, 2, 8)
