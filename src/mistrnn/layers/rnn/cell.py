"""The declarations of the simple RNN's cells: with tanh, and with relu."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from torch import Tensor

from mistrnn.kernels.cell import (
    Cell,
    CudaKernels,
    Registers,
    register_cell,
)
from mistrnn.layers.recurrence import Step
from mistrnn.layers.rnn.reference import rnn


def _step(nonlinearity: str, weights: Mapping[str, Tensor], dropout: Tensor | None, _: Sequence[int]) -> Step:
    return rnn(weights["weight_hh"], weights.get("bias"), weights.get("gain"), dropout, nonlinearity)


CELL = Cell(
    name="rnn",
    step=partial(_step, "tanh"),
    folder=Path(__file__).parent,
    cuda=CudaKernels(
        registers=Registers(forward=72, backward=88, single_sequence=64, per_value=3, per_value_backward=6),
        max_hidden_without_clusters=512,
        max_single_sequence_blocks={2: 1, 3: 4},
    ),
)
register_cell(CELL)

CELLS = {"tanh": CELL, "relu": replace(CELL, name="rnn_relu", step=partial(_step, "relu"), folder=None, cuda=None)}
"""The cells by nonlinearity."""
