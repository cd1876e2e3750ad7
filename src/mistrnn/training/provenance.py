"""The versions, the machine and the code of a run; between two releases only a digest identifies the code."""

import hashlib
import platform
import time
from functools import cache
from pathlib import Path

import torch

import mistrnn

SOURCES = (".py", ".cpp", ".h", ".cuh")


def about_this_run() -> dict[str, str]:
    """Return what study.json keeps beside the settings."""
    return {
        "mistrnn": mistrnn.__version__,
        "code": code_digest(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "system": platform.system(),
        "began": time.strftime("%Y-%m-%d %H:%M:%S%z"),
    }


@cache
def code_digest(package: Path = Path(mistrnn.__file__).parent) -> str:
    """Return twelve digits that stand for all sources of a package: the same wherever it lies, others if a line is."""
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*"), key=lambda path: path.relative_to(package).as_posix()):
        if path.suffix in SOURCES:
            digest.update(f"{path.relative_to(package).as_posix()}\n{path.stat().st_size}\n".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]
