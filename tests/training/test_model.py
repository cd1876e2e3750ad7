"""The readout of a model reads the last output of its layer, wherever it takes it from; of the second direction, the first."""

import pytest
import torch

from mistrnn.layers import LAYERS
from mistrnn.training.model import Model


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("num_layers", [1, 2])
@pytest.mark.parametrize("name", LAYERS)
def test_scores_and_gradients_are_those_of_the_last_output(name: str, num_layers: int, bidirectional: bool) -> None:
    torch.manual_seed(0)
    layer = LAYERS[name](3, 8, num_layers=num_layers, bidirectional=bidirectional)
    model = Model(layer, output_size=5, every_step=False)
    x, dropout = torch.randn(7, 4, 3), torch.rand(7, 4, layer.output_size)

    output, _ = layer(x)
    ends = torch.cat([output[-1, :, :8], output[0, :, 8:]], dim=-1)
    expected = model.readout(ends * dropout[-1])
    scores, _ = model(x, dropout=dropout)
    torch.testing.assert_close(scores, expected)

    parameters = list(model.parameters())
    for own, wanted in zip(
        torch.autograd.grad(scores.square().sum(), parameters),
        torch.autograd.grad(expected.square().sum(), parameters),
        strict=True,
    ):
        torch.testing.assert_close(own, wanted)
