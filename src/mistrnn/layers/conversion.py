"""Conversion of whole models: every torch.nn.RNN, LSTM and GRU inside becomes a layer of mistrnn, or the other way round.

B batch, H hidden.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized
from torch.nn.utils.rnn import PackedSequence

from mistrnn._torch_compat import copy_hooks
from mistrnn.layers.gru import GRU
from mistrnn.layers.lstm import LSTM
from mistrnn.layers.match import match_parameters
from mistrnn.layers.mist import MIST
from mistrnn.layers.rnn import RNN
from mistrnn.layers.state import HistoryState, State
from mistrnn.layers.torch_twin import TorchTwin

TWINS: dict[type[nn.RNNBase], type[TorchTwin]] = {nn.RNN: RNN, nn.LSTM: LSTM, nn.GRU: GRU}
"""The layer with the same equations and parameters for each of torch's."""

Target = Literal["mistrnn", "torch", "mist"]


@dataclass(frozen=True)
class Swap:
    """One replaced module."""

    name: str
    """Its name in the model."""
    before: str
    after: str
    parameters_before: int
    parameters_after: int
    difference: float | None
    """The largest difference of output and state on random input; None where the new layer starts afresh."""

    def __str__(self) -> str:
        counts = f"{self.parameters_before:,} -> {self.parameters_after:,} parameters"
        result = "fresh start" if self.difference is None else f"largest difference {self.difference:.1e}"
        return f"{self.name or 'model'}: {self.before} -> {self.after}, {counts}, {result}"


@dataclass(frozen=True)
class Conversion:
    """The result of `convert`: the model, what was replaced, and what was not."""

    model: nn.Module
    swaps: tuple[Swap, ...]
    skipped: tuple[str, ...]
    """The other recurrent modules of the model, with the reason for each."""

    def __str__(self) -> str:
        if not self.swaps and not self.skipped:
            return "no recurrent layers to convert"
        return "\n".join([*map(str, self.swaps), *(f"{line} (kept)" for line in self.skipped)])


def convert(model: nn.Module, to: Target = "mistrnn", **options: Any) -> Conversion:
    """Replace the recurrent layers inside a model, in place.

    Args:
        model: any module; a recurrent layer itself is replaced, too.
        to: "mistrnn" turns torch's RNN, LSTM and GRU into mistrnn's. The parameter objects are kept, and with them optimizer
            state, hooks, devices, sharing and frozen parameters. "torch" does the reverse, for example for quantisation.
            "mist" replaces them by MIST layers with a linear output, freshly started, with as many parameters.
        options: further arguments of the MIST layers, such as `delays`.

    Returns:
        The model and a report, which `print` shows.

    >>> tagger = nn.ModuleDict({"encoder": nn.LSTM(8, 16, num_layers=2, bidirectional=True), "readout": nn.Linear(32, 5)})
    >>> conversion = convert(tagger)
    >>> tagger["encoder"]
    LSTM(8, 16, num_layers=2, bidirectional=True)
    >>> conversion.swaps[0].difference < 1e-6
    True
    """
    if to not in ("mistrnn", "torch", "mist"):
        raise ValueError(f"convert: expected to to be one of mistrnn, torch, mist, got {to!r}.")
    if not isinstance(model, nn.Module):
        raise TypeError(f"convert: expected model to be a torch.nn.Module, got {type(model).__name__}.")
    if options and to != "mist":
        raise TypeError(f"convert: expected no {next(iter(options))}, because it is an option of to='mist'.")
    replacements: dict[str, Callable[[Any], nn.Module]] = {
        "mistrnn": _twin_of,
        "torch": _torch_of,
        "mist": partial(_mist_of, options=options),
    }
    replace = replacements[to]
    swaps, skipped, replaced = [], [], dict[nn.Module, nn.Module]()
    for name, module in list(model.named_modules(remove_duplicate=False)):
        if not isinstance(module, TorchTwin if to == "torch" else nn.RNNBase):
            continue
        if module not in replaced:
            if (reason := _why_not(module, to)) is not None:
                skipped += [f"{name or 'model'}: {reason}"] if reason else []
                continue
            new = replace(module)
            swaps.append(_swap(name, module, new, fresh=to == "mist"))
            copy_hooks(module, new)
            replaced[module] = new
        if name:
            parent, _, own = name.rpartition(".")
            setattr(model.get_submodule(parent), own, replaced[module])
    return Conversion(replaced.get(model, model), tuple(swaps), tuple(skipped))


def _why_not(module: nn.Module, to: Target) -> str | None:
    """Return why a recurrent module is kept, an empty text if it is of the target's kind, or None if it is replaced."""
    if to == "torch":
        own = {option: value for option in _OWN_OPTIONS if (value := getattr(module, option))}
        return f"torch has no {', '.join(own)}" if own else None
    if isinstance(module, TorchTwin):
        return ""
    if is_parametrized(module):
        return "its weights are parametrised; remove the parametrisation first"
    if type(module) not in TWINS:
        return f"{type(module).__name__} is a subclass, which may compute something else"
    return None


_OWN_OPTIONS = ("zoneout", "recurrent_dropout", "layer_norm")


def _twin_of(module: nn.RNNBase) -> nn.Module:
    """Return the twin that holds the module's own parameters, buffers and weights computed by hooks."""
    kind = TWINS[type(module)]
    like = next(module.parameters())
    layer = kind(
        module.input_size,
        module.hidden_size,
        module.num_layers,
        bias=module.bias,
        batch_first=module.batch_first,
        dropout=module.dropout if module.num_layers > 1 else 0.0,
        bidirectional=module.bidirectional,
        device="meta",
        dtype=like.dtype,
        **kind.twin_arguments(module),
    )
    _share_parameters(module, layer)
    return layer.train(module.training)


def _torch_of(module: TorchTwin) -> nn.Module:
    layer = module.to_torch()
    if not module.single_bias:
        _share_parameters(module, layer)
    new: nn.Module = layer
    return new


def _share_parameters(source: nn.Module, target: nn.Module) -> None:
    """Let a module hold the parameters and buffers of another one, and the weights that hooks compute from them."""
    names = [name for name, _ in target.named_parameters(recurse=False)]
    for name in names:
        delattr(target, name)
    for name, parameter in source.named_parameters(recurse=False, remove_duplicate=False):
        target.register_parameter(name, parameter)
    for name, buffer in source.named_buffers(recurse=False, remove_duplicate=False):
        target.register_buffer(name, buffer)
    for name in names:
        if name in vars(source):
            vars(target)[name] = vars(source)[name]


class MatchedMIST(nn.Module):
    """A MIST layer with a linear output of another layer's width, in the place of that layer.

    The state is the pair (h, history): h after the linear output, as the model reads it, and the history of the MIST layer.

    Args:
        width: the features of h.
        layer: the MIST layer.
    """

    def __init__(self, width: int, layer: MIST) -> None:
        super().__init__()
        like = next(layer.parameters())
        self.input_size, self.hidden_size = layer.input_size, width
        self.num_layers, self.bidirectional, self.batch_first = layer.num_layers, layer.bidirectional, layer.batch_first
        self.layer = layer
        self.output = nn.Linear(layer.hidden_size, width, device=like.device, dtype=like.dtype)

    def flatten_parameters(self) -> None:
        """Do nothing, as `RecurrentLayer.flatten_parameters`."""

    def forward(self, input: Any, state: State | None = None, *, hx: State | None = None, **options: Any) -> Any:
        """Run whole sequences; arguments as in `RecurrentLayer.forward`."""
        state = hx if state is None else state
        if state is not None:
            if not isinstance(state, tuple | list) or len(state) != 2:
                raise TypeError(
                    "MatchedMIST: expected state to be the pair (h, history) that an earlier call returned."
                )
            state = HistoryState(state[1][:, -1], state[1])
        output, (_, history) = self.layer(input, state, **options)
        state = HistoryState(self.output(history[:, -1]), history)
        if isinstance(output, PackedSequence):
            return output._replace(data=self._by_direction(output.data)), state
        return self._by_direction(output), state

    def _by_direction(self, output: Tensor) -> Tensor:
        """Apply the linear output to each direction of [..., directions * H]."""
        parts = output.reshape(*output.shape[:-1], self.layer.directions, self.layer.hidden_size)
        found: Tensor = self.output(parts).flatten(-2)
        return found


def _mist_of(module: nn.RNNBase, options: dict[str, Any]) -> nn.Module:
    like = next(module.parameters())
    width = module.proj_size or module.hidden_size
    shared: dict[str, Any] = {
        "num_layers": module.num_layers,
        "bias": module.bias,
        "bidirectional": module.bidirectional,
        **options,
    }
    units = match_parameters(MIST, _count(module), module.input_size, width, **shared)
    layer = MIST(
        module.input_size,
        units,
        batch_first=module.batch_first,
        dropout=module.dropout if module.num_layers > 1 else 0.0,
        device=like.device,
        dtype=like.dtype,
        **shared,
    )
    return MatchedMIST(width, layer).train(module.training)


def _swap(name: str, before: nn.Module, after: nn.Module, *, fresh: bool) -> Swap:
    difference = None if fresh else _difference(before, after)
    return Swap(name, _described(before), _described(after), _count(before), _count(after), difference)


def _count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _described(module: nn.Module) -> str:
    package = "torch.nn" if type(module).__module__.startswith("torch.") else "mistrnn"
    return f"{package}.{module}"


@torch.no_grad()
def _difference(before: Any, after: Any, steps: int = 16, batch: int = 2) -> float:
    """Return the largest absolute difference of output and state on random input, in evaluation mode."""
    like = next(before.parameters())
    generator = torch.Generator().manual_seed(0)
    input = torch.randn(steps, batch, before.input_size, generator=generator).to(like)
    if before.batch_first:
        input = input.transpose(0, 1)
    results = []
    for module in (before, after):
        training = module.training
        output, state = module.eval().forward(input)
        module.train(training)
        results.append([output, *(state if isinstance(state, tuple) else (state,))])
    return max(float((a - b).abs().max()) for a, b in zip(*results, strict=True))
