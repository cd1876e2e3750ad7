"""One run of a layer's emulated GPU kernels in which every tensor ends where readable memory ends.

    python -m tests.kernels.guarded_run LAYER CLUSTER

An access beyond a tensor ends the process, so that this is a process of its own.
"""

import ctypes
import mmap
import sys
from typing import Any

import pytest
import torch
from torch import Tensor

from mistrnn.kernels.cuda.launch import KernelCall
from mistrnn.kernels.cuda.persistent.variant import Launch
from tests.kernels.emulator import emulate
from tests.layers.cases import small

PAGE = mmap.PAGESIZE
_libc = ctypes.CDLL(None, use_errno=True)
_regions: list[mmap.mmap] = []


def guarded(size: int, dtype: torch.dtype) -> Tensor:
    """Return an empty tensor that is followed by an inaccessible page."""
    taken = size * dtype.itemsize
    pages = -(-taken // PAGE) + 1
    region = mmap.mmap(-1, pages * PAGE)
    begin = ctypes.addressof(ctypes.c_char.from_buffer(region))
    no_access = 0
    assert _libc.mprotect(ctypes.c_void_p(begin + (pages - 1) * PAGE), PAGE, no_access) == 0
    _regions.append(region)
    return torch.frombuffer(region, dtype=dtype, count=size, offset=(pages - 1) * PAGE - taken)


def main(name: str, cluster: int) -> None:
    pass_pointer = KernelCall.pass_pointer
    own: set[int] = set()

    def new(call: Any, name: str, *shape: int) -> Tensor:
        tensor = guarded(max(1, torch.Size(shape).numel()), call.plan.real)[: torch.Size(shape).numel()].view(shape)
        own.add(tensor.data_ptr())
        call.pass_pointer(name, tensor)
        return tensor

    def guard(call: Any, name: str, tensor: Tensor) -> None:
        if tensor.data_ptr() not in own and tensor.numel():
            # The memory from the tensor's first number to its last.
            reach = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
            copy = guarded(reach, tensor.dtype).as_strided(tensor.shape, tensor.stride())
            tensor = copy.copy_(tensor) if 0 not in tensor.stride() else tensor
        pass_pointer(call, name, tensor)

    with pytest.MonkeyPatch.context() as patch:
        emulate(patch, 2, Launch(cluster=cluster))
        patch.setattr(KernelCall, "new", new)
        patch.setattr(KernelCall, "pass_pointer", guard)
        layer = small(name, input_size=1, hidden_size=39, dtype=torch.float32)
        layer.backend = "fused"
        x = torch.randn(7, 9, 1, requires_grad=True)
        reset = torch.rand(7, 9) < 0.2
        for options in ({}, {"lengths": [7, 3, 0, 7, 5, 1, 2, 7, 4], "reset": reset}):
            output, state = layer(x, **options)
            parts = state if isinstance(state, tuple) else (state,)
            loss = output.square().sum() + sum(part.sum() for part in parts if part.is_floating_point())
            loss.backward()
        assert x.grad is not None
        assert x.grad.isfinite().all()
    print("nothing was touched beyond any tensor")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
