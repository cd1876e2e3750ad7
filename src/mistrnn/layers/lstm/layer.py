"""LSTM as a module."""

from collections.abc import Sequence

from torch import Tensor, nn

from mistrnn.layers import _forms
from mistrnn.layers._forms import Weights
from mistrnn.layers._recurrence import Step
from mistrnn.layers._torch_twin import TorchTwin
from mistrnn.layers.lstm.reference import lstm


class LSTM(TorchTwin):
    """LSTM, as torch.nn.LSTM with one bias per gate; the equations are in `mistrnn.layers.lstm.reference`.

    Arguments as in `RecurrentLayer`. Parameters of layer k (suffix `_reverse` for the second direction), with the rows
    of the gates i, f, g, o: `weight_ih_lk` [4H, I], `weight_hh_lk` [4H, H], `bias_lk` [4H]; the forget gate's bias
    starts at 1. State: the pair (h, c), each [layers * directions, B, H].

    >>> import torch
    >>> layer = LSTM(input_size=3, hidden_size=5)
    >>> output, (h, c) = layer(torch.randn(7, 2, 3))
    >>> output.shape, h.shape, c.shape
    (torch.Size([7, 2, 5]), torch.Size([1, 2, 5]), torch.Size([1, 2, 5]))
    """

    torch_class = nn.LSTM
    fused_name = "lstm"
    state_components = ("h", "c")

    def _row_blocks(self) -> list[int]:
        return [self.hidden_size] * 4

    def _initial(self, short: str, like: Tensor) -> Tensor:
        value = super()._initial(short, like)
        if short == "bias":
            value[self.hidden_size : 2 * self.hidden_size] = 1.0  # the forget gate starts open
        return value

    def _step(self, weights: Weights, dropout: Tensor | None) -> Step:
        return _reference(weights, dropout)


def _reference(weights: Weights, dropout: Tensor | None, _: Sequence[int] = ()) -> Step:
    return lstm(weights["weight_hh"], weights.get("bias"), weights.get("gain"), dropout)


_forms.register("lstm", _reference)
