"""LSTM with peepholes (Gers, Schraudolph & Schmidhuber 2002): its gates also read the memory cell, each unit its own.

    (1)  i_t = sigmoid(W_ii x_t + W_hi h_{t-1} + w_ci * c_{t-1} + b_i)    input gate
    (2)  f_t = sigmoid(W_if x_t + W_hf h_{t-1} + w_cf * c_{t-1} + b_f)    forget gate
    (3)  g_t = tanh(W_ig x_t + W_hg h_{t-1} + b_g)                        candidate
    (4)  c_t = f_t * c_{t-1} + i_t * g_t                                  memory cell
    (5)  o_t = sigmoid(W_io x_t + W_ho h_{t-1} + w_co * c_t + b_o)        output gate
    (6)  h_t = o_t * tanh(c_t)

Shapes: x_t [B, I], the rest [B, H]. B batch, I input, H hidden. The parameters stack the rows of i, f, g and o:
weight_ih [4H, I], weight_hh [4H, H], bias [4H]. The peepholes w_ci, w_cf and w_co, which are diagonal matrices, are the rows
of weight_ch [3, H].

Options, the same for every layer:
    layer norm          a pre-activation z + b, peephole included, becomes norm(z) * gain + b, over the H units of each gate
    recurrent dropout   every vector that a recurrent matrix reads is multiplied by one mask [B, H] for all steps; peepholes
                        read the memory cell without it
    zoneout             units of h and of c keep their previous value at random, each with a mask of its own; o_t and h_t are
                        computed from the c_t of equation (4), before zoneout (Krueger et al. 2017)
"""

import torch
from torch import Tensor

from mistrnn.layers.recurrence import StateHistory, Step, drop, linear, norms


def peephole_lstm(
    weight_hh: Tensor, weight_ch: Tensor, bias: Tensor | None, gain: Tensor | None, dropout: Tensor | None
) -> Step:
    """Return the step of an LSTM with peepholes; its x is weight_ih x_t, with the bias already added unless there is a gain."""
    hidden = weight_hh.size(1)
    norm_i, norm_f, norm_g, norm_o = norms([hidden] * 4, gain, bias)
    w_ci, w_cf, w_co = weight_ch.unbind(0)

    def step(x: Tensor, past: StateHistory) -> tuple[Tensor, Tensor]:
        z = x + linear(drop(past(1), dropout), weight_hh)
        z_i, z_f, z_g, z_o = torch.split(z, hidden, dim=-1)
        before = past(1, component=1)
        i = torch.sigmoid(norm_i(z_i + w_ci * before))  # (1)
        f = torch.sigmoid(norm_f(z_f + w_cf * before))  # (2)
        g = torch.tanh(norm_g(z_g))  # (3)
        c = f * before + i * g  # (4)
        o = torch.sigmoid(norm_o(z_o + w_co * c))  # (5)
        h = o * torch.tanh(c)  # (6)
        return h, c

    return step
