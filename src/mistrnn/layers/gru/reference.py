"""GRU (Cho et al. 2014), in the form that torch.nn.GRU computes.

    (1)  r_t = sigmoid(W_ir x_t + W_hr h_{t-1} + b_r)              reset gate
    (2)  z_t = sigmoid(W_iz x_t + W_hz h_{t-1} + b_z)              update gate
    (3)  n_t = tanh(W_in x_t + b_n + r_t * (W_hn h_{t-1} + b_hn))  candidate
    (4)  h_t = (1 - z_t) * n_t + z_t * h_{t-1}

Shapes: x_t [B, I], the rest [B, H]. B batch, I input, H hidden. The parameters stack the rows of r, z and n:
weight_ih [3H, I], weight_hh [3H, H], bias [3H], and bias_hn [H] beside.

Options, the same for every layer:
    layer norm          a pre-activation z + b becomes norm(z) * gain + b, over the H units of each gate
                        (b_hn belongs to z: it stands inside the product with r_t)
    recurrent dropout   every vector that a recurrent matrix reads is multiplied by one mask [B, H] for all steps
    zoneout             units keep their previous value at random (applied to h_t after equation (4))
"""

import torch
from torch import Tensor

from mistrnn.layers.recurrence import StateHistory, Step, drop, linear, norms


def gru(
    weight_hh: Tensor,
    bias: Tensor | None,
    bias_hn: Tensor | None,
    gain: Tensor | None,
    dropout: Tensor | None,
) -> Step:
    """Return the step of a GRU; its x is weight_ih x_t, with the bias already added unless there is a gain."""
    hidden = weight_hh.size(1)
    norm_r, norm_z, norm_n = norms([hidden] * 3, gain, bias)

    def step(x: Tensor, past: StateHistory) -> tuple[Tensor]:
        h = past(1)
        x_r, x_z, x_n = torch.split(x, hidden, dim=-1)
        h_r, h_z, h_n = torch.split(linear(drop(h, dropout), weight_hh), hidden, dim=-1)
        if bias_hn is not None:
            h_n = h_n + bias_hn
        r = torch.sigmoid(norm_r(x_r + h_r))  # (1)
        z = torch.sigmoid(norm_z(x_z + h_z))  # (2)
        n = torch.tanh(norm_n(x_n + r * h_n))  # (3)
        return ((1 - z) * n + z * h,)  # (4)

    return step
