"""The simple NARX RNN as a module."""

from collections.abc import Sequence

import torch

from mistrnn._docstrings import inherits_arguments
from mistrnn.layers import checks
from mistrnn.layers.base import RecurrentLayer
from mistrnn.layers.narx.cell import CELL


@inherits_arguments
class NARX(RecurrentLayer):
    """Simple NARX RNN: a recurrent matrix for each delay; the equation is in `mistrnn.layers.narx.reference`.

    Args:
        delays: n for 1, 2, 3, ... n, or any list of distinct positive ints.

    Parameters of layer k (suffix `_reverse` for the second direction): `weight_ih_lk` [H, I], `weight_hh_lk` [H, D * H], delay
    after delay in the order of `delays`, `bias_lk` [H].

    State: the pair (h [layers * directions, B, H], history [layers * directions, max(delays), B, H]), a `HistoryState`; h is
    what torch.nn.LSTM calls h_n, and the history holds the last max(delays) of them, oldest first. A tensor h alone starts from
    it, with zeros before.

    >>> import torch
    >>> layer = NARX(input_size=3, hidden_size=5, delays=[1, 4])
    >>> output, (h, history) = layer(torch.randn(7, 2, 3))
    >>> output.shape, h.shape, history.shape
    (torch.Size([7, 2, 5]), torch.Size([1, 2, 5]), torch.Size([1, 4, 2, 5]))
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
        delays: int | Sequence[int] = 8,
        zoneout: float = 0.0,
        recurrent_dropout: float = 0.0,
        layer_norm: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        self.delays = checks.distinct_ints(type(self).__name__, "delays", delays, lambda n: range(1, n + 1))
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
