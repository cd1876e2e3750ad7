"""The MIST RNN as a module."""

from collections.abc import Sequence

import torch

from mistrnn._docstrings import inherits_arguments
from mistrnn.layers import checks
from mistrnn.layers.base import RecurrentLayer
from mistrnn.layers.mist.cell import CELL


@inherits_arguments
class MIST(RecurrentLayer):
    """MIST RNN: a learned mixture of exponentially delayed states; see `mistrnn.layers.mist.reference`.

    Args:
        delays: n for 1, 2, 4, ... 2^(n - 1), or any list of distinct positive ints.

    Parameters of layer k (suffix `_reverse` for the second direction), with the rows of a (D), r (H) and h (H): `weight_ih_lk`
    [D + 2H, I], `weight_hh_lk` [D + 2H, H], `bias_lk` [D + 2H]; the last block of `weight_hh_lk` acts on the mixed, reset
    history.

    State: the pair (h [layers * directions, B, H], history [layers * directions, max(delays), B, H]), a `HistoryState`; h is
    what torch.nn.LSTM calls h_n, and the history holds the last max(delays) of them, oldest first. A tensor h alone starts from
    it, with zeros before.

    >>> import torch
    >>> layer = MIST(input_size=3, hidden_size=5, delays=4)
    >>> output, (h, history) = layer(torch.randn(7, 2, 3))
    >>> output.shape, h.shape, history.shape
    (torch.Size([7, 2, 5]), torch.Size([1, 2, 5]), torch.Size([1, 8, 2, 5]))
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
        self.delays = checks.distinct_ints(type(self).__name__, "delays", delays, checks.powers_of_two)
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
