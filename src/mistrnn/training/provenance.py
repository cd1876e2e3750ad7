"""The command, the code, the versions and the machine of a run."""

import os
import platform
import shlex
import subprocess
import sys
import time
from functools import cache
from pathlib import Path
from typing import Any

import torch

import mistrnn
from mistrnn._digest import code_digest

PACKAGE = Path(mistrnn.__file__).parent


def about_this_run() -> dict[str, Any]:
    """Return the `about` section of study.json."""
    about: dict[str, Any] = {"command": command_line(sys.argv)}
    if (commit := commit_of(PACKAGE)) is not None:
        about["commit"] = commit
    about |= {
        "mistrnn": mistrnn.__version__,
        "code": code_digest(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "system": platform.system(),
        "cpu": cpu_name(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "threads": torch.get_num_threads(),
    }
    if torch.cuda.is_available():
        about["gpus"] = [torch.cuda.get_device_name(k) for k in range(torch.cuda.device_count())]
    return {**about, "began": time.strftime("%Y-%m-%d %H:%M:%S%z")}


def command_line(arguments: list[str]) -> str:
    """Return a process's arguments as one line for a shell, with the program by its short name.

    >>> command_line(["/usr/bin/mist", "sweep", "copy", "--out", "my study"])
    "mist sweep copy --out 'my study'"
    >>> command_line(["/home/me/mistrnn/__main__.py", "demo"])
    'mist demo'
    """
    program = Path(arguments[0])
    module = program.parent.name if program.name == "__main__.py" else ""
    if module == "mistrnn" or program.name == "mist":
        words = ["mist"]
    elif module:
        words = ["python", "-m", module]
    else:
        words = ["python", program.name] if program.suffix == ".py" else [program.name]
    return shlex.join([*words, *arguments[1:]])


@cache
def commit_of(package: Path) -> str | None:
    """Return the git commit of a package's sources, with "+changes" if they differ from it; None outside of a checkout."""
    if not any((folder / ".git").exists() for folder in package.parents[:2]):  # src/mistrnn in its own repository
        return None

    def git(*arguments: str) -> str:
        done = subprocess.run(
            ["git", "-C", str(package), *arguments], capture_output=True, text=True, check=True, timeout=10
        )
        return done.stdout.strip()

    try:
        commit, changes = git("rev-parse", "--short=12", "HEAD"), git("status", "--porcelain", "--", ".")
    except (OSError, subprocess.SubprocessError):  # no git, or a checkout of somebody else
        return None
    return f"{commit}+changes" if changes else commit


def cpu_name() -> str:
    """Return the processor's name as the system gives it."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
