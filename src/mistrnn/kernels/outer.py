"""Weight gradients on a GPU: what each step sends to the weights is added up by a kernel of its own.

E trials, T time, B batch.
"""

import ctypes
from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor

from mistrnn.kernels._arguments import numbers, pointers
from mistrnn.kernels._nvrtc import OuterKernel
from mistrnn.kernels._outer import OuterVariant
from mistrnn.kernels._run import Run, current, current_stream
from mistrnn.kernels._variant import MAX_DELAYS
from mistrnn.kernels.choices import capability_of, outer_choice, ranges_of
from mistrnn.kernels.products import product


class Operand(ctypes.Structure):
    """One side of a weight gradient; `Operand` in kernels/cuh/outer.cuh has the same fields."""

    _fields_ = (
        *pointers("at"),
        *numbers("trial", "step"),
        *pointers("first"),
        *numbers("first_trial", "places", "stride"),
    )


class OuterArguments(ctypes.Structure):
    """What the kernel of a weight gradient is handed; `Arguments` in kernels/cuh/outer.cuh has the same fields."""

    _fields_ = (
        *numbers("E", "depth"),
        ("tall", Operand),
        ("wide", Operand),
        *numbers("width"),
        ("delays", ctypes.c_int64 * MAX_DELAYS),
        *numbers("per_range"),
        *pointers("result"),
    )


def weight_gradient(
    run: Run, dz: Tensor, read: Tensor, before: Tensor | None = None, delays: Sequence[int] = (0,)
) -> Tensor:
    """Return the sum over steps and sequences of dz [E, T, B, rows] times what was read, [E, rows, columns].

    `read` [E, T, B, width] holds what was read at each step; with `before` [E, M, B, width], which ends where `read` begins,
    what was read each of the delays later, one beside the other.
    """
    a, b = _rows(dz), _rows(read)
    (trials, depth, rows), width, columns = a.shape, b.size(2), b.size(2) * len(delays)
    first = None if before is None else _rows(before)
    if run.settings.parts == 0 or not run.E * run.T * run.B:
        if first is not None:
            both = torch.cat([first, b], 1)
            begins = [first.size(1) - delay * run.B for delay in delays]
            return torch.cat([product(a.mT, both[:, begin : begin + depth]) for begin in begins], 2)
        return product(a.mT, b)
    if first is not None and first.stride(1) != b.stride(1):  # the kernel takes the same step in both
        first, b = first.contiguous(), b.contiguous()
    turned, variant = outer_choice(run.settings.parts, rows, columns, len(delays) > 1, capability_of(run.x.device))
    of_dz = Operand(at=a.data_ptr(), trial=a.stride(0), step=a.stride(1), places=rows, stride=columns)
    of_read = Operand(at=b.data_ptr(), trial=b.stride(0), step=b.stride(1), places=columns, stride=1)
    if first is not None:
        of_read.first = first.data_ptr() + first.size(1) * first.stride(1) * first.element_size()
        of_read.first_trial = first.stride(0)
    tall, wide = (of_read, of_dz) if turned else (of_dz, of_read)
    blocks = variant.blocks(tall.places, wide.places)
    ranges, per_range = ranges_of(depth, blocks * trials, run.x.device)
    result = a.new_empty(ranges, trials, rows, columns)
    arguments = OuterArguments(E=trials, depth=depth, tall=tall, wide=wide, width=width, per_range=per_range)
    arguments.delays = (ctypes.c_int64 * MAX_DELAYS)(*(delay * run.B for delay in delays))
    arguments.result = result.data_ptr()
    kernel = load(variant, run.x.device)
    with current(run.x.device):
        kernel.run(arguments, (blocks, ranges, trials), current_stream(run.x.device))
    return result.sum(0) if ranges > 1 else result[0]


def _rows(tensor: Tensor) -> Tensor:  # [E, T, B, N] -> [E, T * B, N]
    """Return a tensor by steps and sequences, whose rows are contiguous: the kernel takes that for granted."""
    rows = tensor.flatten(1, 2)
    return rows if rows.stride(2) == 1 or rows.size(2) == 1 else rows.contiguous()


@cache
def load(variant: OuterVariant, device: torch.device) -> OuterKernel:
    """Return the kernel of a weight gradient on a device."""
    with torch.cuda.device(device):
        torch.cuda.current_stream(device)
        return OuterKernel(variant)
