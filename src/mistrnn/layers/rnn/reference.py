"""The simple RNN (Elman 1990), as torch.nn.RNN.

    (1)  h_t = s(W_ih x_t + W_hh h_{t-1} + b), where s is tanh or relu

Shapes: x_t [B, I], h_t [B, H], W_ih [H, I], W_hh [H, H], b [H]. B batch, I input, H hidden.

Options, the same for every layer:
    layer norm          a pre-activation z + b becomes norm(z) * gain + b, over the H units of each gate
    recurrent dropout   every vector that a recurrent matrix reads is multiplied by one mask [B, H] for all steps
    zoneout             units keep their previous value at random (applied to h_t after equation (1))
"""

import torch
from torch import Tensor

from mistrnn.layers.recurrence import StateHistory, Step, drop, linear, norms


def rnn(
    weight_hh: Tensor,
    bias: Tensor | None,
    gain: Tensor | None,
    dropout: Tensor | None,
    nonlinearity: str = "tanh",
) -> Step:
    """Return the step of a simple RNN; its x is W_ih x_t, with b already added unless there is a gain."""
    activation = {"tanh": torch.tanh, "relu": torch.relu}[nonlinearity]
    (norm,) = norms([weight_hh.size(1)], gain, bias)

    def step(x: Tensor, past: StateHistory) -> tuple[Tensor]:
        return (activation(norm(x + linear(drop(past(1), dropout), weight_hh))),)  # (1)

    return step
