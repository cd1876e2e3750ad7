"""The declaration of LSTM's cell."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from torch import Tensor

from mistrnn.kernels.cell import (
    Cell,
    CudaKernels,
    Extent,
    Registers,
    RowBlock,
    StepwiseKernels,
    register_cell,
)
from mistrnn.layers.lstm.reference import lstm
from mistrnn.layers.recurrence import Step


def _step(weights: Mapping[str, Tensor], dropout: Tensor | None, _: Sequence[int]) -> Step:
    return lstm(weights["weight_hh"], weights.get("bias"), weights.get("gain"), dropout, weights.get("weight_hr"))


CELL = Cell(
    name="lstm",
    step=_step,
    folder=Path(__file__).parent,
    row_blocks=(RowBlock("i"), RowBlock("f"), RowBlock("g"), RowBlock("o")),
    state=("h", "c"),
    saved=Extent(hidden=5),
    saves_fresh_state=False,
    cuda=CudaKernels(
        registers=Registers(forward=92, backward=136, single_sequence=60, per_value=6, per_value_backward=9),
        saved_vectors=5,
        min_cluster={139: 3},
    ),
    stepwise=StepwiseKernels(min_hidden=256, min_macs=3 * 2**25),
)
register_cell(CELL)
