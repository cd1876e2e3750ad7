"""The description of the machine in every benchmark."""

import os
import platform
import time
from pathlib import Path

import torch


def processor() -> str:
    """Return the processor's name."""
    information = Path("/proc/cpuinfo")
    if information.exists():
        for line in information.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def heading(command: str, rest: str) -> str:
    """Return one line: machine, versions, date, command and remarks."""
    return (
        f"{processor()}, {torch.get_num_threads()} threads, {os.cpu_count()} cores; Python {platform.python_version()}, "
        f"torch {torch.__version__}; {time.strftime('%Y-%m-%d')}; `{command}`; {rest}"
    )
