"""The Clockwork RNN as a module."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mistrnn.layers import _checks, _forms
from mistrnn.layers._forms import Weights
from mistrnn.layers._layer import RecurrentLayer
from mistrnn.layers._recurrence import Step
from mistrnn.layers.clockwork.reference import clockwork, periods_of_units, severed


class Clockwork(RecurrentLayer):
    """Clockwork RNN: groups of units that tick at their own periods; see `mistrnn.layers.clockwork.reference`.

    Args:
        periods: n for 1, 2, 4, ... 2^(n - 1), or any list of distinct positive ints; H must divide into them equally.

    The other arguments as in `RecurrentLayer`. Parameters of layer k (suffix `_reverse` for the second direction):
    `weight_ih_lk` [H, I], `weight_hh_lk` [H, H], whose severed blocks are held at zero, `bias_lk` [H].
    State: the pair (h [layers * directions, B, H], clock [layers * directions, B]); the clock counts the steps since a
    sequence began, from 0.

    >>> import torch
    >>> layer = Clockwork(input_size=3, hidden_size=8, periods=4)
    >>> output, (h, clock) = layer(torch.randn(7, 2, 3))
    >>> output.shape, h.shape, clock
    (torch.Size([7, 2, 8]), torch.Size([1, 2, 8]), tensor([[7, 7]]))
    """

    has_clock = True
    fused_name = "clockwork"

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
        self.periods = _checks.distinct_ints(name, "periods", periods, _checks.powers_of_two)
        if _checks.positive_int(name, "hidden_size", hidden_size) % len(self.periods):
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

    def _row_blocks(self) -> list[int]:
        return [self.hidden_size // len(self.periods)] * len(self.periods)

    @classmethod
    def hidden_size_step(cls, periods: int | Sequence[int] = 8, **options: Any) -> int:
        """Return the number of periods: every group has as many units."""
        return len(_checks.distinct_ints(cls.__name__, "periods", periods, _checks.powers_of_two))

    def _initial(self, short: str, like: Tensor) -> Tensor:
        value = super()._initial(short, like)
        if short == "weight_hh":
            units = periods_of_units(self.periods, self.hidden_size // len(self.periods), like.device)
            value = value.masked_fill(severed(units), 0.0)
        return value

    @torch.no_grad()
    def scale_groups(self) -> None:
        """Multiply the weights with which each group reads itself by the root of the number of groups.

        After `reset_parameters` they are N(0, 1/H) like all others, so that a group by itself forgets within a few of its
        ticks. Then they are N(0, 1/its units), as those of a simple RNN of that size.
        """
        size = self.hidden_size // len(self.periods)
        for layer in range(self.num_layers):
            for direction in range(self.directions):
                weight = self._weights(layer, direction)["weight_hh"]
                for first in range(0, self.hidden_size, size):
                    weight[first : first + size, first : first + size] *= len(self.periods) ** 0.5

    def parameter_count(self) -> int:
        """Return the number of weights that the layer really has: the severed ones do not count."""
        group = self.hidden_size // len(self.periods)
        severed_blocks = sum(slow > fast for slow in self.periods for fast in self.periods)
        return super().parameter_count() - self.num_layers * self.directions * severed_blocks * group**2

    def _step(self, weights: Weights, dropout: Tensor | None) -> Step:
        return _reference(weights, dropout, self.periods)

    def _delays(self) -> Sequence[int]:
        return self.periods

    def _extra_arguments(self) -> list[str]:
        return [f"periods={list(self.periods)}"]


def _reference(weights: Weights, dropout: Tensor | None, periods: Sequence[int]) -> Step:
    return clockwork(weights["weight_hh"], weights.get("bias"), weights.get("gain"), dropout, tuple(periods))


_forms.register("clockwork", _reference)
