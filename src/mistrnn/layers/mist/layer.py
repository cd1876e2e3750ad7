"""The MIST RNN as a module."""

from collections.abc import Sequence

import torch
from torch import Tensor

from mistrnn.layers import _checks, _forms
from mistrnn.layers._forms import Weights
from mistrnn.layers._layer import RecurrentLayer
from mistrnn.layers._recurrence import Step
from mistrnn.layers.mist.reference import mist


class MIST(RecurrentLayer):
    """MIST RNN: a learned mixture of exponentially delayed states; see `mistrnn.layers.mist.reference`.

    Args:
        delays: n for 1, 2, 4, ... 2^(n - 1), or any list of distinct positive ints.

    The other arguments as in `RecurrentLayer`. Parameters of layer k (suffix `_reverse` for the second direction), with
    the rows of a (D), r (H) and h (H): `weight_ih_lk` [D + 2H, I], `weight_hh_lk` [D + 2H, H], `bias_lk` [D + 2H]; the
    last block of `weight_hh_lk` acts on the mixed, reset history.
    State: the last max(delays) states, oldest first, [layers * directions, max(delays), B, H], so that `state[:, -1]`
    is what torch.nn.LSTM calls h_n.

    >>> import torch
    >>> layer = MIST(input_size=3, hidden_size=5, delays=4)
    >>> output, state = layer(torch.randn(7, 2, 3))
    >>> output.shape, state.shape
    (torch.Size([7, 2, 5]), torch.Size([1, 8, 2, 5]))
    """

    keeps_history = True
    fused_name = "mist"

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
        self.delays = _checks.distinct_ints(type(self).__name__, "delays", delays, _checks.powers_of_two)
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
        return [len(self.delays), self.hidden_size, self.hidden_size]

    def _memory(self) -> int:
        return max(self.delays)

    def _step(self, weights: Weights, dropout: Tensor | None) -> Step:
        return _reference(weights, dropout, self.delays)

    def _delays(self) -> Sequence[int]:
        return self.delays

    def _extra_arguments(self) -> list[str]:
        return [f"delays={list(self.delays)}"]


def _reference(weights: Weights, dropout: Tensor | None, delays: Sequence[int]) -> Step:
    return mist(weights["weight_hh"], weights.get("bias"), weights.get("gain"), dropout, tuple(delays))


_forms.register("mist", _reference)
