"""The simple NARX RNN as a module."""

from collections.abc import Sequence

import torch
from torch import Tensor

from mistrnn.layers import _checks, _forms
from mistrnn.layers._forms import Weights
from mistrnn.layers._layer import RecurrentLayer
from mistrnn.layers._recurrence import Step
from mistrnn.layers.narx.reference import narx


class NARX(RecurrentLayer):
    """Simple NARX RNN: a recurrent matrix for each delay; the equation is in `mistrnn.layers.narx.reference`.

    Args:
        delays: n for 1, 2, 3, ... n, or any list of distinct positive ints.

    The other arguments as in `RecurrentLayer`. Parameters of layer k (suffix `_reverse` for the second direction):
    `weight_ih_lk` [H, I], `weight_hh_lk` [H, D * H], delay after delay in the order of `delays`, `bias_lk` [H].
    State: the last max(delays) states, oldest first, [layers * directions, max(delays), B, H].

    >>> import torch
    >>> layer = NARX(input_size=3, hidden_size=5, delays=[1, 4])
    >>> output, state = layer(torch.randn(7, 2, 3))
    >>> output.shape, state.shape
    (torch.Size([7, 2, 5]), torch.Size([1, 4, 2, 5]))
    """

    keeps_history = True
    fused_name = "narx"

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
        delays: int | Sequence[int] = 8,
        zoneout: float = 0.0,
        recurrent_dropout: float = 0.0,
        layer_norm: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        self.delays = _checks.distinct_ints(type(self).__name__, "delays", delays, lambda n: range(1, n + 1))
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
        return [self.hidden_size]

    def _memory(self) -> int:
        return max(self.delays)

    def _parameter_shapes(self, layer_inputs: int) -> dict[str, tuple[int, ...]]:
        shapes = super()._parameter_shapes(layer_inputs)
        shapes["weight_hh"] = (self.hidden_size, len(self.delays) * self.hidden_size)
        return shapes

    def _step(self, weights: Weights, dropout: Tensor | None) -> Step:
        return _reference(weights, dropout, self.delays)

    def _delays(self) -> Sequence[int]:
        return self.delays

    def _extra_arguments(self) -> list[str]:
        return [f"delays={list(self.delays)}"]


def _reference(weights: Weights, dropout: Tensor | None, delays: Sequence[int]) -> Step:
    return narx(weights["weight_hh"], weights.get("bias"), weights.get("gain"), dropout, tuple(delays))


_forms.register("narx", _reference)
