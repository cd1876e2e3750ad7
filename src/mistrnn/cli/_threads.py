"""How many threads a command takes: as many as there are cores, or fewer where other programs keep them busy.

Threads that wait for each other are slow on busy cores: a step takes as long as its slowest thread. The load is measured while
the command's modules are imported. OMP_NUM_THREADS is above the measurement, and --threads above both.
"""

import os
import sys
import time
from pathlib import Path
from typing import NamedTuple

STAT = Path("/proc/stat")
SHORTEST = 0.2
"""Seconds that a measurement takes at least; the kernel counts in hundredths."""
BUSY_SHARE = 0.15
"""Other programs may use up to this share of the cores without an effect."""
ALMOST_FREE = 0.75
"""A core that is free for this share of the time gets a thread."""


class Sample(NamedTuple):
    """Seconds since some time in the past."""

    wall: float
    busy: float
    """Of this process's cores together, by all programs of at least its priority."""
    own: float
    """Of the processor, by this process."""


def sample() -> Sample | None:
    """Return the load so far; None where the system does not say."""
    try:
        cores = {f"cpu{number}" for number in os.sched_getaffinity(0)}
        yielding = os.getpriority(os.PRIO_PROCESS, 0) <= 0  # programs of low priority yield to this one
        ticks = 0
        for line in STAT.read_text().splitlines():
            name, *columns = line.split()
            if name in cores:
                user, nice, system, _, _, irq, softirq, steal = map(int, columns[:8])
                ticks += user + system + irq + softirq + steal + (0 if yielding else nice)
        return Sample(time.monotonic(), ticks / os.sysconf("SC_CLK_TCK"), time.process_time())
    except (AttributeError, OSError, ValueError):
        return None


def free_threads(before: Sample | None, now: Sample | None, cores: int) -> int:
    """Return how many threads find a core of their own.

    >>> begin = Sample(wall=10.0, busy=0.0, own=0.0)
    >>> free_threads(begin, Sample(wall=12.0, busy=2.0, own=2.0), cores=2)
    2
    >>> free_threads(begin, Sample(wall=12.0, busy=4.0, own=2.0), cores=2)
    1
    """
    if before is None or now is None or now.wall - before.wall < SHORTEST:
        return cores
    others = (now.busy - before.busy - (now.own - before.own)) / (now.wall - before.wall)
    if others <= BUSY_SHARE * cores:
        return cores
    return max(1, min(cores, int(cores - others + 1 - ALMOST_FREE)))


def choose_threads(wanted: int | None, before: Sample | None) -> str | None:
    """Set torch's threads; return a sentence if the load of the cores decided, and None otherwise."""
    if "torch" not in sys.modules or (wanted is None and os.environ.get("OMP_NUM_THREADS")):
        return None
    import torch

    if wanted is not None:
        torch.set_num_threads(wanted)
        return None
    cores = torch.get_num_threads()
    threads = free_threads(before, sample(), cores)
    if threads == cores:
        return None
    torch.set_num_threads(threads)
    count = "1 thread" if threads == 1 else f"{threads} threads"
    return f"{count} instead of {cores}, because other programs use the cores (--threads or OMP_NUM_THREADS decides otherwise)"
