"""The Clockwork RNN (Koutnik et al. 2014): groups of units that tick at their own periods.

    (1)  u_t = tanh(W_ih x_t + W_hh h_{t-1} + b)
    (2)  h_t = u_t in the groups with t mod period = 0, h_{t-1} in the others

Shapes: x_t [B, I], h_t, u_t [B, H], W_ih [H, I], W_hh [H, H], b [H]. B batch, I input, H hidden.
The H units fall into equal groups, in the order of their periods. A group reads only groups of equal or longer period:
the other blocks of W_hh are severed, that is, zero. t counts from 0 at the start of a sequence, so that every group
ticks at the first step.

Options, the same for every layer:
    layer norm          a pre-activation z + b becomes norm(z) * gain + b, over the units of each group (groups that
                        do not tick need not be evaluated)
    recurrent dropout   every vector that a recurrent matrix reads is multiplied by one mask [B, H] for all steps
    zoneout             units keep their previous value at random (applied to h_t after equation (2))
"""

import torch
from torch import Tensor

from mistrnn.layers.recurrence import StateHistory, Step, drop, linear, norms


def clockwork(
    weight_hh: Tensor,
    bias: Tensor | None,
    gain: Tensor | None,
    dropout: Tensor | None,
    periods: tuple[int, ...],
) -> Step:
    """Return the step of a Clockwork RNN; its x is W_ih x_t, with b already added unless there is a gain."""
    group = weight_hh.size(0) // len(periods)
    norm_groups = norms([group] * len(periods), gain, bias)
    unit_periods = periods_of_units(periods, group, weight_hh.device)
    weight_hh = weight_hh.masked_fill(severed(unit_periods), 0.0)

    def step(x: Tensor, past: StateHistory) -> tuple[Tensor]:
        assert past.clock is not None, "a Clockwork step needs the clock"
        h = past(1)
        z = x + linear(drop(h, dropout), weight_hh)
        if gain is not None:
            z = torch.cat([norm(part) for norm, part in zip(norm_groups, torch.split(z, group, -1), strict=True)], -1)
        u = torch.tanh(z)  # (1)
        ticks = past.clock.unsqueeze(-1) % unit_periods == 0  # [B, H]
        return (torch.where(ticks, u, h),)  # (2)

    return step


def periods_of_units(periods: tuple[int, ...], group: int, device: torch.device) -> Tensor:  # [H]
    """Return the period of each unit: `group` units for each period, in order."""
    return torch.cat([torch.full((group,), period, device=device) for period in periods])


def severed(unit_periods: Tensor) -> Tensor:  # [H, H] bool
    """Return which recurrent weights do not exist: those by which a slower unit (row) would read a faster one."""
    return unit_periods.unsqueeze(1) > unit_periods
