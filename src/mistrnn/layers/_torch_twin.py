"""Conversion to and from torch.nn's layer of the same equations, for RNN, LSTM and GRU."""

from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from mistrnn.layers._forms import Weights
from mistrnn.layers._hooked import renew_hooked
from mistrnn.layers._layer import RecurrentLayer, suffix_of


class TorchTwin(RecurrentLayer):
    """A layer that torch.nn has too. torch keeps two biases per gate, whose sum is ours."""

    torch_class: ClassVar[type[nn.RNN | nn.LSTM | nn.GRU]]

    @classmethod
    def from_torch(cls, module: nn.RNNBase) -> Self:
        """Return a layer with the arguments and a copy of the weights of torch.nn's layer, in its mode.

        What is frozen there (`requires_grad=False`) is frozen here; a bias, if both of torch's are.
        """
        name = cls.__name__
        expected = cls.torch_class
        if not isinstance(module, expected):
            raise TypeError(f"{name}.from_torch: expected torch.nn.{expected.__name__}, got {type(module).__name__}.")
        if module.proj_size:
            raise ValueError(f"{name}.from_torch: expected proj_size=0, got {module.proj_size}.")
        if getattr(module, "nonlinearity", "tanh") != "tanh":
            raise ValueError(f"{name}.from_torch: expected nonlinearity='tanh', got {module.nonlinearity!r}.")
        renew_hooked(module)
        like = _theirs(module, 0, 0)["weight_hh"]
        layer = cls(
            module.input_size,
            module.hidden_size,
            module.num_layers,
            bias=module.bias,
            batch_first=module.batch_first,
            dropout=module.dropout,
            bidirectional=module.bidirectional,
            device="meta",  # nothing is drawn, only to be overwritten
            dtype=like.dtype,
        )
        layer._take_place(like.device)
        for index in range(layer.num_layers):
            for direction in range(layer.directions):
                ours, theirs = layer._weights(index, direction), _theirs(module, index, direction)
                for short in ("weight_ih", "weight_hh"):
                    put(ours[short], theirs[short], learns=theirs[short].requires_grad)
                if layer.bias:
                    cls._biases_from_torch(ours, theirs["bias_ih"], theirs["bias_hh"])
        return layer.train(module.training)

    def to_torch(self) -> Any:
        """Return torch.nn's layer with the same arguments and a copy of the weights, in this layer's mode.

        What is frozen here (`requires_grad=False`) is frozen there.
        """
        name = type(self).__name__
        for option in ("zoneout", "recurrent_dropout", "layer_norm"):
            if value := getattr(self, option):
                raise ValueError(f"{name}.to_torch: expected no {option}, because torch.nn has none, got {value}.")
        self._refuse_own_forward(f"{name}.to_torch")
        renew_hooked(self)
        like = self._weights(0, 0)["weight_hh"]
        module = self.torch_class(
            self.input_size,
            self.hidden_size,
            self.num_layers,
            bias=self.bias,
            batch_first=self.batch_first,
            dropout=self.dropout if self.num_layers > 1 else 0.0,
            bidirectional=self.bidirectional,
            device="meta",
            dtype=like.dtype,
        ).to_empty(device=like.device)
        for index in range(self.num_layers):
            for direction in range(self.directions):
                with torch.enable_grad():  # as in `_theirs`
                    ours = self._weights(index, direction)
                theirs = _theirs(module, index, direction)
                for short in ("weight_ih", "weight_hh"):
                    put(theirs[short], ours[short], learns=ours[short].requires_grad)
                if self.bias:
                    self._biases_to_torch(ours, theirs["bias_ih"], theirs["bias_hh"])
        return module.train(self.training)

    def _take_place(self, device: torch.device) -> None:
        """Move from meta to a device: the layer's own weights with any values, a subclass's other tensors with theirs."""
        for index in range(self.num_layers):
            for direction in range(self.directions):
                for short, weight in self._weights(index, direction).items():
                    empty = nn.Parameter(torch.empty_like(weight, device=device))
                    self.register_parameter(short + suffix_of(index, direction), empty)
        left = [name for name, tensor in (*self.named_parameters(), *self.named_buffers()) if tensor.is_meta]
        if left:
            name = type(self).__name__
            raise TypeError(
                f"{name}.from_torch: expected {name} to make only the weights of the layer on `device`, because it is made "
                f"on meta first, got {', '.join(left)} there, too."
            )
        self.to(device)

    @staticmethod
    def _biases_from_torch(ours: Weights, bias_ih: Tensor, bias_hh: Tensor) -> None:
        put(ours["bias"], bias_ih + bias_hh, learns=bias_ih.requires_grad or bias_hh.requires_grad)

    @staticmethod
    def _biases_to_torch(ours: Weights, bias_ih: Tensor, bias_hh: Tensor) -> None:
        learns = ours["bias"].requires_grad
        put(bias_ih, ours["bias"], learns=learns)
        put(bias_hh, torch.zeros_like(bias_hh), learns=learns)


def put(parameter: Tensor, value: Tensor, *, learns: bool) -> None:
    """Copy a value into a parameter, and say whether it learns."""
    with torch.no_grad():
        parameter.copy_(value)
    parameter.requires_grad_(learns)


@torch.enable_grad()  # a parametrised weight shows whether it learns only then
def _theirs(module: nn.RNNBase, layer: int, direction: int) -> dict[str, Tensor]:
    suffix = f"_l{layer}" + ("_reverse" if direction else "")
    names = ["weight_ih", "weight_hh"] + (["bias_ih", "bias_hh"] if module.bias else [])
    return {name: getattr(module, name + suffix) for name in names}
