"""Stand-ins for the parts of a network that run over time, with the same interface, for tracing.

`StepLayer` and `StepConv` take one step. `ScanLayer` leaves each run over time open, as a node that a Scan over `ScanBody`
replaces.

T time, B batch, I input, H hidden, C channels, K taps, M memory.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from mistrnn.layers import RecurrentLayer
from mistrnn.layers.backends import project
from mistrnn.layers.recurrence import StateHistory, Step, advance
from mistrnn.layers.state import State, state_tensors
from mistrnn.models._frames import DepthwiseConv

OPEN_RUN = "mistrnn::Run"
"""The node that stands for one layer's run in one direction: its attributes name the layer and which of its runs it is."""


class _StandIn(nn.Module):
    """The attributes of a layer that networks read."""

    def __init__(self, layer: RecurrentLayer) -> None:
        super().__init__()
        self.layer = layer
        self.input_size, self.directions = layer.input_size, layer.directions
        self.cell = layer.cell
        self.weights = layer.all_cell_weights(recompute=True)


class StepLayer(_StandIn):
    """A layer that takes one step: x [1, B, I] and its state -> the output [1, B, H] and the state after it."""

    def __init__(self, layer: RecurrentLayer) -> None:
        super().__init__(layer)
        self.steps = [layer.step(weights) for weights in self.weights]

    def forward(self, input: Tensor, state: State, *, lengths: None = None) -> tuple[Tensor, State]:
        """Take the step."""
        layer, x = self.layer, input.squeeze(0)
        layout = layer.state_layout(x.size(0))
        after = []
        for part, weights, step in zip(
            layout.unpack_tensors(state_tensors(state), x), self.weights, self.steps, strict=True
        ):
            x, part_after = _advanced(layer, step, project(x, weights), part)
            after.append(part_after)
        return x.unsqueeze(0), layout.pack(after)


class StepConv(nn.Module):
    """A convolution that takes one step; the general one would convolve all of its history anew."""

    def __init__(self, conv: DepthwiseConv) -> None:
        super().__init__()
        self.taps = conv.weight.flip(0).unsqueeze(1)  # [K, 1, C], the oldest tap first as in the history
        self.bias = conv.bias

    def forward(self, x: Tensor, history: Tensor, current: Any, *, keep_history: bool) -> tuple[Tensor, Tensor]:
        """Convolve x [1, B, C] after its history [K - 1, B, C]."""
        seen = torch.cat([history, x])
        return F.silu((seen * self.taps).sum(0, keepdim=True) + self.bias), seen[1:]


class ScanLayer(_StandIn):
    """A layer whose runs over whole sequences are left open.

    number: names the layer in the open runs' attributes.
    """

    def __init__(self, layer: RecurrentLayer, number: int) -> None:
        super().__init__(layer)
        self.number = number

    def forward(self, input: Tensor, state: None = None, *, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Return the output [T, B, directions * H] and the last layer's h at each sequence's end, [directions, B, H].

        Padding of the input may hold anything: the bodies of the scans clear what comes of it.
        """
        layer, x = self.layer, input
        steps, batch = x.shape[:2]
        active = torch.arange(steps).unsqueeze(1) < lengths  # [T, B]
        parts = layer.state_layout(batch).unpack(None, x)
        for level in range(layer.num_layers):
            outputs = []
            for direction in range(layer.directions):
                index = level * layer.directions + direction
                outputs.append(
                    torch.onnx.ops.symbolic(
                        OPEN_RUN,
                        [*parts[index], project(x, self.weights[index]), active],
                        {"layer": self.number, "index": index},
                        dtype=x.dtype,
                        shape=(steps, batch, layer.hidden_size),
                    )
                )
            x = torch.cat(outputs, -1) if layer.bidirectional else outputs[0]
        place = (lengths - 1).view(1, -1, 1).expand(1, -1, layer.hidden_size)
        ends = [outputs[0].gather(0, place), *(backward[:1] for backward in outputs[1:])]
        return x, torch.cat(ends)


class ScanBody(nn.Module):
    """One step of one layer and direction, in the order of a Scan: its state first, and what is collected last."""

    def __init__(self, layer: RecurrentLayer, index: int) -> None:
        super().__init__()
        self.layer = layer
        self.step = layer.step(layer.all_cell_weights(recompute=True)[index])

    def forward(self, part: tuple[Tensor, ...], projected: Tensor, active: Tensor) -> tuple[Tensor, ...]:
        """Return the state after the step, and the output [B, H]."""
        output, after = _advanced(self.layer, self.step, projected, part, active)
        return *after, output


def _advanced(
    layer: RecurrentLayer, step: Step, projected: Tensor, part: tuple[Tensor, ...], active: Tensor | None = None
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Take one step from the state of one layer and direction; return its output [B, H] and the state after it.

    active [B] bool: whether a sequence is inside its length. Outside, outputs are zero. The second direction begins outside,
    where its states and its clock stay at zero; the first ends there, and its states are not read any more.
    """
    count = len(layer.cell.state)
    past = _SlicedPast(part[:count], active)
    past.clock = part[count] if layer.cell.has_clock else None
    new = advance(step, projected, past, layer.zoneout or None)
    after = past.stacked()
    if past.clock is not None:
        after += (past.clock + (1 if active is None else active.to(past.clock.dtype)),)
    return _cleared(new[0], active), after


class _SlicedPast(StateHistory):
    """The past as one tensor [M, B, H] per component, read by slices: a graph needs no node for steps that are not read."""

    def __init__(self, state: Sequence[Tensor], active: Tensor | None) -> None:
        self._tensors, self._active = tuple(state), active
        self.age = self.clock = None

    def __call__(self, delay: int, component: int = 0) -> Tensor:
        tensor = self._tensors[component]
        return tensor[tensor.size(0) - delay]

    def append(self, state: Sequence[Tensor]) -> None:
        self._tensors = tuple(
            torch.cat([tensor[1:], _cleared(value, self._active).unsqueeze(0)])
            for tensor, value in zip(self._tensors, state, strict=True)
        )

    def stacked(self) -> tuple[Tensor, ...]:
        return self._tensors


def _cleared(value: Tensor, active: Tensor | None) -> Tensor:  # [B, H]
    return value if active is None else value.masked_fill(~active.unsqueeze(-1), 0.0)
