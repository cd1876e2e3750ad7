"""LSTM with forget gates and without peepholes (Hochreiter & Schmidhuber 1997, Gers et al. 2000), as torch.nn.LSTM.

    (1)  i_t = sigmoid(W_ii x_t + W_hi h_{t-1} + b_i)              input gate
    (2)  f_t = sigmoid(W_if x_t + W_hf h_{t-1} + b_f)              forget gate
    (3)  g_t = tanh(W_ig x_t + W_hg h_{t-1} + b_g)                 candidate
    (4)  o_t = sigmoid(W_io x_t + W_ho h_{t-1} + b_o)              output gate
    (5)  c_t = f_t * c_{t-1} + i_t * g_t                           memory cell
    (6)  h_t = o_t * tanh(c_t), with a projection h_t = W_hr (o_t * tanh(c_t))

Shapes: x_t [B, I], h_t [B, H], or [B, P] with a projection, the rest [B, H]. B batch, I input, H hidden, P projection. The
parameters stack the rows of i, f, g and o: weight_ih [4H, I], weight_hh [4H, H] or [4H, P], bias [4H]; weight_hr [P, H].

Options, the same for every layer:
    layer norm          a pre-activation z + b becomes norm(z) * gain + b, over the H units of each gate
    recurrent dropout   every vector that a recurrent matrix reads is multiplied by one mask [B, H] for all steps
    zoneout             units of h and of c keep their previous value at random, each with a mask of its own; h_t is
                        computed from the c_t of equation (5), before zoneout (Krueger et al. 2017)
"""

import torch
from torch import Tensor

from mistrnn.layers.recurrence import StateHistory, Step, drop, linear, norms


def lstm(
    weight_hh: Tensor,
    bias: Tensor | None,
    gain: Tensor | None,
    dropout: Tensor | None,
    weight_hr: Tensor | None = None,
) -> Step:
    """Return the step of an LSTM; its x is weight_ih x_t, with the bias already added unless there is a gain."""
    hidden = weight_hh.size(0) // 4
    norm_i, norm_f, norm_g, norm_o = norms([hidden] * 4, gain, bias)

    def step(x: Tensor, past: StateHistory) -> tuple[Tensor, Tensor]:
        z = x + linear(drop(past(1), dropout), weight_hh)
        z_i, z_f, z_g, z_o = torch.split(z, hidden, dim=-1)
        i = torch.sigmoid(norm_i(z_i))  # (1)
        f = torch.sigmoid(norm_f(z_f))  # (2)
        g = torch.tanh(norm_g(z_g))  # (3)
        o = torch.sigmoid(norm_o(z_o))  # (4)
        c = f * past(1, component=1) + i * g  # (5)
        h = o * torch.tanh(c)  # (6)
        return h if weight_hr is None else linear(h, weight_hr), c

    return step
