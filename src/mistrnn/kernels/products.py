"""Torch's own products of float32 matrices on a GPU, and its precision of them: it has an older switch and a newer one."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from threading import RLock

import torch
from torch import Tensor

NARROW = 16
"""So deep a product takes hardly longer in float32 than in TF32, which has 11 bits: benchmarks/results/gpu.md."""

_turning = RLock()


def precision() -> str:
    """Return what torch's products have now: "highest", "high" or "medium", and not what `_in_float32` makes of it."""
    with _turning:
        try:
            return torch.get_float32_matmul_precision()
        except RuntimeError:  # the newer switch is in use, and the older one does not answer any more
            return "high" if torch.backends.cuda.matmul.fp32_precision == "tf32" else "highest"


@contextmanager
def at_precision(wanted: str) -> Iterator[None]:
    """Give torch's products this precision inside, by the switch that the user has turned: the two cannot be mixed."""
    try:
        before = torch.get_float32_matmul_precision()
    except RuntimeError:
        newer = torch.backends.cuda.matmul
        before, newer.fp32_precision = newer.fp32_precision, "ieee" if wanted == "highest" else "tf32"
        try:
            yield
        finally:
            newer.fp32_precision = before
        return
    torch.set_float32_matmul_precision(wanted)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def product(a: Tensor, b: Tensor) -> Tensor:  # [E, N, K], [E, K, M] -> [E, N, M]
    """Multiply matrix by matrix for each trial in torch's precision, or in float32 if that is free, whatever autocast says."""
    narrow = a.dtype == torch.float32 and a.is_cuda and a.size(2) <= NARROW
    with torch.autocast(a.device.type, enabled=False), _in_float32() if narrow else nullcontext():
        return torch.bmm(a, b)


@contextmanager
def _in_float32() -> Iterator[None]:
    """Turn the switch for one product: by one thread at a time, or else one could put back what another has set.

    It is the whole process's: a product that another thread launches in these microseconds has float32's bits, too.
    """
    with _turning, at_precision("highest"):
        yield
