"""The declaration of GRU's cell."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from torch import Tensor

from mistrnn.kernels.cell import (
    NO_ROWS,
    Cell,
    CudaKernels,
    Extent,
    Registers,
    RowBlock,
    WeightGrad,
    register_cell,
)
from mistrnn.layers.gru.reference import gru
from mistrnn.layers.recurrence import Step


def _step(weights: Mapping[str, Tensor], dropout: Tensor | None, _: Sequence[int]) -> Step:
    return gru(weights["weight_hh"], weights.get("bias"), weights.get("bias_hn"), weights.get("gain"), dropout)


CELL = Cell(
    name="gru",
    step=_step,
    folder=Path(__file__).parent,
    row_blocks=(RowBlock("r"), RowBlock("z"), RowBlock("n")),
    hidden_bias=True,
    saved=Extent(hidden=4),
    saves_fresh_state=False,
    extra_gradient_rows=Extent(hidden=1),  # of what the reset gate multiplies: W_hn h_{t-1} + b_hn
    weight_grads=(
        WeightGrad(NO_ROWS, Extent(hidden=2)),
        WeightGrad(Extent(hidden=3), Extent(hidden=4)),
    ),
    cuda=CudaKernels(
        registers=Registers(forward=100, backward=112, single_sequence=84, per_value=6, per_value_backward=9),
        saved_vectors=5,
    ),
)
register_cell(CELL)
