"""The MIST RNN (DiPietro et al. 2018): mixed history through a softmax over delays, one set of weights for all.

    (1)  a_t = softmax(W_ax x_t + W_ah h_{t-1} + b_a)              how much of each delay
    (2)  r_t = sigmoid(W_rx x_t + W_rh h_{t-1} + b_r)              reset gate
    (3)  m_t = sum over i of a_ti h_{t-d_i}                        mixed history
    (4)  h_t = tanh(W_x x_t + W_h (r_t * m_t) + b)

Shapes: x_t [B, I], h_t, r_t, m_t [B, H], a_t [B, D].
B batch, I input, H hidden, D delays d_1 ... d_D (1, 2, 4, ... in the paper). States before the first step are zero.
The parameters stack the rows of a (D), r (H) and h (H):
weight_ih [D + 2H, I], weight_hh [D + 2H, H], bias [D + 2H].

Options, the same for every layer:
    layer norm          a pre-activation z + b becomes norm(z) * gain + b, over the D rows of a and the H of r and h
    recurrent dropout   every vector that a recurrent matrix reads (h_{t-1} and r_t * m_t) is multiplied by one
                        mask [B, H] for all steps
    zoneout             units keep their previous value at random (applied to h_t after equation (4))
"""

import torch
from torch import Tensor

from mistrnn.layers.recurrence import StateHistory, Step, drop, linear, norms


def mist(
    weight_hh: Tensor,
    bias: Tensor | None,
    gain: Tensor | None,
    dropout: Tensor | None,
    delays: tuple[int, ...],
) -> Step:
    """Return the step of a MIST RNN; its x is weight_ih x_t, with the bias already added unless there is a gain."""
    count, hidden = len(delays), weight_hh.size(1)
    norm_a, norm_r, norm_h = norms([count, hidden, hidden], gain, bias)
    weight_gates, weight_h = torch.split(weight_hh, [count + hidden, hidden])

    def step(x: Tensor, past: StateHistory) -> tuple[Tensor]:
        x_a, x_r, x_h = torch.split(x, [count, hidden, hidden], dim=-1)
        gates = linear(drop(past(1), dropout), weight_gates)
        z_a, z_r = torch.split(gates, [count, hidden], dim=-1)
        a = torch.softmax(norm_a(x_a + z_a), dim=-1)  # (1) [B, D]
        r = torch.sigmoid(norm_r(x_r + z_r))  # (2)
        history = torch.stack([past(d) for d in delays], dim=-2)  # [B, D, H]
        m = (a.unsqueeze(-1) * history).sum(-2)  # (3)
        return (torch.tanh(norm_h(x_h + linear(drop(r * m, dropout), weight_h))),)  # (4)

    return step
