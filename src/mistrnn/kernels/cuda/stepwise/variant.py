"""Variants of the step-wise kernels, which advance all trials of a large layer together; see stepwise.cuh.

A step alternates GEMMs with pointwise kernels. E trials, B batch, H hidden, D delays. A sequence tile has 8 sequences; a
weight tile has the size that a warp or warpgroup multiplies at once.
"""

from dataclasses import dataclass, replace
from math import ceil

from mistrnn.kernels.contract import SavedLayout
from mistrnn.kernels.cuda.problem import Problem
from mistrnn.kernels.cuda.program import COMMON_HEADERS, OLDEST_WITH_CLUSTERS, block_memory, defines

CAPABILITY_WITH_WGMMA = 90
"""The only compute capability, times ten, with the warpgroup instruction `wgmma`."""

MAX_SEQUENCE_TILES, MAX_SEQUENCE_TILES_WGMMA = 13, 16
"""Per GEMM block: the accumulators of 104 or 128 sequences fit into the registers."""

MAX_WARPS, MAX_WARPGROUPS = 7, 4
"""Per GEMM block. With 50 trials of 512 units, 6 warps leave blocks for a second wave, which doubles the time."""

RESIDENT_THREADS = 512
"""Resident threads per multiprocessor of a pointwise kernel: at this occupancy no register is spilled."""

MAX_POINTWISE_SEQUENCES = 25
"""Per pointwise block."""


def serves(problem: Problem, capability: int) -> bool:
    """Return whether these kernels can solve a problem; they have no options."""
    options = (problem.norm, problem.reset, problem.lengths, problem.reverse, problem.zoneout, problem.dropout)
    plain = not any(options) and not problem.probe and not problem.double and problem.splits > 0
    fits = problem.hidden % 128 == 0 and capability >= OLDEST_WITH_CLUSTERS
    return problem.cell.stepwise is not None and plain and fits


def uses_wgmma(problem: Problem, capability: int) -> bool:
    """Return whether warpgroups multiply; three splits need more accumulators than there are registers."""
    return capability == CAPABILITY_WITH_WGMMA and problem.splits < 3


@dataclass(frozen=True)
class StepwiseVariant:
    """The kernels of one direction."""

    problem: Problem
    sequence_tiles: int
    """Sequence tiles per GEMM block."""
    row_tiles: int
    """Row tiles of the weights per GEMM block: one per warp or warpgroup."""
    sequences: int
    """Sequences per pointwise block."""
    capability: int

    @property
    def layout(self) -> SavedLayout:
        """The layout of the saved values."""
        return SavedLayout(stepwise=True)

    @property
    def wgmma(self) -> bool:
        """Whether warpgroups multiply, or single warps."""
        return uses_wgmma(self.problem, self.capability)

    @property
    def architecture(self) -> str:
        """The target of the compiler; `wgmma` needs the architecture-specific one."""
        return f"sm_{self.capability}{'a' if self.wgmma else ''}"

    @property
    def weight_tile(self) -> tuple[int, int]:
        """Rows and columns of the weights that a warp or warpgroup multiplies at once."""
        return (64, 32) if self.wgmma else (32, 16)

    @property
    def gemms(self) -> list[tuple[int, int]]:
        """For each GEMM of a step, the weight tiles along the rows and along the inner dimension."""
        problem, hidden = self.problem, self.problem.hidden
        rows_and_columns = [(problem.gates * hidden, hidden)]
        if problem.phases > 1:
            rows_and_columns = [(hidden + problem.extra_rows, hidden), (hidden, hidden)]
            if problem.backward:
                rows_and_columns = [(hidden, hidden), (hidden, hidden + problem.extra_rows)]
        elif problem.backward:
            rows_and_columns = [(hidden, problem.gates * hidden)]
        tile_rows, tile_columns = self.weight_tile
        return [(ceil(rows / tile_rows), ceil(columns / tile_columns)) for rows, columns in rows_and_columns]

    @property
    def threads(self) -> int:
        """Threads per GEMM block; with warpgroups, one more warp is the producer."""
        return 32 * (4 * self.row_tiles + 1) if self.wgmma else 32 * self.row_tiles

    @property
    def pointwise_threads(self) -> int:
        """Threads per pointwise block."""
        return self.problem.hidden // 4

    @property
    def pointwise_memory(self) -> int:
        """Bytes of shared memory per pointwise block, for a reduction over its warps."""
        return 2 * self.pointwise_threads // 32 * 16 * 4

    @property
    def trials_per_block(self) -> int:
        """Trials that a GEMM block meets, at most."""
        return 1 if self.wgmma and all(rows % self.row_tiles == 0 for rows, _ in self.gemms) else 2

    @property
    def k_tiles_per_stage(self) -> int:
        """Tiles along the inner dimension per pipeline stage; a barrier follows each stage, and three splits need registers."""
        return 1 if self.wgmma or self.problem.splits == 3 else 2

    @property
    def _stage_bytes(self) -> int:
        """Bytes of weights and activations per pipeline stage."""
        tile_rows, tile_columns = self.weight_tile
        rows = self.row_tiles * tile_rows + self.trials_per_block * self.sequence_tiles * 8
        return self.k_tiles_per_stage * self.problem.splits * 2 * tile_columns * rows

    @property
    def stages(self) -> int:
        """Pipeline stages."""
        most = 6 if self.wgmma else 8 // self.k_tiles_per_stage
        return min(most, (block_memory(self.capability) - 16 * most) // self._stage_bytes)

    @property
    def shared_memory(self) -> int:
        """Bytes of shared memory per GEMM block: stages and mbarriers, or for warps stages reused by the epilogue."""
        stages = self.stages * self._stage_bytes
        epilogue = self.row_tiles * self.sequence_tiles * 8 * 36 * 4
        return stages + 16 * self.stages if self.wgmma else max(stages, epilogue)

    @property
    def fits(self) -> bool:
        """Whether the GPU has enough shared memory."""
        return self.stages >= 2 and self.shared_memory <= block_memory(self.capability)

    @property
    def z_stride(self) -> int:
        """Stride between sequences of a GEMM's result."""
        return self.weight_tile[0] * max(rows for rows, _ in self.gemms)

    def sequence_blocks(self, batch: int) -> int:
        """Return the GEMM blocks that share the sequences of a trial."""
        return ceil(batch / (8 * self.sequence_tiles))

    def u_bytes(self, gemm: int, batch: int) -> int:
        """Return the bytes of a GEMM's activations, per trial."""
        columns = self.gemms[gemm][1] * self.weight_tile[1]
        return columns * self.sequence_blocks(batch) * self.sequence_tiles * 8 * 2 * self.problem.splits

    @property
    def packed_tiles(self) -> int:
        """Weight tiles of a trial as `pack` writes them, one per warp: a warpgroup's, or half of a warp's."""
        return sum(rows * columns for rows, columns in self.gemms) * (1 if self.wgmma else 2)

    def scratch(self, batch: int) -> dict[str, int]:
        """Return the bytes per trial that are allocated for the duration of a run, by name.

        The packed weights, each GEMM's activations, its result, and the second state component if there is one.
        """
        problem, (tile_rows, tile_columns) = self.problem, self.weight_tile
        tiles = sum(rows * columns for rows, columns in self.gemms)
        return {
            "packed": tiles * tile_rows * tile_columns * 2 * problem.splits,
            **{f"u {n}": self.u_bytes(n, batch) for n in range(problem.phases)},
            "z": batch * self.z_stride * 4,
            "carried": batch * problem.hidden * 4 * (len(problem.cell.state) > 1),
        }

    def scratch_bytes(self, batch: int) -> int:
        """Return their sum."""
        return sum(self.scratch(batch).values())

    def gemm_grid(self, gemm: int, trials: int, batch: int) -> tuple[int, int, int]:
        """Return the grid of a GEMM."""
        return ceil(trials * self.gemms[gemm][0] / self.row_tiles), self.sequence_blocks(batch), 1

    def blocks(self, batch: int) -> int:
        """Return the pointwise blocks that share the sequences of a trial."""
        return ceil(batch / self.sequences)

    def saved_size(self, steps: int, batch: int) -> int:
        """Return the numbers that a trial saves for the backward pass."""
        problem = self.problem
        width = problem.cell.saved(problem.hidden, len(problem.delays))
        return ceil(steps * batch * width * problem.save / 64) * 64

    def workspace_size(self, steps: int, batch: int) -> int:
        """Return the numbers per trial that steps leave in global memory for later steps of the same run."""
        problem = self.problem
        has_history = problem.kernels.has_mixed_history and problem.backward
        return problem.memory * batch * problem.hidden if has_history else 0

    @property
    def source(self) -> str:
        """The main file."""
        (rows, columns), (more_rows, more_columns) = (*self.gemms, (0, 1))[:2]
        constants = self.problem.constants | {
            "USE_WGMMA": self.wgmma,
            "BLOCK_ROW_TILES": self.row_tiles,
            "TRIALS_PER_BLOCK": self.trials_per_block,
            "SEQUENCE_TILES": self.sequence_tiles,
            "RESIDENT_THREADS": RESIDENT_THREADS,
            "STAGES": self.stages,
            "K_TILES_PER_STAGE": self.k_tiles_per_stage,
            "Z_STRIDE": self.z_stride,
            "ROW_TILES_0": rows,
            "K_TILES_0": columns,
            "ROW_TILES_1": more_rows,
            "K_TILES_1": more_columns,
        }
        if self.wgmma:
            constants |= wgmma_constants(self.sequence_tiles)
        return defines(constants) + f'#include "layers/{self.problem.cell.name}/stepwise.cuh"\n'

    @property
    def files(self) -> tuple[str, ...]:
        """The headers."""
        pipelined = ("common/warpgroup", "common/pipeline", "stepwise/stepwise_warpgroup")
        gemm = pipelined if self.wgmma else ("stepwise/stepwise_warp",)
        own = (*COMMON_HEADERS, "persistent/arguments", *gemm, "stepwise/stepwise")
        return (*(f"kernels/cuda/{header}.cuh" for header in own), f"layers/{self.problem.cell.name}/stepwise.cuh")


def wgmma_constants(tiles: int) -> dict[str, str]:
    """Return the `wgmma` instruction for so many tiles of 8 columns; its text names each accumulator register."""
    count = 4 * tiles
    accumulators = ", ".join(f"%{n}" for n in range(count))
    return {
        "WGMMA": f'"wgmma.mma_async.sync.aligned.m64n{8 * tiles}k16.f32.bf16.bf16 '
        f'{{{accumulators}}}, %{count}, %{count + 1}"',
        "WGMMA_SCALE_D": f'"%{count + 2}"',
        "WGMMA_ACCUMULATORS(s)": ", ".join(f'"+f"(s[{n // 4}][{n % 4}])' for n in range(count)),
    }


def stepwise_variant(
    problem: Problem, trials: int, batch: int, capability: int, multiprocessors: int
) -> StepwiseVariant:
    """Return the variant for so many trials and sequences: blocks of equal size for all multiprocessors."""
    found = StepwiseVariant(problem, 1, 1, 1, capability)
    # All pointwise blocks are resident at once if possible: a second wave would delay the next GEMM.
    resident = multiprocessors * max(1, RESIDENT_THREADS // found.pointwise_threads)
    sequences = max(1, min(MAX_POINTWISE_SEQUENCES, ceil(batch / max(1, resident // max(1, trials)))))
    wgmma, tiles = found.wgmma, ceil(batch / 8)
    sequence_blocks = ceil(tiles / (MAX_SEQUENCE_TILES_WGMMA if wgmma else MAX_SEQUENCE_TILES))
    found = replace(found, sequence_tiles=ceil(tiles / sequence_blocks), sequences=sequences)
    rows = min(rows for rows, _ in found.gemms)
    least, most = (1, min(rows, MAX_WARPGROUPS)) if wgmma else (4, MAX_WARPS)
    row_tiles = ceil(trials * sequence_blocks * rows / multiprocessors)
    found = replace(found, row_tiles=max(least, min(most, row_tiles)))
    while not found.fits and (found.row_tiles > least or found.sequence_tiles > 1):  # little shared memory
        if found.row_tiles > least:
            found = replace(found, row_tiles=found.row_tiles - 1)
        else:
            found = replace(found, sequence_tiles=found.sequence_tiles - 1)
    return found
