"""LSTM as a module."""

from typing import Any

import torch
from torch import Tensor, nn

from mistrnn._docstrings import inherits_arguments
from mistrnn.layers import backends, checks
from mistrnn.layers.backends import CellRun, Weights
from mistrnn.layers.lstm.cell import CELL
from mistrnn.layers.recurrence import linear
from mistrnn.layers.sequence_mask import SequenceMask
from mistrnn.layers.state import Part
from mistrnn.layers.torch_twin import TorchTwin


@inherits_arguments
class LSTM(TorchTwin):
    """LSTM with forget gates, as torch.nn.LSTM; the equations are in `mistrnn.layers.lstm.reference`.

    Args:
        proj_size: P, the size of h after a projection; 0 for none.

    Parameters of layer k (suffix `_reverse` for the second direction), with the rows of the gates i, f, g, o: `weight_ih_lk`
    [4H, I], `weight_hh_lk` [4H, H], `bias_ih_lk` [4H], `bias_hh_lk` [4H]; the first bias of the forget gate starts at 1. With
    `single_bias` there is `bias_lk` [4H]; with a projection `weight_hh_lk` is [4H, P], and `weight_hr_lk` [P, H].

    State: the pair (h, c), [layers * directions, B, H] each; h has P units with a projection.

    >>> import torch
    >>> layer = LSTM(input_size=3, hidden_size=5)
    >>> output, (h, c) = layer(torch.randn(7, 2, 3))
    >>> output.shape, h.shape, c.shape
    (torch.Size([7, 2, 5]), torch.Size([1, 2, 5]), torch.Size([1, 2, 5]))
    """

    cell = CELL
    torch_class = nn.LSTM
    mode = "LSTM"

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        single_bias: bool = False,
        zoneout: float = 0.0,
        recurrent_dropout: float = 0.0,
        layer_norm: bool = False,
    ) -> None:
        self.proj_size = checks.projection_size(type(self).__name__, proj_size, hidden_size)
        super().__init__(
            input_size,
            hidden_size,
            num_layers,
            bias,
            batch_first,
            dropout,
            bidirectional,
            device,
            dtype,
            single_bias=single_bias,
            zoneout=zoneout,
            recurrent_dropout=recurrent_dropout,
            layer_norm=layer_norm,
        )

    @property
    def state_sizes(self) -> tuple[int, ...]:
        """The units of h and c."""
        return self.proj_size or self.hidden_size, self.hidden_size

    def parameter_shapes(self, layer_inputs: int) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the parameters of one layer in one direction, by short name."""
        shapes = super().parameter_shapes(layer_inputs)
        if self.proj_size:
            shapes["weight_hh"] = (shapes["weight_hh"][0], self.proj_size)
            shapes["weight_hr"] = (self.proj_size, self.hidden_size)
        return shapes

    def initial_value(self, short: str, like: Tensor) -> Tensor:
        """Return a random start value, as in the paper: the forget gate starts open."""
        value = super().initial_value(short, like)
        if short in ("bias", "bias_ih"):
            value[self.hidden_size : 2 * self.hidden_size] = 1.0
        return value

    def run_cell(
        self,
        weights: Weights,
        direction: int,
        x: Tensor,
        part: Part,
        mask: SequenceMask,
        probes: tuple[Tensor, ...] = (),
        *,
        fused: bool | None = None,
    ) -> tuple[Tensor, Part]:
        """Run one layer in one direction; see `RecurrentLayer.run_cell`."""
        if self.proj_size and fused is None:
            # Zoneout, recurrent dropout and probes act on h and not on the vector of which h is the projection.
            acts_on_h = self.zoneout or probes or (self.recurrent_dropout and self.training)
            if self.takes_fused(weights["weight_hh"]) and not acts_on_h:
                return _run_projected(weights, direction == 1, x, part, mask)
            fused = False
        return super().run_cell(weights, direction, x, part, mask, probes, fused=fused)

    def torch_arguments(self) -> dict[str, Any]:
        """Return the arguments of torch's layer beyond those of every layer."""
        return {"proj_size": self.proj_size}

    @classmethod
    def twin_arguments(cls, module: nn.RNNBase) -> dict[str, Any]:
        """Return the further arguments of a twin of this module."""
        return {"proj_size": module.proj_size}

    def own_arguments(self) -> list[str]:
        """Return further arguments for the repr."""
        return [f"proj_size={self.proj_size}"] if self.proj_size else []


def _run_projected(weights: Weights, reverse: bool, x: Tensor, part: Part, mask: SequenceMask) -> tuple[Tensor, Part]:
    """Run the fused LSTM on m_t = o_t * tanh(c_t), whose projection is h_t.

    The recurrent matrix of m is the product of weight_hh and weight_hr. The first step reads the initial h, which need not be
    the projection of any m, as further inputs.
    """
    initial_h, initial_c = part
    units, first = initial_c.size(-1), mask.first_step(reverse)
    own = {name: value for name, value in weights.items() if name != "weight_hr"}
    own["weight_ih"] = torch.cat([weights["weight_ih"], weights["weight_hh"]], 1)
    own["weight_hh"] = linear(weights["weight_hh"], weights["weight_hr"].t())
    start = torch.where(first.unsqueeze(-1), initial_h, 0.0)  # [T, B, P]
    given = CellRun(
        weights=own,
        lags=(),
        x=torch.cat([x, start], -1),
        initial=(initial_c.new_zeros(1, mask.batch, units), initial_c),
        clock=None,
        mask=mask,
        reverse=reverse,
    )
    output, (final_m, final_c) = backends.run_fused(CELL, given)
    final_h = linear(final_m, weights["weight_hr"])
    if mask.steps == 0 or mask.lengths is not None:
        empty = torch.zeros(mask.batch, device=x.device) if mask.lengths is None else mask.lengths
        final_h = torch.where((empty == 0).unsqueeze(-1), initial_h, final_h)
    return linear(output, weights["weight_hr"]), (final_h, final_c)
