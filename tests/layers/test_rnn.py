"""Simple RNN: what is its own (equality with torch.nn.RNN is in test_torch_twin.py)."""

import math

import torch

from mistrnn import RNN


def test_two_steps_of_one_unit_worked_by_hand() -> None:
    layer = RNN(1, 1, dtype=torch.float64)
    with torch.no_grad():
        layer.weight_ih_l0.fill_(0.5)
        layer.weight_hh_l0.fill_(-2.0)
        layer.bias_ih_l0.fill_(0.3)
        layer.bias_hh_l0.fill_(-0.2)
    output, state = layer(torch.tensor([[[1.0]], [[3.0]]], dtype=torch.float64))
    first = math.tanh(0.5 * 1 + 0.1)
    second = math.tanh(0.5 * 3 - 2 * first + 0.1)
    torch.testing.assert_close(output.flatten().tolist(), [first, second])
    torch.testing.assert_close(state.flatten().tolist(), [second])


def test_relu_worked_by_hand() -> None:
    layer = RNN(1, 1, nonlinearity="relu", single_bias=True, dtype=torch.float64)
    with torch.no_grad():
        layer.weight_ih_l0.fill_(0.5)
        layer.weight_hh_l0.fill_(-2.0)
        layer.bias_l0.fill_(0.1)
    output, _ = layer(torch.tensor([[[1.0]], [[3.0]], [[1.0]]], dtype=torch.float64))
    torch.testing.assert_close(output.flatten().tolist(), [0.6, 0.4, 0.0])
