"""GRU as a module."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from mistrnn.layers import _forms
from mistrnn.layers._forms import Weights
from mistrnn.layers._recurrence import Step
from mistrnn.layers._torch_twin import TorchTwin, put
from mistrnn.layers.gru.reference import gru


class GRU(TorchTwin):
    """GRU, as torch.nn.GRU with one bias per gate and one more; the equations are in `mistrnn.layers.gru.reference`.

    Arguments as in `RecurrentLayer`. Parameters of layer k (suffix `_reverse` for the second direction), with the rows
    of the gates r, z, n: `weight_ih_lk` [3H, I], `weight_hh_lk` [3H, H], `bias_lk` [3H], and `bias_hn_lk` [H], which
    the reset gate multiplies. State: [layers * directions, B, H].

    >>> import torch
    >>> layer = GRU(input_size=3, hidden_size=5)
    >>> output, state = layer(torch.randn(7, 2, 3))
    >>> output.shape, state.shape
    (torch.Size([7, 2, 5]), torch.Size([1, 2, 5]))
    """

    torch_class = nn.GRU
    fused_name = "gru"

    def _row_blocks(self) -> list[int]:
        return [self.hidden_size] * 3

    def _parameter_shapes(self, layer_inputs: int) -> dict[str, tuple[int, ...]]:
        shapes = super()._parameter_shapes(layer_inputs)
        if self.bias:
            shapes["bias_hn"] = (self.hidden_size,)
        return shapes

    def _step(self, weights: Weights, dropout: Tensor | None) -> Step:
        return _reference(weights, dropout)

    @staticmethod
    def _biases_from_torch(ours: Weights, bias_ih: Tensor, bias_hh: Tensor) -> None:
        hidden = ours["bias_hn"].size(0)
        both = bias_ih[: 2 * hidden] + bias_hh[: 2 * hidden]
        learns = bias_ih.requires_grad or bias_hh.requires_grad
        put(ours["bias"], torch.cat([both, bias_ih[2 * hidden :]]), learns=learns)
        put(ours["bias_hn"], bias_hh[2 * hidden :], learns=bias_hh.requires_grad)

    @staticmethod
    def _biases_to_torch(ours: Weights, bias_ih: Tensor, bias_hh: Tensor) -> None:
        hidden = ours["bias_hn"].size(0)
        put(bias_ih, ours["bias"], learns=ours["bias"].requires_grad)
        zeros = bias_hh.new_zeros(2 * hidden)
        put(bias_hh, torch.cat([zeros, ours["bias_hn"]]), learns=ours["bias_hn"].requires_grad)


def _reference(weights: Weights, dropout: Tensor | None, _: Sequence[int] = ()) -> Step:
    return gru(weights["weight_hh"], weights.get("bias"), weights.get("bias_hn"), weights.get("gain"), dropout)


_forms.register("gru", _reference)
