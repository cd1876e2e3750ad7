"""Streams: one time step per call, in constant time and memory, for live signals."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mistrnn.kernels.stream import FusedStream
from mistrnn.layers import checks
from mistrnn.layers.backends import Weights, project
from mistrnn.layers.recurrence import StateHistory, advance
from mistrnn.layers.state import Part, State

if TYPE_CHECKING:
    from mistrnn.layers.base import RecurrentLayer


class Stream:
    """A running layer: `output = stream(input)` takes one time step; made by `layer.stream(batch_size)`.

    It computes the outputs of a whole run, without gradients, on a copy of the weights. On a CPU it runs on the layer's
    backend, on a GPU on the reference. Forward hooks of the layer are not called.
    """

    def __init__(self, layer: "RecurrentLayer", batch_size: int, state: State | None) -> None:
        self._name = type(layer).__name__
        layer.require_own_forward(f"{self._name}.stream")
        if layer.bidirectional:
            raise ValueError(
                f"{self._name}: expected bidirectional=False for a stream, because the second direction starts at the "
                "last step."
            )
        if layer.draws_at_random:
            raise ValueError(
                f"{self._name}: expected evaluation mode for a stream, because dropout and zoneout draw at random in "
                "training; call layer.eval() first."
            )
        self._input_size, self._batch = layer.input_size, batch_size
        self._layout = layer.state_layout(batch_size)
        with torch.no_grad():
            weights = layer.all_cell_weights(recompute=True)
            self._like = weights[0]["weight_hh"].detach()
            parts = self._layout.unpack(state, self._like)
            # On a GPU a step is a launch on either backend.
            fused = layer.takes_fused(self._like) and self._like.device.type == "cpu" and _is_one_cell(layer)
            steps = fused_steps if fused else _ReferenceSteps
            self._layers = [steps(layer, *pair) for pair in zip(weights, parts, strict=True)]

    @torch.no_grad()
    def __call__(self, input: Tensor, reset: Tensor | None = None) -> Tensor:
        """Take the input of one step [B, I] and return its output [B, H].

        reset [B] bool: the sequences that start afresh at this step.
        """
        if not isinstance(input, Tensor) or input.shape != (self._batch, self._input_size):
            got = list(input.shape) if isinstance(input, Tensor) else type(input).__name__
            raise ValueError(
                f"{self._name}.stream: expected input [{self._batch}, {self._input_size}], one step of {self._batch} "
                f"sequences with input_size={self._input_size}, got {got}."
            )
        checks.check_input(self._name, input, self._input_size, False, self._like)
        if reset is not None:
            checks.check_reset(self._name, reset, [self._batch], "[B]", self._like)
        x = input.to(self._like.dtype)  # autocast may hand on low-precision input
        for layer in self._layers:
            if reset is not None:
                layer.reset(reset)
            x = layer(x)
        return x

    @property
    def state(self) -> State:
        """The state after the last step, in the form that the layer takes and returns."""
        return self._layout.pack([layer.state() for layer in self._layers])


def _is_one_cell(layer: "RecurrentLayer") -> bool:
    """Return whether the cell alone computes the layer: no projection follows it."""
    return set(layer.state_sizes) == {layer.hidden_size}


def fused_steps(layer: "RecurrentLayer", weights: Weights, part: Part) -> FusedStream:
    """Return a fused stream of one layer from its state."""
    initial, clock = (part[:-1], part[-1]) if layer.cell.has_clock else (part, None)
    return FusedStream(layer.cell.name, weights, initial, clock, layer.lags, float(layer.zoneout))


class _ReferenceSteps:
    """One layer, step by step on the reference backend."""

    def __init__(self, layer: "RecurrentLayer", weights: Weights, part: Part) -> None:
        self._weights = {name: weight.detach().clone() for name, weight in weights.items()}
        self._step = layer.step(self._weights)
        self._zoneout, self._memory = float(layer.zoneout) or None, layer.memory
        own = [value.detach().clone() for value in part]  # the caller may change its state afterwards
        self._past = StateHistory(own[: len(layer.cell.state)])
        self._past.clock = own[-1] if layer.cell.has_clock else None

    def __call__(self, x: Tensor) -> Tensor:
        past = self._past
        output = advance(self._step, project(x, self._weights), past, self._zoneout)[0]
        if past.age is not None:
            past.age = past.age + 1
        if past.clock is not None:
            past.clock = past.clock + 1
        return output.clone()  # the caller may change it; the history keeps the original

    def reset(self, rows: Tensor) -> None:
        past = self._past
        age = torch.full_like(rows, self._memory, dtype=torch.int64) if past.age is None else past.age
        past.age = age.masked_fill(rows, 0)
        past.clock = past.clock.masked_fill(rows, 0) if past.clock is not None else None

    def state(self) -> tuple[Tensor, ...]:
        return self._past.stacked() + (() if self._past.clock is None else (self._past.clock,))
