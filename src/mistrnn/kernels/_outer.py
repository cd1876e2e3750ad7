"""The variants of the kernel of weight gradients, see kernels/cuh/outer.cuh."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import ceil
from typing import ClassVar

from mistrnn.kernels._variant import block_memory, defines
from mistrnn.kernels._wide import group_product

READING = 4
"""Warps of a block that read."""


@dataclass(frozen=True)
class OuterVariant(ABC):
    """The kernel of a weight gradient, in one of two ways."""

    parts: int
    delays: bool
    """Whether the tall operand is read at several delays."""
    capability: int

    COUNTERS: ClassVar[int]
    """Bytes of shared memory in front of the stages."""
    MOST_STAGES: ClassVar[int]

    @property
    @abstractmethod
    def threads(self) -> int:
        """Threads of a block."""

    @property
    @abstractmethod
    def places(self) -> tuple[int, int]:
        """How much of each operand a block takes."""

    @property
    @abstractmethod
    def cycles(self) -> int:
        """About how long so many numbers of a sum take as a block of this way reads at once."""

    @property
    @abstractmethod
    def stage(self) -> int:
        """Bytes of a chunk of both operands, taken apart."""

    @property
    @abstractmethod
    def architecture(self) -> str:
        """What the compiler compiles for."""

    @property
    @abstractmethod
    def constants(self) -> dict[str, object]:
        """What the program is told of this way."""

    @property
    @abstractmethod
    def files(self) -> tuple[str, ...]:
        """What the source includes."""

    def blocks(self, tall: int, wide: int) -> int:
        """Return how many blocks share a result of this size."""
        return ceil(tall / self.places[0]) * ceil(wide / self.places[1])

    @property
    def stages(self) -> int:
        """Chunks that lie in shared memory."""
        return min(self.MOST_STAGES, (block_memory(self.capability) - self.COUNTERS) // self.stage)

    @property
    def shared_memory(self) -> int:
        """Bytes of shared memory of a block."""
        return self.COUNTERS + self.stages * self.stage

    @property
    def source(self) -> str:
        """The program."""
        constants = self.constants | {
            "PARTS": self.parts,
            "DELAYS_OF_TALL": self.delays,
            "STAGES": self.stages,
            "COUNTERS": self.COUNTERS,
        }
        return defines(constants) + '#include "kernels/cuh/outer.cuh"\n'


def _files(way: str, *more: str) -> tuple[str, ...]:
    headers = ("device", "parts", "ring", *more, way, "outer")
    return tuple(f"kernels/cuh/{header}.cuh" for header in headers)


@dataclass(frozen=True)
class OuterOfWarps(OuterVariant):
    """Every warp multiplies alone, see outer_warps.cuh."""

    warps: tuple[int, int]
    """That multiply, along the tall operand and along the wide one."""
    tiles: tuple[int, int]
    """Of 16 and of 8 numbers, of each of those warps."""

    COUNTERS = 128
    MOST_STAGES = 4

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * (self.warps[0] * self.warps[1] + READING)

    @property
    def places(self) -> tuple[int, int]:
        """How much of each operand a block takes."""
        return 16 * self.warps[0] * self.tiles[0], 8 * self.warps[1] * self.tiles[1]

    @property
    def cycles(self) -> int:
        """About how long 16 numbers of a sum take: what is read and taken apart by 32, and what is read to be multiplied.

        Measured on an H200, 2026-11-16, within a tenth for all but the smallest blocks.
        """
        (down, across), (tall, wide) = self.tiles, self.places
        loads = 2 * ceil(tall / 64) + ceil(wide / 32)
        return 100 + 150 * loads + self.warps[0] * self.warps[1] * self.parts * (4 * down + 2 * across)

    @property
    def stage(self) -> int:
        """Bytes of a chunk of both operands, taken apart."""
        return self.parts * 4 * (ceil(sum(self.places) / 16) * 16 + 4) * 8

    @property
    def architecture(self) -> str:
        """What the compiler compiles for."""
        return f"sm_{self.capability}"

    @property
    def constants(self) -> dict[str, object]:
        """What the program is told of this way."""
        return {
            "GROUPED": False,
            "WARPS_DOWN": self.warps[0],
            "WARPS_ACROSS": self.warps[1],
            "TILES_DOWN": self.tiles[0],
            "TILES_ACROSS": self.tiles[1],
        }

    @property
    def files(self) -> tuple[str, ...]:
        """What the source includes."""
        return _files("outer_warps")


@dataclass(frozen=True)
class OuterOfGroups(OuterVariant):
    """Four warps multiply together, see outer_groups.cuh."""

    groups: int
    """Each takes 64 numbers of the tall operand."""
    tiles: int
    """Of 8 numbers of the wide operand: all groups take the same ones."""

    COUNTERS = 512  # tiles begin at a multiple of that
    MOST_STAGES = 4
    MOST_NUMBERS_AHEAD: ClassVar[int] = 96
    """That a thread which reads holds: for so many there are registers, found by compiling."""

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * (4 * self.groups + READING)

    @property
    def places(self) -> tuple[int, int]:
        """How much of each operand a block takes."""
        return 64 * self.groups, 8 * self.tiles

    @property
    def loads(self) -> int:
        """How many places a thread reads."""
        return 2 * self.groups + ceil(self.tiles / 4)

    @property
    def ahead(self) -> int:
        """Chunks that are read before they are needed."""
        addresses = 3 * 2 * self.groups * self.delays  # each place has its own
        return 2 if 2 * 8 * self.loads + addresses <= self.MOST_NUMBERS_AHEAD else 1

    @property
    def registers(self) -> tuple[int, int]:
        """Of a thread that multiplies and of one that reads; zeros where both get the same, because that is enough."""
        if self.groups < (2 if self.delays else 3):
            return 0, 0
        even = 65536 // self.threads // 8 * 8
        multiplying = min(even, ceil((4 * self.tiles + 26) / 8) * 8)
        return multiplying, min(240, even + self.groups * (even - multiplying))

    @property
    def cycles(self) -> int:
        """About how long 32 numbers of a sum take: what is read from memory, or multiplied, whichever takes longer.

        Measured on an H200, 2026-11-16, within a tenth for blocks of two and three groups and 16 tiles and more.
        """
        products = 2 * self.parts * (self.parts + 1) // 2
        multiplied = self.groups * products * max(4 * self.tiles, 16 + 2 * self.tiles)
        read = 200 * self.loads
        return 200 + max(multiplied, read) + min(multiplied, read) // 8

    @property
    def stage(self) -> int:
        """Bytes of a chunk of both operands, taken apart."""
        return self.parts * sum(self.places) * 64

    @property
    def architecture(self) -> str:
        """What the compiler compiles for: the instruction is one of a single generation."""
        return f"sm_{self.capability}a"

    @property
    def constants(self) -> dict[str, object]:
        """What the program is told of this way."""
        own: dict[str, object] = {
            "GROUPED": True,
            "GROUPS": self.groups,
            "TILES": self.tiles,
            "AHEAD": self.ahead,
            "REGISTERS_TO_MULTIPLY": self.registers[0],
            "REGISTERS_TO_READ": self.registers[1],
        }
        return own | group_product(self.tiles)

    @property
    def files(self) -> tuple[str, ...]:
        """What the source includes."""
        return _files("outer_groups", "groups")
