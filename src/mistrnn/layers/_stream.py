"""One step at a time, in constant time and memory: what a device or a live signal needs."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mistrnn.layers import _checks
from mistrnn.layers._recurrence import Past, advance
from mistrnn.layers._state import State

if TYPE_CHECKING:
    from mistrnn.layers._layer import RecurrentLayer


class Stream:
    """A running layer: `output = stream(input)` for one step after another; made by `layer.stream(batch_size)`.

    It runs the same steps as a whole run, without gradients, on a copy of the weights as they were when it was made.
    """

    def __init__(self, layer: "RecurrentLayer", batch_size: int, state: State | None) -> None:
        self._name = type(layer).__name__
        if layer.bidirectional:
            raise ValueError(
                f"{self._name}: expected bidirectional=False for a stream, because the future has not come yet."
            )
        if layer.training and (layer.zoneout or layer.recurrent_dropout or (layer.dropout and layer.num_layers > 1)):
            raise ValueError(
                f"{self._name}: expected evaluation mode for a stream, because dropout and zoneout draw at random in "
                "training; call layer.eval() first."
            )
        self._input_size = layer.input_size
        self._form = layer._state_form(batch_size)
        self._zoneout = layer.zoneout or None
        self._project = layer._project
        with torch.no_grad():
            self._weights = [
                {name: weight.detach().clone() for name, weight in weights.items()} for weights in layer._all_weights()
            ]
            self._like = self._weights[0]["weight_hh"]
            self._steps = [layer._step(weights, None) for weights in self._weights]
            self._pasts: list[Past] = []
            for part in self._form.unpack(state, self._like):
                own = [value.detach().clone() for value in part]  # the caller may change its state afterwards
                past = Past(own[: len(layer.state_components)])
                past.clock = own[-1] if layer.has_clock else None
                self._pasts.append(past)

    @torch.no_grad()
    def __call__(self, input: Tensor, reset: Tensor | None = None) -> Tensor:
        """Take the input of one step [B, I] and return its output [B, H].

        reset [B] bool: the sequences that start afresh at this step.
        """
        batch = self._form.batch
        assert batch is not None
        if not isinstance(input, Tensor) or list(input.shape) != [batch, self._input_size]:
            got = list(input.shape) if isinstance(input, Tensor) else type(input).__name__
            raise ValueError(
                f"{self._name}.stream: expected input [{batch}, {self._input_size}], one step of {batch} sequences "
                f"with input_size={self._input_size}, got {got}."
            )
        _checks.check_input(self._name, input, self._input_size, False, self._like)
        if reset is not None:
            _checks.check_reset(self._name, reset, [batch], "[B]", self._like)
        x = input
        for weights, step, past in zip(self._weights, self._steps, self._pasts, strict=True):
            if reset is not None:
                age = torch.full_like(reset, self._form.memory, dtype=torch.int64) if past.age is None else past.age
                past.age = age.masked_fill(reset, 0)
                past.clock = past.clock.masked_fill(reset, 0) if past.clock is not None else None
            x = advance(step, self._project(x, weights), past, self._zoneout)[0]
            if past.age is not None:
                past.age = past.age + 1
            if past.clock is not None:
                past.clock = past.clock + 1
        return x.clone()  # the caller may do with it what it likes, the stream remembers the original

    @property
    def state(self) -> State:
        """The state after the last step, in the form that the layer takes and returns."""
        parts = []
        for past in self._pasts:
            parts.append(past.stacked() + (() if past.clock is None else (past.clock,)))
        return self._form.pack(parts)
