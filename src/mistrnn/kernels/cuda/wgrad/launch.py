"""Weight gradients on a GPU: one GEMM over all steps and sequences, after the backward recurrence.

E trials, T time, B batch.
"""

import ctypes
from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor

from mistrnn.kernels.cuda.arguments import numbers, pointers
from mistrnn.kernels.cuda.heuristics import capability_of, choose_wgrad, split_k
from mistrnn.kernels.cuda.jit import WgradKernel
from mistrnn.kernels.cuda.launch import KernelCall, current, current_stream
from mistrnn.kernels.cuda.matmul_precision import matmul
from mistrnn.kernels.cuda.problem import MAX_DELAYS
from mistrnn.kernels.cuda.wgrad.variant import WgradVariant


class Operand(ctypes.Structure):
    """An operand of the GEMM; mirrors `Operand` in wgrad.cuh."""

    _fields_ = (
        *pointers("data"),
        *numbers("trial_stride", "step_stride"),
        *pointers("initial"),
        *numbers("initial_trial_stride", "columns", "result_stride"),
    )


class WgradArguments(ctypes.Structure):
    """The arguments of the kernel; mirrors `WgradArguments` in wgrad.cuh."""

    _fields_ = (
        *numbers("E", "depth"),
        ("a", Operand),
        ("b", Operand),
        *numbers("width"),
        ("delays", ctypes.c_int64 * MAX_DELAYS),
        *numbers("range"),
        *pointers("result"),
    )


def weight_gradient(
    call: KernelCall, dz: Tensor, read: Tensor, before: Tensor | None = None, delays: Sequence[int] = (0,)
) -> Tensor:
    """Return the sum over steps and sequences of dz [E, T, B, rows] times `read`, [E, rows, columns].

    Without `before`, `read` [E, T, B, width] is the vector read at each step. With `before` [E, M, B, width], which ends
    where `read` begins, each step reads the vectors that precede it by the delays, one after the other.
    """
    a, b = _rows(dz), _rows(read)
    (trials, depth, rows), width, columns = a.shape, b.size(2), b.size(2) * len(delays)
    initial = None if before is None else _rows(before)
    if call.settings.splits == 0 or not call.E * call.T * call.B:
        if initial is None:
            return matmul(a.mT, b)
        both = torch.cat([initial, b], 1)
        begins = [initial.size(1) - delay * call.B for delay in delays]
        return torch.cat([matmul(a.mT, both[:, begin : begin + depth]) for begin in begins], 2)
    if initial is not None and initial.stride(1) != b.stride(1):  # the kernel has one stride for both
        initial, b = initial.contiguous(), b.contiguous()
    device = call.x.device
    transposed, variant = choose_wgrad(call.settings.splits, rows, columns, len(delays) > 1, capability_of(device))
    of_dz = Operand(data=a.data_ptr(), trial_stride=a.stride(0), step_stride=a.stride(1), columns=rows)
    of_read = Operand(data=b.data_ptr(), trial_stride=b.stride(0), step_stride=b.stride(1), columns=columns)
    of_dz.result_stride, of_read.result_stride = columns, 1
    if initial is not None:
        of_read.initial = initial.data_ptr() + initial.size(1) * initial.stride(1) * initial.element_size()
        of_read.initial_trial_stride = initial.stride(0)
    operand_a, operand_b = (of_read, of_dz) if transposed else (of_dz, of_read)
    blocks = variant.blocks(operand_a.columns, operand_b.columns)
    ranges, per_range = split_k(depth, blocks * trials, device)
    result = a.new_empty(ranges, trials, rows, columns)
    arguments = WgradArguments(E=trials, depth=depth, a=operand_a, b=operand_b, width=width, range=per_range)
    arguments.delays = (ctypes.c_int64 * MAX_DELAYS)(*(delay * call.B for delay in delays))
    arguments.result = result.data_ptr()
    kernel = load(variant, device)
    with current(device):
        kernel.run(arguments, (blocks, ranges, trials), current_stream(device))
    return result.sum(0) if ranges > 1 else result[0]


def _rows(tensor: Tensor) -> Tensor:  # [E, T, B, N] -> [E, T * B, N]
    """Return a tensor by steps and sequences, with contiguous rows as the kernel assumes."""
    rows = tensor.flatten(1, 2)
    return rows if rows.stride(2) == 1 or rows.size(2) == 1 else rows.contiguous()


@cache
def load(variant: WgradVariant, device: torch.device) -> WgradKernel:
    """Return a variant's kernel on a device."""
    with torch.cuda.device(device):
        torch.cuda.current_stream(device)  # creates the context that the module is loaded into
        return WgradKernel(variant)
