"""The mixture of a MIST layer: put back into the equations, it gives the layer's own outputs."""

from typing import Any

import pytest
import torch
from torch import Tensor

from mistrnn import LSTM
from mistrnn.analysis import attention
from mistrnn.layers import HistoryState
from tests.layers.cases import random_state, seeded, small


def by_hand(layer: Any, x: Tensor, state: HistoryState, a: Tensor) -> Tensor:
    """Equations (2) to (4) of a MIST layer with the mixture given, [T, B, H]."""
    count, hidden = len(layer.delays), layer.hidden_size
    history, outputs = list(state.history[0]), []
    w_x, w_h, b = layer.weight_ih_l0, layer.weight_hh_l0, layer.bias_l0
    for t in range(len(x)):
        z = x[t] @ w_x.T + b
        r = torch.sigmoid(z[:, count : count + hidden] + history[-1] @ w_h[count : count + hidden].T)
        m = sum(a[t, :, k : k + 1] * history[-d] for k, d in enumerate(layer.delays))
        history.append(torch.tanh(z[:, count + hidden :] + (r * m) @ w_h[count + hidden :].T))
        outputs.append(history[-1])
    return torch.stack(outputs)


def test_mixture_gives_the_outputs() -> None:
    with seeded(1):
        layer = small("mist")
        input, state = torch.randn(12, 2, 3).double(), random_state(layer, 2)
    found = attention(layer, input, state)
    assert found.shape == (1, 12, 2, 3)
    torch.testing.assert_close(found.sum(-1), torch.ones(1, 12, 2).double())
    torch.testing.assert_close(by_hand(layer, input, state, found[0]), layer(input, state)[0])


@pytest.mark.parametrize("batch_first", [False, True])
def test_stacks_directions_lengths_and_resets(batch_first: bool) -> None:
    with seeded(2):
        layer = small("mist", num_layers=2, bidirectional=True, layer_norm=True, batch_first=batch_first)
        input, reset = torch.randn(9, 3, 3).double(), torch.rand(9, 3) < 0.2
    lengths = [9, 4, 0]
    given = (input.transpose(0, 1), reset.transpose(0, 1)) if batch_first else (input, reset)
    found = attention(layer, given[0], lengths=lengths, reset=given[1])
    assert found.shape == (4, 9, 3, 3)
    for b, length in enumerate(lengths):
        torch.testing.assert_close(found[:, :length, b].sum(-1), torch.ones(4, length).double())
        assert not found[:, length:, b].any()
    # Cut at a reset, a sequence is two.
    layer.batch_first = False
    begins = int(reset[1:, 0].nonzero()[0]) + 1
    whole = attention(layer, input[:, :1], reset=reset[:, :1])
    after = attention(layer, input[begins:, :1], reset=reset[begins:, :1])
    torch.testing.assert_close(whole[:, begins:], after)
    # What the second direction does is what the first does with the sequence turned round.
    turned = attention(layer, input[:, :1].flip(0))
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            if name.endswith("_l0"):
                parameter.copy_(getattr(layer, name + "_reverse"))
    torch.testing.assert_close(attention(layer, input[:, :1].flip(0))[0], attention(layer, input[:, :1])[1].flip(0))
    assert not torch.equal(turned[0], attention(layer, input[:, :1].flip(0))[0])


def test_bad_input_is_named() -> None:
    with pytest.raises(TypeError, match="expected a MIST layer, because others have no mixture, got LSTM"):
        attention(LSTM(3, 4), torch.randn(5, 2, 3))  # type: ignore[arg-type]
    layer = small("mist", recurrent_dropout=0.2)
    with pytest.raises(ValueError, match="expected evaluation mode"):
        attention(layer, torch.randn(5, 2, 3).double())
    with pytest.raises(ValueError, match=r"expected a batch of sequences as a Tensor with three axes, got \[5, 3\]"):
        attention(layer.eval(), torch.randn(5, 3).double())
    with pytest.raises(ValueError, match=r"MIST: expected input \[T, B, 3\]"):
        attention(layer, torch.randn(5, 2, 4).double())
    layer.forward = lambda *arguments, **options: None  # type: ignore[assignment, method-assign]
    with pytest.raises(TypeError, match="attention: expected a layer with the forward of mistrnn"):
        attention(layer, torch.randn(5, 2, 3).double())
