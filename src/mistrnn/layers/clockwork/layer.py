"""The Clockwork RNN as a module."""

from collections.abc import Sequence
from typing import Any

import torch

from mistrnn._docstrings import inherits_arguments
from mistrnn.layers import checks
from mistrnn.layers.base import RecurrentLayer
from mistrnn.layers.clockwork.cell import CELL


@inherits_arguments
class Clockwork(RecurrentLayer):
    """Clockwork RNN: groups of units that tick at their own periods; see `mistrnn.layers.clockwork.reference`.

    Args:
        periods: n for 1, 2, 4, ... 2^(n - 1), or any list of distinct positive ints; H must divide into them equally.

    Parameters of layer k (suffix `_reverse` for the second direction): `weight_ih_lk` [H, I], `weight_hh_lk` [H, H], whose
    severed blocks are held at zero, `bias_lk` [H].

    State: the pair (h [layers * directions, B, H], clock [layers * directions, B]); the clock counts the steps since a sequence
    began, from 0.

    >>> import torch
    >>> layer = Clockwork(input_size=3, hidden_size=8, periods=4)
    >>> output, (h, clock) = layer(torch.randn(7, 2, 3))
    >>> output.shape, h.shape, clock
    (torch.Size([7, 2, 8]), torch.Size([1, 2, 8]), tensor([[7, 7]]))
    """

    cell = CELL

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        *,
        periods: int | Sequence[int] = 8,
        zoneout: float = 0.0,
        recurrent_dropout: float = 0.0,
        layer_norm: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        name = type(self).__name__
        self.periods = checks.distinct_ints(name, "periods", periods, checks.powers_of_two)
        if checks.positive_int(name, "hidden_size", hidden_size) % len(self.periods):
            raise ValueError(
                f"{name}: expected hidden_size to be a multiple of {len(self.periods)}, because the units fall into "
                f"equal groups, one for each of periods={list(self.periods)}, got {hidden_size}."
            )
        super().__init__(
            input_size,
            hidden_size,
            num_layers,
            bias=bias,
            batch_first=batch_first,
            dropout=dropout,
            bidirectional=bidirectional,
            zoneout=zoneout,
            recurrent_dropout=recurrent_dropout,
            layer_norm=layer_norm,
            device=device,
            dtype=dtype,
        )

    @classmethod
    def hidden_size_step(cls, periods: int | Sequence[int] = 8, **options: Any) -> int:
        """Return the number of periods: every group has as many units."""
        return len(checks.distinct_ints(cls.__name__, "periods", periods, checks.powers_of_two))

    @torch.no_grad()
    def scale_groups(self) -> None:
        """Scale the recurrent weights within each group by the root of the number of groups.

        `reset_parameters` draws them from N(0, 1/H), with which a group alone forgets within a few of its ticks. Afterwards
        they have variance 1 / (units of the group), as those of a simple RNN of that size.
        """
        size = self.hidden_size // len(self.periods)
        for layer in range(self.num_layers):
            for direction in range(self.directions):
                weight = self.own_parameters(layer, direction)["weight_hh"]
                for first in range(0, self.hidden_size, size):
                    weight[first : first + size, first : first + size] *= len(self.periods) ** 0.5

    def parameter_count(self) -> int:
        """Return the number of independent weights, without those that are held at zero."""
        group = self.hidden_size // len(self.periods)
        severed_blocks = sum(slow > fast for slow in self.periods for fast in self.periods)
        return super().parameter_count() - self.num_layers * self.directions * severed_blocks * group**2
