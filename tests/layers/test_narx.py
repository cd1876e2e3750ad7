"""Simple NARX: what is its own."""

import torch

from mistrnn import NARX, RNN
from tests.layers.cases import close, randomised


def test_delays_default_to_one_to_eight() -> None:
    assert NARX(1, 2).delays == (1, 2, 3, 4, 5, 6, 7, 8)
    assert NARX(1, 2, delays=[7, 2]).delays == (7, 2)


def test_parameters_hold_a_block_per_delay_in_order() -> None:
    """Only the block of delay 3, the second, is not zero: h_3 is the first step that sees h_0."""
    layer = NARX(1, 2, delays=[1, 3], dtype=torch.float64)
    assert layer.weight_hh_l0.shape == (2, 4)
    with torch.no_grad():
        layer.weight_hh_l0[:, :2] = 0
    input = torch.randn(5, 1, 1, dtype=torch.float64, requires_grad=True)
    output, _ = layer(input)
    reached = [bool(torch.autograd.grad(output[t].sum(), input, retain_graph=True)[0][0].any()) for t in range(5)]
    assert reached == [True, False, False, True, False]


def test_one_delay_of_one_step_is_the_simple_rnn() -> None:
    narx, rnn = randomised(NARX(3, 5, delays=1, dtype=torch.float64)), RNN(3, 5, dtype=torch.float64)
    rnn.load_state_dict(narx.state_dict())
    input = torch.randn(8, 2, 3, dtype=torch.float64)
    close(narx(input)[0], rnn(input)[0])
