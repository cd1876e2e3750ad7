"""How much memory is free: for trials that train together, and for data that would live on a GPU."""

from pathlib import Path

import torch


def free_memory(device: torch.device) -> int:
    """Return the bytes that are free on the device, as far as it tells."""
    if device.type == "cuda":
        return free_gpu_memory(device)
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


def free_gpu_memory(device: torch.device) -> int:
    """Return the bytes that are free on a GPU for torch: what it holds in reserve, too, though the device counts it as used."""
    reserve = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(torch.cuda.mem_get_info(device)[0]) + reserve
