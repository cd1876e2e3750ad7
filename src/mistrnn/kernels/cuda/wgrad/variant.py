"""Variants of the weight-gradient kernel, see wgrad.cuh.

The gradient is a GEMM with a long inner dimension, all steps and sequences: M x N numbers of the result from the operands
A [depth, M] and B [depth, N].
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import ceil
from typing import ClassVar

from mistrnn.kernels.cuda.program import COMMON_HEADERS, block_memory, defines
from mistrnn.kernels.cuda.stepwise.variant import wgmma_constants

PRODUCER_WARPS = 4
"""Warps of a block that load."""


@dataclass(frozen=True)
class WgradVariant(ABC):
    """The kernel, with one of two ways to multiply."""

    splits: int
    delays: bool
    """Whether operand A is read at several delays."""
    capability: int

    BARRIER_BYTES: ClassVar[int]
    """Bytes of shared memory for the mbarriers, in front of the stages."""
    MAX_STAGES: ClassVar[int]

    @property
    @abstractmethod
    def threads(self) -> int:
        """Threads per block."""

    @property
    @abstractmethod
    def block_tile(self) -> tuple[int, int]:
        """M and N of a block."""

    @property
    @abstractmethod
    def cycles(self) -> int:
        """Approximate cycles of a chunk of the inner dimension."""

    @property
    @abstractmethod
    def stage_bytes(self) -> int:
        """Bytes of a pipeline stage: a chunk of both operands, split."""

    @property
    @abstractmethod
    def architecture(self) -> str:
        """The target of the compiler."""

    @property
    @abstractmethod
    def constants(self) -> dict[str, object]:
        """The preprocessor constants."""

    @property
    @abstractmethod
    def files(self) -> tuple[str, ...]:
        """The headers."""

    def blocks(self, m: int, n: int) -> int:
        """Return the blocks that share a result of M x N numbers."""
        return ceil(m / self.block_tile[0]) * ceil(n / self.block_tile[1])

    @property
    def stages(self) -> int:
        """Pipeline stages."""
        return min(self.MAX_STAGES, (block_memory(self.capability) - self.BARRIER_BYTES) // self.stage_bytes)

    @property
    def shared_memory(self) -> int:
        """Bytes of shared memory per block."""
        return self.BARRIER_BYTES + self.stages * self.stage_bytes

    @property
    def source(self) -> str:
        """The main file."""
        constants = self.constants | {
            "SPLITS": self.splits,
            "DELAYED_A": self.delays,
            "STAGES": self.stages,
            "BARRIER_BYTES": self.BARRIER_BYTES,
        }
        return defines(constants) + '#include "kernels/cuda/wgrad/wgrad.cuh"\n'


def _files(gemm: str, *more: str) -> tuple[str, ...]:
    headers = (*COMMON_HEADERS, "common/pipeline", *more, f"wgrad/{gemm}", "wgrad/wgrad")
    return tuple(f"kernels/cuda/{header}.cuh" for header in headers)


@dataclass(frozen=True)
class WarpWgrad(WgradVariant):
    """Single warps multiply with `mma`, see wgrad_warp.cuh."""

    warps: tuple[int, int]
    """Consumer warps along M and along N."""
    tiles: tuple[int, int]
    """Tiles per warp, of 16 along M and of 8 along N."""

    BARRIER_BYTES = 128
    MAX_STAGES = 4

    @property
    def threads(self) -> int:
        """Threads per block."""
        return 32 * (self.warps[0] * self.warps[1] + PRODUCER_WARPS)

    @property
    def block_tile(self) -> tuple[int, int]:
        """M and N of a block."""
        return 16 * self.warps[0] * self.tiles[0], 8 * self.warps[1] * self.tiles[1]

    @property
    def cycles(self) -> int:
        """Approximate cycles of a chunk of 16: loading and splitting, and reading fragments.

        Measured on an H200, 2026-11-16, within a tenth for all but the smallest blocks.
        """
        (tiles_m, tiles_n), (m, n) = self.tiles, self.block_tile
        loads = 2 * ceil(m / 64) + ceil(n / 32)
        return 100 + 150 * loads + self.warps[0] * self.warps[1] * self.splits * (4 * tiles_m + 2 * tiles_n)

    @property
    def stage_bytes(self) -> int:
        """Bytes of a pipeline stage: a chunk of both operands, split."""
        return self.splits * 4 * (ceil(sum(self.block_tile) / 16) * 16 + 4) * 8

    @property
    def architecture(self) -> str:
        """The target of the compiler."""
        return f"sm_{self.capability}"

    @property
    def constants(self) -> dict[str, object]:
        """The preprocessor constants."""
        return {
            "USE_WGMMA": False,
            "WARPS_M": self.warps[0],
            "WARPS_N": self.warps[1],
            "TILES_M": self.tiles[0],
            "TILES_N": self.tiles[1],
        }

    @property
    def files(self) -> tuple[str, ...]:
        """The headers."""
        return _files("wgrad_warp")


@dataclass(frozen=True)
class WarpgroupWgrad(WgradVariant):
    """Warpgroups multiply with `wgmma`, see wgrad_warpgroup.cuh."""

    warpgroups: int
    """Consumer warpgroups; each has 64 rows along M."""
    tiles: int
    """Tiles of 8 along N, which all warpgroups share."""

    BARRIER_BYTES = 512  # stages are aligned to swizzled tiles
    MAX_STAGES = 4
    MAX_PREFETCHED_VALUES: ClassVar[int] = 96
    """Values that a producer thread holds in registers, found by compiling."""

    @property
    def threads(self) -> int:
        """Threads per block."""
        return 32 * (4 * self.warpgroups + PRODUCER_WARPS)

    @property
    def block_tile(self) -> tuple[int, int]:
        """M and N of a block."""
        return 64 * self.warpgroups, 8 * self.tiles

    @property
    def loads(self) -> int:
        """Columns of both operands per producer thread."""
        return 2 * self.warpgroups + ceil(self.tiles / 4)

    @property
    def prefetch_chunks(self) -> int:
        """Chunks that a producer loads ahead."""
        addresses = 3 * 2 * self.warpgroups * self.delays  # one per column
        return 2 if 2 * 8 * self.loads + addresses <= self.MAX_PREFETCHED_VALUES else 1

    @property
    def registers(self) -> tuple[int, int]:
        """Registers of a consumer and of a producer thread (setmaxnreg); zeros where an equal share suffices."""
        if self.warpgroups < (2 if self.delays else 3):
            return 0, 0
        even = 65536 // self.threads // 8 * 8
        consumer = min(even, ceil((4 * self.tiles + 26) / 8) * 8)
        return consumer, min(240, even + self.warpgroups * (even - consumer))

    @property
    def cycles(self) -> int:
        """Approximate cycles of a chunk of 32: loading or multiplying, whichever takes longer.

        Measured on an H200, 2026-11-16, within a tenth for blocks of two and three warpgroups and 16 tiles and more.
        """
        products = 2 * self.splits * (self.splits + 1) // 2
        multiplying = self.warpgroups * products * max(4 * self.tiles, 16 + 2 * self.tiles)
        loading = 200 * self.loads
        return 200 + max(multiplying, loading) + min(multiplying, loading) // 8

    @property
    def stage_bytes(self) -> int:
        """Bytes of a pipeline stage: a chunk of both operands, split."""
        return self.splits * sum(self.block_tile) * 64

    @property
    def architecture(self) -> str:
        """The target of the compiler; `wgmma` needs the architecture-specific one."""
        return f"sm_{self.capability}a"

    @property
    def constants(self) -> dict[str, object]:
        """The preprocessor constants."""
        own: dict[str, object] = {
            "USE_WGMMA": True,
            "WARPGROUPS": self.warpgroups,
            "TILES_N": self.tiles,
            "PREFETCH_CHUNKS": self.prefetch_chunks,
            "CONSUMER_REGISTERS": self.registers[0],
            "PRODUCER_REGISTERS": self.registers[1],
        }
        return own | wgmma_constants(self.tiles)

    @property
    def files(self) -> tuple[str, ...]:
        """The headers."""
        return _files("wgrad_warpgroup", "common/warpgroup")
