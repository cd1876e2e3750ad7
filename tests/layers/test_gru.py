"""GRU: what is its own (equality with torch.nn.GRU is in test_torch_twin.py)."""

import math

import torch

from mistrnn import GRU


def test_one_step_of_one_unit_worked_by_hand() -> None:
    layer = GRU(1, 1, dtype=torch.float64)
    with torch.no_grad():
        layer.weight_ih_l0.copy_(torch.tensor([[0.1], [0.2], [0.3]]))  # r, z, n
        layer.weight_hh_l0.copy_(torch.tensor([[0.4], [0.5], [0.6]]))
        layer.bias_ih_l0.copy_(torch.tensor([0.01, 0.5, 0.03]))
        layer.bias_hh_l0.copy_(torch.tensor([0.0, -0.48, 0.7]))
    output, _ = layer(torch.tensor([[[2.0]]], dtype=torch.float64), torch.tensor([[[-0.5]]], dtype=torch.float64))
    r = 1 / (1 + math.exp(-(0.2 - 0.2 + 0.01)))
    z = 1 / (1 + math.exp(-(0.4 - 0.25 + 0.02)))
    n = math.tanh(0.6 + 0.03 + r * (-0.3 + 0.7))
    torch.testing.assert_close(output.item(), (1 - z) * n - 0.5 * z, rtol=1e-7, atol=0)


def test_hidden_bias_comes_and_goes_with_the_other() -> None:
    assert GRU(3, 4, single_bias=True).bias_hn_l0.shape == (4,)
    assert not hasattr(GRU(3, 4, single_bias=True, bias=False), "bias_hn_l0")
