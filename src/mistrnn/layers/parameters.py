"""The parameters of a stack of cells: shapes from the cell's declaration, names and start values as in torch.nn.

I input, H hidden, G rows of pre-activations.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from mistrnn.kernels.cell import Cell, Lags
from mistrnn.layers.backends import Weights
from mistrnn.layers.weight_hooks import assign_hooked_weight, recompute_hooked_weights


class CellParameters(nn.Module):
    """The parameters of all layers and directions of a `RecurrentLayer`."""

    cell: Cell
    """The declaration of the cell: parameters, state, reference step and fused kernels."""
    input_size: int
    hidden_size: int
    num_layers: int
    bias: bool
    bidirectional: bool
    layer_norm: bool

    def create_parameters(self, device: torch.device | str | None, dtype: torch.dtype | None) -> None:
        """Register all parameters and draw their start values."""
        self._short_names = tuple(self.parameter_shapes(self.input_size))
        for layer in range(self.num_layers):
            layer_inputs = self.input_size if layer == 0 else self.output_size
            for direction in range(self.directions):
                for short, shape in self.parameter_shapes(layer_inputs).items():
                    parameter = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
                    self.register_parameter(short + suffix_of(layer, direction), parameter)
        self.register_state_dict_post_hook(_record_lags)  # type: ignore[no-untyped-call]
        self.register_load_state_dict_pre_hook(_before_loading)  # type: ignore[no-untyped-call]
        self.reset_parameters()

    @property
    def directions(self) -> int:
        """2 if bidirectional, else 1."""
        return 2 if self.bidirectional else 1

    @property
    def lags(self) -> Sequence[int]:
        """The delays or periods of the cell; empty if it has none."""
        return () if self.cell.lags is Lags.NONE else getattr(self, self.cell.lags.value)

    @property
    def memory(self) -> int:
        """M, the number of past states that a step reads."""
        return self.cell.memory(self.lags)

    @property
    def state_sizes(self) -> tuple[int, ...]:
        """The units of each component of the state."""
        return (self.hidden_size,) * len(self.cell.state)

    @property
    def output_size(self) -> int:
        """The features of the output, directions * H."""
        return self.directions * self.state_sizes[0]

    def norm_blocks(self) -> list[int]:
        """Return the rows that layer norm normalises together, block after block."""
        return self.cell.norm_blocks(self.hidden_size, len(self.lags))

    def parameter_shapes(self, layer_inputs: int) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the parameters of one layer in one direction, by short name."""
        return self.cell.parameter_shapes(
            layer_inputs, self.hidden_size, len(self.lags), bias=self.bias, layer_norm=self.layer_norm
        )

    def initial_value(self, short: str, like: Tensor) -> Tensor:
        """Return a random start value, as in the paper, for the parameter with this short name."""
        if short.startswith("weight"):
            drawn: Tensor = torch.randn_like(like) * self.hidden_size**-0.5
            if short == "weight_hh" and self.cell.weight_mask is not None:
                drawn = drawn.masked_fill(self.cell.weight_mask(self.lags, self.hidden_size, like.device), 0.0)
            return drawn
        return torch.ones_like(like) if short == "gain" else torch.zeros_like(like)

    @classmethod
    def hidden_size_step(cls, **options: Any) -> int:
        """Return the number of which a hidden size must be a multiple, given the other arguments."""
        return 1

    def reset_parameters(self) -> None:
        """Draw the parameters as in the paper: matrices N(0, 1/H), biases 0, gains of layer norm 1."""
        if next(self.parameters()).is_meta:
            return  # meta tensors hold no values, and `randn_like` of one would load torch's compiler
        with torch.no_grad():
            for layer in range(self.num_layers):
                for direction in range(self.directions):
                    for short, value in self.own_parameters(layer, direction).items():
                        name = short + suffix_of(layer, direction)
                        initial = self.initial_value(short, value)
                        if is_parametrized(self, name):
                            setattr(self, name, initial)
                        elif not assign_hooked_weight(self, name, initial):
                            value.copy_(initial)

    def parameter_count(self) -> int:
        """Return the number of independent weights."""
        return sum(parameter.numel() for parameter in self.parameters())

    def own_parameters(self, layer: int, direction: int) -> dict[str, Tensor]:
        """Return the parameters of one layer in one direction, by short name."""
        suffix = suffix_of(layer, direction)
        return {short: getattr(self, short + suffix) for short in self._short_names}

    def cell_weights(self, layer: int, direction: int) -> Weights:
        """Return the weights that the cell of one layer in one direction reads, by short name."""
        return self.weights_from(self.own_parameters(layer, direction))

    def weights_from(self, own: dict[str, Tensor]) -> Weights:
        """Return the weights that the cell reads, from the parameters of one layer in one direction."""
        return own

    def all_cell_weights(self, *, recompute: bool = False) -> list[Weights]:
        """Return `cell_weights` of every layer and direction; parametrisations are computed once.

        Args:
            recompute: recompute weights that forward pre-hooks compute; needed outside of a call.
        """
        if recompute:
            recompute_hooked_weights(self)
        return [self.cell_weights(layer, way) for layer in range(self.num_layers) for way in range(self.directions)]

    def translate_state_dict(self, state_dict: dict[str, Any], prefix: str) -> None:
        """Replace parameters of other layouts in a state dict before it is loaded."""


def suffix_of(layer: int, direction: int) -> str:
    """Return the end of the parameter names of one layer in one direction."""
    return f"_l{layer}" + ("_reverse" if direction else "")


def _record_lags(module: nn.Module, state_dict: Any, prefix: str, local_metadata: dict[str, Any]) -> None:
    """Store delays or periods in the metadata of a state dict: parameters of other delays may have equal shapes."""
    assert isinstance(module, CellParameters)
    if module.lags:
        local_metadata["lags"] = list(module.lags)


def _before_loading(
    module: nn.Module, state_dict: Any, prefix: str, local_metadata: Mapping[str, Any], _: bool, *lists: list[str]
) -> None:
    """Compare delays or periods with those of a state dict, and translate other layouts of parameters."""
    assert isinstance(module, CellParameters)
    saved, errors = local_metadata.get("lags"), lists[-1]
    if saved is not None and module.lags and list(saved) != list(module.lags):
        errors.append(
            f"{type(module).__name__}: expected parameters of {module.cell.lags.value}={list(module.lags)}, got those of "
            f"{module.cell.lags.value}={list(saved)}."
        )
    module.translate_state_dict(state_dict, prefix)
