"""One step at a time, in constant time and memory: what a device or a live signal needs."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mistrnn.kernels.stream import FusedStream
from mistrnn.layers import _checks
from mistrnn.layers._forms import Weights
from mistrnn.layers._recurrence import Past, advance
from mistrnn.layers._state import State

if TYPE_CHECKING:
    from mistrnn.layers._layer import RecurrentLayer


class Stream:
    """A running layer: `output = stream(input)` for one step after another; made by `layer.stream(batch_size)`.

    It runs the same steps as a whole run, without gradients, on a copy of the weights as they were when it was made; on a
    CPU in the layer's form, on a GPU in the plain one. Forward hooks of the layer are not called.
    """

    def __init__(self, layer: "RecurrentLayer", batch_size: int, state: State | None) -> None:
        self._name = type(layer).__name__
        layer._refuse_own_forward(f"{self._name}.stream")
        if layer.bidirectional:
            raise ValueError(
                f"{self._name}: expected bidirectional=False for a stream, because the future has not come yet."
            )
        if layer.draws_at_random:
            raise ValueError(
                f"{self._name}: expected evaluation mode for a stream, because dropout and zoneout draw at random in "
                "training; call layer.eval() first."
            )
        self._input_size, self._batch = layer.input_size, batch_size
        self._form = layer._state_form(batch_size)
        with torch.no_grad():
            weights = layer._current_weights()
            self._like = weights[0]["weight_hh"].detach()
            parts = self._form.unpack(state, self._like)
            # On a GPU a single step is a launch whatever the form, so that the plain one serves.
            fused = layer._takes_fused(self._like) and self._like.device.type == "cpu"
            kind = _fused_steps if fused else _PlainSteps
            self._layers = [kind(layer, *pair) for pair in zip(weights, parts, strict=True)]

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
        _checks.check_input(self._name, input, self._input_size, False, self._like)
        if reset is not None:
            _checks.check_reset(self._name, reset, [self._batch], "[B]", self._like)
        x = input.to(self._like.dtype)  # autocast may hand on low-precision input
        for layer in self._layers:
            if reset is not None:
                layer.reset(reset)
            x = layer(x)
        return x

    @property
    def state(self) -> State:
        """The state after the last step, in the form that the layer takes and returns."""
        return self._form.pack([layer.state() for layer in self._layers])


def _fused_steps(layer: "RecurrentLayer", weights: Weights, part: tuple[Tensor, ...]) -> FusedStream:
    assert layer.fused_name is not None
    initial, clock = (part[:-1], part[-1]) if layer.has_clock else (part, None)
    return FusedStream(layer.fused_name, weights, initial, clock, layer._delays(), float(layer.zoneout))


class _PlainSteps:
    """One layer, step by step through its reference."""

    def __init__(self, layer: "RecurrentLayer", weights: Weights, part: tuple[Tensor, ...]) -> None:
        self._weights = {name: weight.detach().clone() for name, weight in weights.items()}
        self._step, self._project = layer._step(self._weights, None), layer._project
        self._zoneout, self._memory = float(layer.zoneout) or None, layer._memory()
        own = [value.detach().clone() for value in part]  # the caller may change its state afterwards
        self._past = Past(own[: len(layer.state_components)])
        self._past.clock = own[-1] if layer.has_clock else None

    def __call__(self, x: Tensor) -> Tensor:
        past = self._past
        output = advance(self._step, self._project(x, self._weights), past, self._zoneout)[0]
        if past.age is not None:
            past.age = past.age + 1
        if past.clock is not None:
            past.clock = past.clock + 1
        return output.clone()  # the caller may do with it what it likes, the stream remembers the original

    def reset(self, rows: Tensor) -> None:
        past = self._past
        age = torch.full_like(rows, self._memory, dtype=torch.int64) if past.age is None else past.age
        past.age = age.masked_fill(rows, 0)
        past.clock = past.clock.masked_fill(rows, 0) if past.clock is not None else None

    def state(self) -> tuple[Tensor, ...]:
        return self._past.stacked() + (() if self._past.clock is None else (self._past.clock,))
