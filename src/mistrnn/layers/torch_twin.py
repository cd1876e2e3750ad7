"""What RNN, LSTM and GRU share with torch.nn's layer of the same equations: parameters, attributes and conversion.

H hidden.
"""

from typing import Any, ClassVar, Self

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from mistrnn._torch_compat import RNNBase
from mistrnn.layers import checks
from mistrnn.layers.backends import Weights
from mistrnn.layers.base import RecurrentLayer
from mistrnn.layers.parameters import suffix_of
from mistrnn.layers.weight_hooks import recompute_hooked_weights


class TorchTwin(RecurrentLayer, RNNBase):
    """A layer that torch.nn has, too, with the same parameters: two biases per gate, which are added.

    Args:
        single_bias: keep one bias vector, the sum of torch's two, as in the paper. Under SGD, a sum of two biases learns at
            twice the rate of one.
    """

    torch_class: ClassVar[type[nn.RNNBase]]
    single_bias: bool = True
    """Layers of version 0.1, which have no such attribute, have one."""
    mode: str
    """torch's name of the equations, such as "LSTM"."""
    proj_size: int = 0

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        single_bias: bool = False,
        zoneout: float = 0.0,
        recurrent_dropout: float = 0.0,
        layer_norm: bool = False,
    ) -> None:
        self.single_bias = checks.boolean(type(self).__name__, "single_bias", single_bias)
        super().__init__(
            input_size,
            hidden_size,
            num_layers,
            bias,
            batch_first,
            dropout,
            bidirectional,
            zoneout=zoneout,
            recurrent_dropout=recurrent_dropout,
            layer_norm=layer_norm,
            device=device,
            dtype=dtype,
        )

    def parameter_shapes(self, layer_inputs: int) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the parameters of one layer in one direction, by short name."""
        shapes = super().parameter_shapes(layer_inputs)
        if not self.bias or self.single_bias:
            return shapes
        rows = shapes.pop("bias")
        shapes.pop("bias_hn", None)
        gain = {"gain": shapes.pop("gain")} if self.layer_norm else {}
        return {**shapes, "bias_ih": rows, "bias_hh": rows, **gain}

    def initial_value(self, short: str, like: Tensor) -> Tensor:
        """Return a random start value, as in the paper; the second bias starts at 0."""
        return super().initial_value("bias" if short == "bias_ih" else short, like)

    def parameter_count(self) -> int:
        """Return the number of independent weights: a second bias that is only added to the first does not count."""
        count = super().parameter_count()
        if not self.bias or self.single_bias:
            return count
        redundant = self.cell.gates - (1 if self.cell.hidden_bias else 0)
        return count - self.num_layers * self.directions * redundant * self.hidden_size

    def weights_from(self, own: dict[str, Tensor]) -> Weights:
        """Return the weights that the cell reads, with the sum of both biases."""
        if not self.bias or self.single_bias:
            return own
        both = own.pop("bias_ih"), own.pop("bias_hh")
        return own | self._single_biases(*both)

    def _single_biases(self, bias_ih: Tensor, bias_hh: Tensor) -> dict[str, Tensor]:
        """Return one bias for each gate; the last gate of a cell with `hidden_bias` keeps both."""
        if not self.cell.hidden_bias:
            return {"bias": bias_ih + bias_hh}
        rows, units = bias_hh.size(0), self.hidden_size
        added, kept = torch.split(bias_hh, [rows - units, units])
        return {"bias": bias_ih + torch.cat([added, torch.zeros_like(kept)]), "bias_hn": kept}

    def _two_biases(self, bias: Tensor, bias_hn: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return bias_ih and bias_hh with the same sum."""
        if bias_hn is None:
            return bias, torch.zeros_like(bias)
        return bias, F.pad(bias_hn, (bias.size(0) - bias_hn.size(0), 0))

    def translate_state_dict(self, state_dict: dict[str, Any], prefix: str) -> None:
        """Turn one bias per gate, as in version 0.1, into two, or two into one, as this layer has them."""
        if not self.bias:
            return
        for layer in range(self.num_layers):
            for direction in range(self.directions):
                names = {short: f"{prefix}{short}{suffix_of(layer, direction)}" for short in _BIASES}
                found = {short: state_dict[name] for short, name in names.items() if name in state_dict}
                if self.single_bias and found.keys() == {"bias_ih", "bias_hh"}:
                    state_dict.update({names[short]: b for short, b in self._single_biases(**found).items()})
                elif not self.single_bias and "bias" in found and not {"bias_ih", "bias_hh"} & found.keys():
                    both = self._two_biases(found["bias"], found.get("bias_hn"))
                    state_dict.update(zip((names["bias_ih"], names["bias_hh"]), both, strict=True))
                else:
                    continue
                for short in found:
                    del state_dict[names[short]]

    def weight_names(self) -> list[list[str]]:
        """Return the names of the parameters for each layer and direction, in torch's order."""
        shorts = [short for short in self._short_names if short != "gain"]
        return [
            [short + suffix_of(layer, direction) for short in shorts]
            for layer in range(self.num_layers)
            for direction in range(self.directions)
        ]

    def torch_arguments(self) -> dict[str, Any]:
        """Return the arguments of torch's layer beyond those of every layer."""
        return {}

    @classmethod
    def from_torch(cls, module: nn.RNNBase, *, single_bias: bool = False) -> Self:
        """Return a layer with the arguments and a copy of the weights of torch.nn's layer, in its mode.

        Frozen parameters (`requires_grad=False`) stay frozen; with `single_bias`, a bias whose two parts are.
        """
        name, expected = cls.__name__, cls.torch_class
        if not isinstance(module, expected):
            raise TypeError(f"{name}.from_torch: expected torch.nn.{expected.__name__}, got {type(module).__name__}.")
        recompute_hooked_weights(module)
        theirs = _torch_parameters(module, 0, 0)["weight_hh"]
        layer = cls(
            module.input_size,
            module.hidden_size,
            module.num_layers,
            bias=module.bias,
            batch_first=module.batch_first,
            dropout=module.dropout,
            bidirectional=module.bidirectional,
            single_bias=single_bias,
            device="meta",  # no start values are drawn
            dtype=theirs.dtype,
            **cls.twin_arguments(module),
        )
        layer._materialise(theirs.device)
        for index in range(layer.num_layers):
            for direction in range(layer.directions):
                layer._copy_from(_torch_parameters(module, index, direction), index, direction)
        return layer.train(module.training)

    @classmethod
    def twin_arguments(cls, module: nn.RNNBase) -> dict[str, Any]:
        """Return the further arguments of a twin of this module."""
        return {}

    def _copy_from(self, theirs: dict[str, Tensor], layer: int, direction: int) -> None:
        ours = self.own_parameters(layer, direction)
        learns = {short: value.requires_grad for short, value in theirs.items()}
        if self.bias and self.single_bias:
            both = theirs.pop("bias_ih"), theirs.pop("bias_hh")
            theirs |= self._single_biases(*both)
            learns |= {"bias": learns["bias_ih"] or learns["bias_hh"], "bias_hn": learns["bias_hh"]}
        for short, parameter in ours.items():
            put(parameter, theirs[short], learns=learns[short])

    def to_torch(self) -> Any:
        """Return torch.nn's layer with the same arguments and a copy of the weights, in this layer's mode.

        Frozen parameters (`requires_grad=False`) stay frozen.
        """
        name = type(self).__name__
        for option in ("zoneout", "recurrent_dropout", "layer_norm"):
            if value := getattr(self, option):
                raise ValueError(f"{name}.to_torch: expected no {option}, because torch.nn has none, got {value}.")
        self.require_own_forward(f"{name}.to_torch")
        recompute_hooked_weights(self)
        like = self.own_parameters(0, 0)["weight_hh"]
        module = self.torch_class(
            input_size=self.input_size,
            hidden_size=self.hidden_size,
            num_layers=self.num_layers,
            bias=self.bias,
            batch_first=self.batch_first,
            dropout=self.dropout if self.num_layers > 1 else 0.0,
            bidirectional=self.bidirectional,
            device="meta",
            dtype=like.dtype,
            **self.torch_arguments(),
        ).to_empty(device=like.device)
        for index in range(self.num_layers):
            for direction in range(self.directions):
                self._copy_to(_torch_parameters(module, index, direction), index, direction)
        return module.train(self.training)

    def _copy_to(self, theirs: dict[str, Tensor], layer: int, direction: int) -> None:
        with torch.enable_grad():  # as in `_torch_parameters`
            ours = self.own_parameters(layer, direction)
        learns = {short: value.requires_grad for short, value in ours.items()}
        if self.bias and self.single_bias:
            bias, hidden = ours.pop("bias"), ours.pop("bias_hn", None)
            learns |= dict.fromkeys(("bias_ih", "bias_hh"), learns["bias"])
            if hidden is not None:
                learns["bias_hh"] = hidden.requires_grad
            ours["bias_ih"], ours["bias_hh"] = self._two_biases(bias, hidden)
        for short, parameter in theirs.items():
            put(parameter, ours[short], learns=learns[short])

    def _materialise(self, device: torch.device) -> None:
        """Move from meta to a device: own weights with any values; a subclass may have no other meta tensors."""
        for index in range(self.num_layers):
            for direction in range(self.directions):
                for short, weight in self.own_parameters(index, direction).items():
                    empty = nn.Parameter(torch.empty_like(weight, device=device))
                    self.register_parameter(short + suffix_of(index, direction), empty)
        left = [name for name, tensor in (*self.named_parameters(), *self.named_buffers()) if tensor.is_meta]
        if left:
            name = type(self).__name__
            raise TypeError(
                f"{name}.from_torch: expected {name} to create only the weights of the layer on `device`, because it is "
                f"constructed on meta first, got {', '.join(left)} there, too."
            )
        self.to(device)


_BIASES = ("bias", "bias_hn", "bias_ih", "bias_hh")


def put(parameter: Tensor, value: Tensor, *, learns: bool) -> None:
    """Copy a value into a parameter, and set whether it learns."""
    with torch.no_grad():
        parameter.copy_(value)
    parameter.requires_grad_(learns)


@torch.enable_grad()  # only then does a parametrised weight show whether it learns
def _torch_parameters(module: nn.RNNBase, layer: int, direction: int) -> dict[str, Tensor]:
    suffix = suffix_of(layer, direction)
    names = ["weight_ih", "weight_hh"] + (["bias_ih", "bias_hh"] if module.bias else [])
    names += ["weight_hr"] if module.proj_size else []
    return {name: getattr(module, name + suffix) for name in names}
