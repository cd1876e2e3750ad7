"""The time loop of the step-wise kernels: each step is a few launches over all trials."""

import ctypes
from functools import cache

import torch

from mistrnn.kernels.cuda.arguments import Arguments, numbers, pointers
from mistrnn.kernels.cuda.jit import StepwiseKernels
from mistrnn.kernels.cuda.stepwise.variant import StepwiseVariant


class StepArguments(ctypes.Structure):
    """The arguments of one launch; mirrors `StepArguments` in stepwise.cuh."""

    _fields_ = (
        ("args", Arguments),
        ("u", ctypes.c_void_p * 2),
        *pointers("z", "carried"),
        *numbers("sequence_tiles", "sequences", "step"),
    )


@cache
def load(variant: StepwiseVariant, device: torch.device) -> StepwiseKernels:
    """Return a variant's kernels on a device."""
    with torch.cuda.device(device):
        torch.cuda.current_stream(device)  # creates the context that the module is loaded into
        return StepwiseKernels(variant)


def run(variant: StepwiseVariant, memory: int, device: torch.device, arguments: Arguments, stream: int) -> None:
    """Run all steps; `memory` is the number of states before the first one."""
    trials, steps, batch = arguments.E, arguments.T, arguments.B
    problem, kernels = variant.problem, load(variant, device)
    scratch = {
        name: torch.empty(trials * size, dtype=torch.uint8, device=device)
        for name, size in variant.scratch(batch).items()
    }
    arguments.packed = scratch["packed"].data_ptr()
    given = StepArguments(args=arguments, z=scratch["z"].data_ptr(), carried=scratch["carried"].data_ptr())
    given.sequence_tiles = variant.sequence_blocks(batch) * variant.sequence_tiles
    given.sequences = variant.sequences
    for n in range(problem.phases):
        given.u[n] = scratch[f"u {n}"].data_ptr()
    kernels.pack(given, trials, stream)
    if not problem.backward:
        kernels.begin(given, trials, batch, stream)
        for given.step in range(steps):
            for n in range(problem.phases):
                kernels.gemm(n, given, trials, batch, stream)
                kernels.pointwise(n, given, trials, batch, stream)
        return
    for given.step in reversed(range(steps)):
        for n in range(problem.phases):
            kernels.pointwise(n, given, trials, batch, stream)
            kernels.gemm(n, given, trials, batch, stream)
    if arguments.d_initial_h or arguments.d_initial_c:
        for given.step in range(-1, -memory - 1, -1):
            kernels.pointwise(0, given, trials, batch, stream)
