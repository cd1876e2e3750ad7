"""The simple NARX RNN (Lin et al. 1996): a weight matrix of its own for each delay.

    (1)  h_t = tanh(W_ih x_t + sum over i of W_i h_{t-d_i} + b)

Shapes: x_t [B, I], h_t [B, H], W_ih [H, I], W_hh = [W_1 ... W_D] [H, D * H], b [H].
B batch, I input, H hidden, D delays d_1 ... d_D. States before the first step are zero.

Options, the same for every layer:
    layer norm          a pre-activation z + b becomes norm(z) * gain + b, over the H units
    recurrent dropout   every vector that a recurrent matrix reads is multiplied by one mask [B, H] for all steps
    zoneout             units keep their previous value at random (applied to h_t after equation (1))
"""

import torch
from torch import Tensor

from mistrnn.layers.recurrence import StateHistory, Step, drop, linear, norms


def narx(
    weight_hh: Tensor,
    bias: Tensor | None,
    gain: Tensor | None,
    dropout: Tensor | None,
    delays: tuple[int, ...],
) -> Step:
    """Return the step of a simple NARX RNN; its x is W_ih x_t, with b already added unless there is a gain."""
    (norm,) = norms([weight_hh.size(0)], gain, bias)

    def step(x: Tensor, past: StateHistory) -> tuple[Tensor]:
        delayed = torch.cat([drop(past(d), dropout) for d in delays], dim=-1)  # [B, D * H]
        return (torch.tanh(norm(x + linear(delayed, weight_hh))),)  # (1)

    return step
