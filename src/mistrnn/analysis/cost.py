"""Operations and memory traffic of one time step of a recurrent layer, and the time it takes.

I input, H hidden, T time, B batch.
"""

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from mistrnn.analysis.paths import delays_read
from mistrnn.layers import Clockwork, RecurrentLayer
from mistrnn.layers.backends import project
from mistrnn.layers.recurrence import StateHistory, advance

REPEATS = 7


@dataclass(frozen=True)
class StepCost:
    """The cost of one time step of one sequence, forward, in evaluation."""

    parameters: int
    """Weights that the layer has."""
    multiply_adds: int
    """Of the matrix products with `weight_ih` and `weight_hh`, as the reference computes them."""
    effective_multiply_adds: float
    """Those that change the state, in the mean over time. Clockwork has fewer: rows of groups that tick, no severed weights."""
    elementwise: int
    """Element operations outside of the products in the reference: additions, multiplications and nonlinearities."""
    weight_bytes: int
    """Parameters, read once for all sequences of a batch."""
    state_bytes: int
    """Inputs and states that a sequence reads and writes."""


@torch.no_grad()
def step_cost(layer: RecurrentLayer) -> StepCost:
    """Count the operations and the memory traffic of one time step of a layer.

    Args:
        layer: a layer of mistrnn.

    >>> from mistrnn import LSTM, MIST
    >>> step_cost(MIST(1, 100)).multiply_adds, step_cost(LSTM(1, 100)).multiply_adds
    (21008, 40400)
    """
    weights = layer.all_cell_weights(recompute=True)
    products = sum(own[name].numel() for own in weights for name in ("weight_ih", "weight_hh"))
    effective = sum(_ticking(layer, own) for own in weights) if isinstance(layer, Clockwork) else float(products)
    itemsize = weights[0]["weight_hh"].element_size()
    vectors = (len(delays_read(layer)) + 1) * len(layer.cell.state) * len(weights)
    inputs = layer.input_size + (layer.num_layers - 1) * layer.output_size
    return StepCost(
        parameters=layer.parameter_count(),
        multiply_adds=products,
        effective_multiply_adds=effective,
        elementwise=sum(_element_operations(layer, own) for own in weights),
        weight_bytes=itemsize * layer.parameter_count(),
        state_bytes=itemsize * (vectors * layer.hidden_size + inputs),
    )


def milliseconds(layers: Mapping[str, RecurrentLayer], *, steps: int, batch: int) -> dict[str, tuple[float, float]]:
    """Return the median times of a run over whole sequences: forward alone, and forward with the backward pass.

    The layers are measured in turn, so that other work on the machine affects all of them alike.

    Args:
        layers: by name; on a CPU.
        steps: T.
        batch: B.
    """

    def forward(layer: RecurrentLayer, input: Tensor) -> None:
        with torch.no_grad():
            layer(input)

    def both(layer: RecurrentLayer, input: Tensor) -> None:
        layer.zero_grad()
        layer(input)[0].sum().backward()

    inputs = {name: torch.randn(steps, batch, layer.input_size) for name, layer in layers.items()}
    times: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in layers}
    for repeat in range(REPEATS + 1):
        for name, layer in layers.items():
            for work, found in zip((forward, both), times[name], strict=True):
                start = time.perf_counter()
                work(layer, inputs[name])
                if repeat:  # not the first: it compiles and allocates
                    found.append(1000 * (time.perf_counter() - start))
    return {name: (statistics.median(one), statistics.median(two)) for name, (one, two) in times.items()}


def _ticking(layer: Clockwork, weights: Mapping[str, Tensor]) -> float:
    """Return the multiply-adds of the rows that tick, in the mean over time."""
    group, periods = layer.hidden_size // len(layer.periods), layer.periods
    columns = [weights["weight_ih"].size(1) + group * sum(other >= period for other in periods) for period in periods]
    return sum(group * count / period for count, period in zip(columns, periods, strict=True))


def _element_operations(layer: RecurrentLayer, weights: Mapping[str, Tensor]) -> int:
    """Count the element operations of the reference step."""
    like = weights["weight_hh"]
    x = project(like.new_zeros(1, weights["weight_ih"].size(1)), weights)
    past = StateHistory([like.new_zeros(layer.memory, 1, size) for size in layer.state_sizes])
    if layer.cell.has_clock:
        past.clock = torch.zeros(1, dtype=torch.int64, device=like.device)
    step = layer.step(weights)
    counter = FlopCounterMode(display=False, custom_mapping=dict.fromkeys(ELEMENTWISE, _elements))
    with counter:
        advance(step, x, past, float(layer.zoneout) or None)
    counts = counter.get_flop_counts()["Global"]
    return sum(count for operation, count in counts.items() if operation in ELEMENTWISE)


def _elements(*arguments: Any, out_shape: Any = None, **options: Any) -> int:
    """Count one operation for each element that is read or written, whichever are more."""
    shapes: Sequence[Any] = [shape for shape in (*arguments, out_shape) if isinstance(shape, torch.Size)]
    return max((math.prod(shape) for shape in shapes), default=0)


_aten: Any = torch.ops.aten
ELEMENTWISE: tuple[Callable[..., Any], ...] = (
    *(_aten.add, _aten.sub, _aten.rsub, _aten.mul, _aten.sum, _aten.where, _aten.masked_fill),
    *(_aten.tanh, _aten.sigmoid, _aten._softmax, _aten.native_layer_norm),
)
