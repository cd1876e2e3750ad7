"""GRU as a module."""

from torch import nn

from mistrnn._docstrings import inherits_arguments
from mistrnn.layers.gru.cell import CELL
from mistrnn.layers.torch_twin import TorchTwin


@inherits_arguments
class GRU(TorchTwin):
    """GRU, as torch.nn.GRU; the equations are in `mistrnn.layers.gru.reference`.

    Parameters of layer k (suffix `_reverse` for the second direction), with the rows of the gates r, z, n: `weight_ih_lk` [3H,
    I], `weight_hh_lk` [3H, H], `bias_ih_lk` [3H], `bias_hh_lk` [3H]; the reset gate multiplies the last block of `bias_hh_lk`.
    With `single_bias` there are `bias_lk` [3H] and that last block, `bias_hn_lk` [H].

    State: [layers * directions, B, H].

    >>> import torch
    >>> layer = GRU(input_size=3, hidden_size=5)
    >>> output, state = layer(torch.randn(7, 2, 3))
    >>> output.shape, state.shape
    (torch.Size([7, 2, 5]), torch.Size([1, 2, 5]))
    """

    cell = CELL
    torch_class = nn.GRU
    mode = "GRU"
