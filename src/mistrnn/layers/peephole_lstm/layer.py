"""LSTM with peepholes as a module."""

from torch import Tensor

from mistrnn._docstrings import inherits_arguments
from mistrnn.layers.base import RecurrentLayer
from mistrnn.layers.peephole_lstm.cell import CELL


@inherits_arguments
class PeepholeLSTM(RecurrentLayer):
    """LSTM with peepholes, by which gates read the memory cell; the equations are in `mistrnn.layers.peephole_lstm.reference`.

    Parameters of layer k (suffix `_reverse` for the second direction), with the rows of the gates i, f, g, o: `weight_ih_lk`
    [4H, I], `weight_hh_lk` [4H, H], `bias_lk` [4H]; the forget gate's bias starts at 1. `weight_ch_lk` [3, H] has the peepholes
    of i, f and o.

    State: the pair (h, c), each [layers * directions, B, H].

    >>> import torch
    >>> layer = PeepholeLSTM(input_size=3, hidden_size=5)
    >>> output, (h, c) = layer(torch.randn(7, 2, 3))
    >>> output.shape, h.shape, c.shape
    (torch.Size([7, 2, 5]), torch.Size([1, 2, 5]), torch.Size([1, 2, 5]))
    """

    cell = CELL

    def initial_value(self, short: str, like: Tensor) -> Tensor:
        """Return a random start value, as in the paper: the forget gate starts open."""
        value = super().initial_value(short, like)
        if short == "bias":
            value[self.hidden_size : 2 * self.hidden_size] = 1.0  # the forget gate starts open
        return value
