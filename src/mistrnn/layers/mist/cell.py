"""The declaration of the MIST RNN's cell."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from torch import Tensor

from mistrnn.kernels.cell import (
    NO_ROWS,
    ONE_PER_LAG,
    Cell,
    CudaKernels,
    Extent,
    Lags,
    Operand,
    Registers,
    RowBlock,
    StepwiseKernels,
    WeightGrad,
    register_cell,
)
from mistrnn.layers.mist.reference import mist
from mistrnn.layers.recurrence import Step


def _step(weights: Mapping[str, Tensor], dropout: Tensor | None, delays: Sequence[int]) -> Step:
    return mist(weights["weight_hh"], weights.get("bias"), weights.get("gain"), dropout, tuple(delays))


CELL = Cell(
    name="mist",
    step=_step,
    folder=Path(__file__).parent,
    row_blocks=(RowBlock("a", ONE_PER_LAG), RowBlock("r"), RowBlock("h")),
    lags=Lags.DELAYS,
    saved=Extent(hidden=1, lags=1),
    weight_grads=(
        WeightGrad(NO_ROWS, Extent(hidden=1, lags=1)),
        WeightGrad(Extent(hidden=1, lags=1), Extent(hidden=2, lags=1), Operand.MIXED_HISTORY),
    ),
    cuda=CudaKernels(
        registers=Registers(
            forward=72,
            backward=100,
            single_sequence=72,
            per_value=5,
            per_value_backward=8,
            forward_per_lag=1,
            backward_per_lag=2,
        ),
        saved_vectors=2,
        saved_vectors_for_inference=1,
        saves_fresh_state=True,
        saved_lag_vectors=1,
        has_mixed_history=True,
        max_hidden_without_clusters=128,
    ),
    stepwise=StepwiseKernels(min_hidden=512, min_macs=3 * 2**26),
)
register_cell(CELL)
