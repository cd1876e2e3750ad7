"""The simple RNN as a module."""

from collections.abc import Sequence

from torch import Tensor, nn

from mistrnn.layers import _forms
from mistrnn.layers._forms import Weights
from mistrnn.layers._recurrence import Step
from mistrnn.layers._torch_twin import TorchTwin
from mistrnn.layers.rnn.reference import rnn


class RNN(TorchTwin):
    """Simple RNN with tanh, as torch.nn.RNN; the equation is in `mistrnn.layers.rnn.reference`.

    Arguments as in `RecurrentLayer`; `nonlinearity`, which torch.nn.RNN has in the fourth place, is not among them.
    Parameters of layer k (suffix `_reverse` for the second direction): `weight_ih_lk` [H, I], `weight_hh_lk` [H, H],
    `bias_lk` [H]. State: [layers * directions, B, H].

    >>> import torch
    >>> layer = RNN(input_size=3, hidden_size=5)
    >>> output, state = layer(torch.randn(7, 2, 3))
    >>> output.shape, state.shape
    (torch.Size([7, 2, 5]), torch.Size([1, 2, 5]))
    """

    torch_class = nn.RNN
    fused_name = "rnn"

    def _row_blocks(self) -> list[int]:
        return [self.hidden_size]

    def _step(self, weights: Weights, dropout: Tensor | None) -> Step:
        return _reference(weights, dropout)


def _reference(weights: Weights, dropout: Tensor | None, _: Sequence[int] = ()) -> Step:
    return rnn(weights["weight_hh"], weights.get("bias"), weights.get("gain"), dropout)


_forms.register("rnn", _reference)
