"""The variants of the kernel of weight gradients, see kernels/cuh/outer.cuh."""

from dataclasses import dataclass
from math import ceil
from typing import ClassVar

from mistrnn.kernels._variant import block_memory, defines


@dataclass(frozen=True)
class OuterVariant:
    """The kernel of a weight gradient, see outer.cuh."""

    parts: int
    warps: tuple[int, int]
    """That multiply, along the tall operand and along the wide one."""
    tiles: tuple[int, int]
    """Of 16 and of 8 numbers, of each of those warps."""
    delays: bool
    """Whether the tall operand is read at several delays."""
    capability: int

    COUNTERS: ClassVar[int] = 128
    """Bytes of shared memory in front of the stages."""

    @property
    def threads(self) -> int:
        """Threads of a block: four more warps read."""
        return 32 * (self.warps[0] * self.warps[1] + 4)

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

    def blocks(self, tall: int, wide: int) -> int:
        """Return how many blocks share a result of this size."""
        return ceil(tall / self.places[0]) * ceil(wide / self.places[1])

    @property
    def stage(self) -> int:
        """Bytes of a chunk of both operands, taken apart."""
        return self.parts * 4 * (ceil(sum(self.places) / 16) * 16 + 4) * 8

    @property
    def stages(self) -> int:
        """Chunks that lie in shared memory."""
        return min(4, (block_memory(self.capability) - self.COUNTERS) // self.stage)

    @property
    def shared_memory(self) -> int:
        """Bytes of shared memory of a block."""
        return self.COUNTERS + self.stages * self.stage

    @property
    def architecture(self) -> str:
        """What the compiler compiles for."""
        return f"sm_{self.capability}"

    @property
    def source(self) -> str:
        """The program."""
        constants = {
            "PARTS": self.parts,
            "WARPS_DOWN": self.warps[0],
            "WARPS_ACROSS": self.warps[1],
            "TILES_DOWN": self.tiles[0],
            "TILES_ACROSS": self.tiles[1],
            "DELAYS_OF_TALL": int(self.delays),
            "STAGES": self.stages,
            "COUNTERS": self.COUNTERS,
        }
        return defines(constants) + '#include "kernels/cuh/outer.cuh"\n'

    @property
    def files(self) -> tuple[str, ...]:
        """What the source includes."""
        return ("kernels/cuh/device.cuh", "kernels/cuh/ring.cuh", "kernels/cuh/outer.cuh")
