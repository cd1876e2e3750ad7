"""The declaration of the cell of the LSTM with peepholes."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from torch import Tensor

from mistrnn.kernels.cell import Cell, CudaKernels, Extent, Registers, RowBlock, register_cell
from mistrnn.layers.peephole_lstm.reference import peephole_lstm
from mistrnn.layers.recurrence import Step


def _step(weights: Mapping[str, Tensor], dropout: Tensor | None, _: Sequence[int]) -> Step:
    return peephole_lstm(weights["weight_hh"], weights["weight_ch"], weights.get("bias"), weights.get("gain"), dropout)


CELL = Cell(
    name="peephole_lstm",
    step=_step,
    folder=Path(__file__).parent,
    row_blocks=(RowBlock("i"), RowBlock("f"), RowBlock("g"), RowBlock("o")),
    state=("h", "c"),
    diagonal_weights=("i", "f", "o"),
    saved=Extent(hidden=5),
    saves_fresh_state=False,
    cuda=CudaKernels(
        registers=Registers(forward=92, backward=144, single_sequence=60, per_value=6, per_value_backward=12),
        saved_vectors=5,
    ),
)
register_cell(CELL)
