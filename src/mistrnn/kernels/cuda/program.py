"""CUDA programs: constants, headers and a main file, and the shared memory of the GPUs they are compiled for."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Protocol

ROOT = Path(__file__).parents[2]
COMMON_HEADERS = ("common/device", "common/bf16_splits")
"""Headers of every program."""

OLDEST_WITH_CLUSTERS = 90
"""The least compute capability, times ten, with thread block clusters."""

BLOCK_MEMORY = {80: 166_912, 86: 101_376, 89: 101_376, 90: 232_448, 100: 232_448, 103: 232_448, 120: 101_376}
"""Maximum shared memory per thread block, in bytes, by compute capability (times ten)."""


def block_memory(capability: int) -> int:
    """Return the shared memory per thread block; an unknown GPU gets the least of all before it."""
    known = [size for version, size in BLOCK_MEMORY.items() if version <= capability]
    return known[-1] if capability in BLOCK_MEMORY else min(known)


class Program(Protocol):
    """A program that NVRTC can compile."""

    @property
    def architecture(self) -> str:
        """The target, such as `sm_90`."""

    @property
    def source(self) -> str:
        """The main file."""

    @property
    def files(self) -> tuple[str, ...]:
        """The headers that the main file includes."""


def defines(constants: Mapping[str, object]) -> str:
    """Return the constants as preprocessor definitions, one per line."""
    return "".join(
        f"#define {key} {int(value) if isinstance(value, bool) else value}\n" for key, value in constants.items()
    )


def headers(program: Program) -> Iterator[tuple[str, str]]:
    """Yield name and text of every header."""
    for name in program.files:
        yield name, (ROOT / name).read_text(encoding="utf-8")
