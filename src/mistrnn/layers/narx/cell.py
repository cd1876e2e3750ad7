"""The declaration of the simple NARX RNN's cell."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from torch import Tensor

from mistrnn.kernels.cell import (
    NO_ROWS,
    Cell,
    CudaKernels,
    Extent,
    Lags,
    Operand,
    Registers,
    WeightGrad,
    register_cell,
)
from mistrnn.layers.narx.reference import narx
from mistrnn.layers.recurrence import Step


def _step(weights: Mapping[str, Tensor], dropout: Tensor | None, delays: Sequence[int]) -> Step:
    return narx(weights["weight_hh"], weights.get("bias"), weights.get("gain"), dropout, tuple(delays))


CELL = Cell(
    name="narx",
    step=_step,
    folder=Path(__file__).parent,
    lags=Lags.DELAYS,
    recurrent_columns_per_lag=True,
    weight_grads=(WeightGrad(NO_ROWS, Extent(hidden=1), Operand.DELAYED_STATES),),
    cuda=CudaKernels(
        registers=Registers(forward=128, backward=136, single_sequence=48, per_value=4, per_value_backward=7),
        product_per_lag=True,
        partial_sums_per_delay=True,
        max_hidden_without_clusters=128,
        min_cluster={64: 2},
    ),
)
register_cell(CELL)
