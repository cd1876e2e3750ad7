"""float32 matrix products by torch on a GPU, and their precision, for which torch has an older and a newer switch."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from threading import RLock

import torch
from torch import Tensor

NARROW = 16
"""Up to this inner dimension, float32 is hardly slower than TF32, which has 11 bits: benchmarks/results/gpu.md."""

_switch_lock = RLock()


def precision() -> str:
    """Return the precision that the user has set: "highest", "high" or "medium"."""
    with _switch_lock:
        try:
            return torch.get_float32_matmul_precision()
        except RuntimeError:  # the newer switch is in use
            return "high" if torch.backends.cuda.matmul.fp32_precision == "tf32" else "highest"


@contextmanager
def at_precision(wanted: str) -> Iterator[None]:
    """Set the precision inside, by the switch that the user has used: torch does not allow to mix them."""
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


def matmul(a: Tensor, b: Tensor) -> Tensor:  # [E, N, K], [E, K, M] -> [E, N, M]
    """Multiply matrices trial by trial, without autocast, in torch's precision or in float32 where that costs nothing."""
    narrow = a.dtype == torch.float32 and a.is_cuda and a.size(2) <= NARROW
    with torch.autocast(a.device.type, enabled=False), _in_float32() if narrow else nullcontext():
        return torch.bmm(a, b)


@contextmanager
def _in_float32() -> Iterator[None]:
    """Set the switch for one product, under a lock: else a thread could restore the value that another one has set.

    The switch is global: a product that another thread launches meanwhile is computed in float32, too.
    """
    with _switch_lock, at_precision("highest"):
        yield
