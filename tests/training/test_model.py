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
    model = Model(layer, output_size=5, every_step=False, readout_dropout=0.25)
    x, dropped = torch.randn(7, 4, 3), torch.rand(4, layer.output_size) < 0.25

    output, _ = layer(x)
    ends = torch.cat([output[-1, :, :8], output[0, :, 8:]], dim=-1)
    expected = model.readout(ends * ~dropped / 0.75)
    scores, _ = model(x, masks=[dropped])
    torch.testing.assert_close(scores, expected)

    parameters = list(model.parameters())
    for own, wanted in zip(
        torch.autograd.grad(scores.square().sum(), parameters),
        torch.autograd.grad(expected.square().sum(), parameters),
        strict=True,
    ):
        torch.testing.assert_close(own, wanted)


def test_masks_that_are_given_are_those_of_the_readout_and_others_are_drawn() -> None:
    layer = LAYERS["rnn"](3, 8, num_layers=2, dropout=0.5)
    model = Model(layer, output_size=5, every_step=True, readout_dropout=0.5)
    x = torch.randn(7, 4, 3)
    assert [draw.shape(7, 4) for draw in model.mask_draws()] == [(7, 4, 8), (7, 4, 8)]
    everything = torch.ones(7, 4, 8, dtype=torch.bool)
    scores, _ = model(x, masks=[everything, everything])
    torch.testing.assert_close(scores, model.readout.bias.expand_as(scores))
    assert not torch.equal(model(x)[0], model(x)[0])
    assert torch.equal(model.eval()(x)[0], model(x)[0])
