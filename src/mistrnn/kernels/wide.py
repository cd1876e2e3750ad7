"""Large layers of many trials on a GPU: the loop over time is here, and each step a few launches over all trials."""

import ctypes
from functools import cache

import torch

from mistrnn.kernels._arguments import Arguments, numbers, pointers
from mistrnn.kernels._nvrtc import WideKernels
from mistrnn.kernels._wide import WideVariant


class Call(ctypes.Structure):
    """What these kernels are handed; `Call` in kernels/cuh/wide.cuh has the same fields in the same order."""

    _fields_ = (
        ("args", Arguments),
        ("u", ctypes.c_void_p * 2),
        *pointers("z", "carried"),
        *numbers("tiles", "sequences", "step"),
    )


@cache
def load(variant: WideVariant, device: torch.device) -> WideKernels:
    """Return a variant's kernels on a device."""
    with torch.cuda.device(device):
        torch.cuda.current_stream(device)  # the context that the module is loaded into
        return WideKernels(variant)


def run(variant: WideVariant, memory: int, device: torch.device, arguments: Arguments, stream: int) -> None:
    """Run all steps; `memory` is the number of states before the first one."""
    trials, steps, batch = arguments.E, arguments.T, arguments.B
    problem, kernels = variant.problem, load(variant, device)
    alive = {
        name: torch.empty(trials * size, dtype=torch.uint8, device=device)
        for name, size in variant.working_memory(batch).items()
    }
    arguments.packed = alive["packed"].data_ptr()
    call = Call(args=arguments, z=alive["z"].data_ptr(), carried=alive["carried"].data_ptr())
    call.tiles, call.sequences = variant.chunks(batch) * variant.tiles, variant.sequences
    for n in range(problem.phases):
        call.u[n] = alive[f"u {n}"].data_ptr()
    kernels.pack(call, trials, stream)
    if not problem.backward:
        kernels.begin(call, trials, batch, stream)
        for call.step in range(steps):
            for n in range(problem.phases):
                kernels.multiply(n, call, trials, batch, stream)
                kernels.phase(n, call, trials, batch, stream)
        return
    for call.step in reversed(range(steps)):
        for n in range(problem.phases):
            kernels.phase(n, call, trials, batch, stream)
            kernels.multiply(n, call, trials, batch, stream)
    if arguments.d_initial_h or arguments.d_initial_c:
        for call.step in range(-1, -memory - 1, -1):
            kernels.phase(0, call, trials, batch, stream)
