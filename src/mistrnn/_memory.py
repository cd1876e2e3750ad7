"""How much memory is free, for trials that train together and for data that would live on a GPU; and who keeps freed memory."""

import ctypes
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def free_memory(device: "torch.device") -> int:
    """Return the bytes that are free on the device, as far as it tells."""
    if device.type == "cuda":
        return free_gpu_memory(device)
    _give_back_freed_memory()
    free = 2**33  # where nothing tells, be careful
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        values = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
        free = int(values["MemAvailable"].split()[0]) * 1024
    limit, used = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")
    if limit.exists() and used.exists() and limit.read_text().strip() != "max":
        # The pages of files that are kept in memory count as used, and are given up when somebody needs the room.
        pages = Path("/sys/fs/cgroup/memory.stat")
        values = dict(line.split(" ", 1) for line in pages.read_text().splitlines()) if pages.exists() else {}
        kept = sum(int(values.get(name, 0)) for name in ("active_file", "inactive_file"))
        free = min(free, int(limit.read_text()) - int(used.read_text()) + kept)
    return free


def free_gpu_memory(device: "torch.device") -> int:
    """Return the bytes that are free on a GPU for torch: what it holds in reserve, too, though the device counts it as used."""
    import torch  # here, because the command uses this module before it needs torch

    reserve = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(torch.cuda.mem_get_info(device)[0]) + reserve


M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h


def keep_freed_memory() -> None:
    """Let the C library keep what this process frees for what it asks for next.

    Every training step frees and takes tensors of megabytes. glibc would give them back to the system, which clears each page
    before it hands it out again: steps on a CPU took up to 1.3 times as long (benchmarks/results/sweep-cpu.md). It is a
    matter of the whole process, so only processes of our own ask for it, and not where the environment says otherwise.
    """
    if any(name.startswith("MALLOC_") or "glibc.malloc" in value for name, value in os.environ.items()):
        return
    mallopt = _of_glibc("mallopt")
    # Before 2.35 glibc takes no more than 32 MiB for the first; the second alone would do harm.
    if mallopt is not None and (mallopt(M_MMAP_THRESHOLD, 2**30) or mallopt(M_MMAP_THRESHOLD, 2**25)):
        mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


def _give_back_freed_memory() -> None:
    malloc_trim = _of_glibc("malloc_trim")
    if malloc_trim is not None:
        malloc_trim(0)


def _of_glibc(name: str) -> Callable[..., int] | None:
    """Return a function of glibc, None where there is another C library."""
    return getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None
