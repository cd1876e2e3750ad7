"""The declaration of the Clockwork RNN's cell."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from mistrnn.kernels.cell import (
    Cell,
    CudaKernels,
    Lags,
    Registers,
    register_cell,
)
from mistrnn.layers.clockwork.reference import clockwork, periods_of_units, severed
from mistrnn.layers.recurrence import Step


def _step(weights: Mapping[str, Tensor], dropout: Tensor | None, periods: Sequence[int]) -> Step:
    return clockwork(weights["weight_hh"], weights.get("bias"), weights.get("gain"), dropout, tuple(periods))


def _weight_mask(periods: Sequence[int], hidden: int, device: torch.device) -> Tensor:  # [H, H] bool
    """Return the severed weights."""
    return severed(periods_of_units(tuple(periods), hidden // len(periods), device))


CELL = Cell(
    name="clockwork",
    step=_step,
    folder=Path(__file__).parent,
    lags=Lags.PERIODS,
    weight_mask=_weight_mask,
    cuda=CudaKernels(
        registers=Registers(forward=64, backward=92, single_sequence=64, per_value=3, per_value_backward=6),
        max_hidden_without_clusters=512,
        max_single_sequence_blocks={2: 1, 3: 4},
    ),
)
register_cell(CELL)
