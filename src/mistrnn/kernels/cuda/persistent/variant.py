"""Variants of the persistent kernel: its launch configuration and the resources that follow from it.

A block takes a few sequences of one trial through all steps. Its recurrent weights stay in registers and shared memory.
E trials, B batch, I input, H hidden, D delays. A tile is 16 x 16 numbers of a weight matrix.
"""

from dataclasses import dataclass
from functools import cached_property
from math import ceil

from mistrnn.kernels.cell import Lags
from mistrnn.kernels.contract import SavedLayout
from mistrnn.kernels.cuda.problem import Problem
from mistrnn.kernels.cuda.program import COMMON_HEADERS, block_memory, defines

HEADERS = (
    *COMMON_HEADERS,
    *(f"persistent/{name}" for name in ("arguments", "block", "gemm", "gates", "recurrence", "one_gate")),
)

REGISTERS_PER_MULTIPROCESSOR, MAX_REGISTERS = 65536, 255
NORM_REGISTERS = 24
"""Registers that layer norm adds, found by compiling."""


@dataclass(frozen=True)
class Launch:
    """The launch configuration. It changes the speed but not the result, apart from the order of sums."""

    sequences: int = 8
    """Sequences per block: a multiple of 8, or forward a single one, which is multiplied without tensor cores."""
    cluster: int = 1
    """Thread blocks that share the units."""
    unit_tiles: int = 1
    """Tiles of 16 units per warp."""
    split_k: int = 1
    """Warps that share the inner dimension of a GEMM."""
    spare_registers: int = 0
    """Registers per thread that are left to the compiler beyond the cell's declared budget."""


@dataclass(frozen=True)
class GemmShape:
    """The weight tiles of a warp in one GEMM and where they are stored; see gemm.cuh."""

    row_blocks: int
    k_tiles: int
    in_registers: int = 0
    in_shared: int = 0


@dataclass(frozen=True)
class Variant:
    """A kernel to compile: problem, launch configuration and compute capability, times ten."""

    problem: Problem
    launch: Launch
    capability: int

    @property
    def layout(self) -> SavedLayout:
        """The layout of the saved values."""
        return SavedLayout(stepwise=False, cluster=self.launch.cluster)

    @property
    def warps(self) -> int:
        """Warps of a block that own units."""
        return ceil(self.problem.hidden / self.launch.cluster / (16 * self.launch.unit_tiles))

    @property
    def threads(self) -> int:
        """Threads per block."""
        return 32 * self.warps * self.launch.split_k

    @property
    def units(self) -> int:
        """Units per block; the last block of a cluster may have fewer."""
        return 16 * self.launch.unit_tiles * self.warps

    @property
    def padded_units(self) -> int:
        """Units per cluster, padded to whole tiles."""
        return self.units * self.launch.cluster

    @property
    def single_sequence(self) -> bool:
        """Whether a block has one sequence; see block.cuh."""
        return self.launch.sequences == 1

    @property
    def thread_values(self) -> int:
        """Values of a vector [sequences, H] per thread."""
        return 1 if self.single_sequence else self.launch.sequences // 2 * self.launch.unit_tiles

    @property
    def thread_sequences(self) -> int:
        """Sequences per thread."""
        return 1 if self.single_sequence else self.launch.sequences // 4

    @property
    def fragments(self) -> int:
        """16-byte fragments of a weight tile per lane: one per bf16 split, or two in plain float32."""
        return 2 if self.single_sequence else self.problem.splits

    @property
    def gemms(self) -> list[tuple[int, int]]:
        """For each GEMM of a step, the row blocks of the block's units and the columns that they read."""
        padded = ceil(self.problem.hidden / 16) * 16  # padding comes after the units
        kernels = self.problem.kernels
        if kernels.has_mixed_history:
            return [(1, padded), (1, padded)]
        if kernels.product_per_lag:
            return [(len(self.problem.delays), padded)]
        if self.problem.backward:
            return [(1, (self._published_vectors - 1) * self.padded_units + padded)]
        return [(self.problem.gates, padded)]

    @property
    def _published_vectors(self) -> int:
        """Vectors [H] that the blocks exchange for a GEMM: backward one per gate."""
        return self.problem.gates if self.problem.backward and self.problem.phases == 1 else 1

    @property
    def registers(self) -> int:
        """Registers available per thread; each of the four schedulers has a quarter of the warps and of the registers."""
        share = REGISTERS_PER_MULTIPROCESSOR // 128 // ceil(self.threads / 128) // 8 * 8
        return min(MAX_REGISTERS, share - 8 * (self.capability >= 100))  # ptxas needs some more there

    @cached_property
    def shapes(self) -> list[GemmShape]:
        """The shape of each GEMM: weights fill the free registers, then shared memory."""
        fragments, unit_tiles = self.fragments, self.launch.unit_tiles
        shapes = [GemmShape(blocks, self._k_tiles(columns)) for blocks, columns in self.gemms]
        if fragments == 0:
            return shapes
        free = self.registers - self._extra_registers()
        memory = block_memory(self.capability) - self._extra_memory
        in_registers, in_shared = [0] * len(shapes), [0] * len(shapes)
        for kept, budget, cost in (
            (in_registers, free, 4 * fragments * unit_tiles),
            (in_shared, memory, 16 * fragments * unit_tiles * self.threads),
        ):
            while True:
                fitting = [
                    k
                    for k, shape in enumerate(shapes)
                    if in_registers[k] + in_shared[k] < shape.k_tiles and cost * shape.row_blocks <= budget
                ]
                if not fitting:
                    break
                k = min(fitting, key=lambda k: kept[k])
                kept[k] += 1
                budget -= cost * shapes[k].row_blocks
        return [GemmShape(s.row_blocks, s.k_tiles, in_registers[k], in_shared[k]) for k, s in enumerate(shapes)]

    def _k_tiles(self, columns: int) -> int:
        """Return the tiles along the inner dimension per split-K range."""
        return ceil(columns / 16 / self.launch.split_k) if self.problem.splits else ceil(columns / 16)

    def _extra_registers(self) -> int:
        """Return the registers per thread that do not hold weights."""
        problem, launch, declared = self.problem, self.launch, self.problem.kernels.registers
        if problem.backward:
            extra, per_value, per_lag = declared.backward, declared.per_value_backward, declared.backward_per_lag
        else:
            extra, per_value, per_lag = declared.forward, declared.per_value, declared.forward_per_lag
        if self.single_sequence:
            extra = declared.single_sequence
        extra += launch.spare_registers
        if per_lag:  # prefetched history, and the softmax's rows of weights
            extra += (per_lag * len(problem.delays) - 1) * self.thread_values + 4 * self.fragments * launch.unit_tiles
        return extra + per_value * max(0, self.thread_values - 4) + NORM_REGISTERS * problem.norm

    @property
    def streamed_bytes(self) -> int:
        """Bytes of weights that a block reads from the L2 cache at every step."""
        tiles = sum((s.k_tiles - s.in_registers - s.in_shared) * s.row_blocks for s in self.shapes)
        return tiles * self.launch.unit_tiles * self.threads * 16 * self.fragments

    @property
    def u_stride(self) -> int:
        """Stride between sequences of the GEMM operand u, in bytes, free of bank conflicts."""
        splits, item = self.problem.splits, 8 if self.problem.double else 4
        split_k = self.launch.split_k if splits else 1
        read = (self._k_tiles(columns) * 16 * split_k for _, columns in self.gemms)
        columns = max(self.padded_units * self._published_vectors, *read)
        if splits == 0 or self.single_sequence:
            return columns * item
        used, offsets = columns * 2 * splits, (64,) if splits == 2 else (32, 96)
        while used % 128 not in offsets:
            used += 32
        return used

    @property
    def reduce_width(self) -> int:
        """Values per lane in a reduction over units."""
        problem = self.problem
        if not problem.norm:
            return 0
        groups = len(problem.delays) if problem.cell.lags is Lags.PERIODS else 1
        width = (2 if problem.backward else 1) * groups * self.thread_sequences
        return max(width, self.softmax_width) if problem.backward else width

    @property
    def softmax_width(self) -> int:
        """Values per lane of the softmax over lags, or of its gradient, that are reduced over the warps."""
        return (
            ceil(len(self.problem.delays) / 8) * self.thread_sequences if self.problem.kernels.has_mixed_history else 0
        )

    @property
    def buffers(self) -> int:
        """Buffers of the GEMM operand: two if shared memory suffices."""
        return 2 if self._memory_with(2) <= block_memory(self.capability) else 1

    @property
    def over_register_budget(self) -> bool:
        """Whether a thread needs more registers than are available, even without weights."""
        return self.problem.splits > 0 and self._extra_registers() > self.registers

    @property
    def _extra_memory(self) -> int:
        """Bytes of shared memory that do not hold weights."""
        return self._memory_with(self.buffers)

    def _memory_with(self, buffers: int) -> int:
        item = 8 if self.problem.double else 4
        reductions = 2 * self.launch.cluster * self.warps * 32 * (self.reduce_width + self.softmax_width)
        row_blocks = max(blocks for blocks, _ in self.gemms)
        partial = (self.launch.split_k - 1) * self.warps * row_blocks * 32 * self.thread_values
        mbarriers = 32 if self.launch.cluster > 1 else 0
        operand = buffers * self.launch.sequences * self.u_stride
        return operand + ceil((reductions + partial) * item / 16) * 16 + mbarriers

    @property
    def shared_memory(self) -> int:
        """Bytes of shared memory per block."""
        tiles = sum(s.in_shared * s.row_blocks for s in self.shapes) * self.launch.unit_tiles
        return self._extra_memory + tiles * self.threads * 16 * self.fragments

    @property
    def tiles(self) -> int:
        """Packed weight tiles per block."""
        if not self.problem.splits:
            return 0
        softmax = self.launch.unit_tiles * self.warps if self.softmax_width else 0
        tiles = sum(s.row_blocks * s.k_tiles for s in self.shapes)
        return tiles * self.launch.unit_tiles * self.threads // 32 + softmax

    def scratch_bytes(self, batch: int) -> int:
        """Return the bytes per trial that are allocated for the duration of a run: the packed weights."""
        return self.launch.cluster * self.tiles * self.fragments * 512

    def blocks(self, batch: int) -> int:
        """Return the blocks (or clusters of blocks) per trial."""
        return ceil(batch / self.launch.sequences)

    @property
    def saved_sequences(self) -> int:
        """Sequences whose saved values are interleaved: those of a block, or of eight single-sequence blocks."""
        return max(8, self.launch.sequences)

    def saved_block_size(self, steps: int) -> int:
        """Return the numbers that so many sequences save."""
        problem, launch = self.problem, self.launch
        values = self.saved_sequences // 2 * launch.unit_tiles
        slots = steps + problem.initial_states
        of_units = launch.cluster * self.warps * slots * problem.saved_vectors * 32 * values
        of_lags = self.saved_sequences // 4 * ceil(max(1, len(problem.delays)) / 8)
        return of_units + (steps + problem.memory) * problem.saved_lag_vectors * 32 * of_lags

    def saved_blocks(self, batch: int) -> int:
        """Return the groups of interleaved sequences per trial."""
        return ceil(batch / self.saved_sequences)

    def saved_size(self, steps: int, batch: int) -> int:
        """Return the numbers that a trial saves for the backward pass."""
        return self.saved_blocks(batch) * self.saved_block_size(steps)

    def workspace_size(self, steps: int, batch: int) -> int:
        """Return the numbers per trial that steps leave in global memory for later steps of the same run."""
        problem, slots = self.problem, 0
        if problem.kernels.partial_sums_per_delay:
            slots = problem.memory
        elif problem.kernels.has_mixed_history and problem.backward:
            slots = steps + problem.memory
        return self.blocks(batch) * self.launch.cluster * self.warps * slots * 32 * self.thread_values

    @property
    def architecture(self) -> str:
        """The target of the compiler."""
        return f"sm_{self.capability}"

    @property
    def source(self) -> str:
        """The main file: constants, the cell's header, the entry point."""
        problem, launch, shapes = self.problem, self.launch, self.shapes
        constants = problem.constants | {
            "CLUSTER": launch.cluster,
            "SEQUENCES": launch.sequences,
            "UNIT_TILES": launch.unit_tiles,
            "SPLIT_K": launch.split_k,
            "WARPS": self.warps,
            "BUFFERS": self.buffers,
            "U_STRIDE": self.u_stride,
            "REDUCE_WIDTH": self.reduce_width,
            "SOFTMAX_WIDTH": self.softmax_width,
            "WEIGHTS_OFFSET": self._extra_memory,
        }
        for k in range(2):
            n = k % len(shapes)
            shape = shapes[n]
            constants[f"SHAPE_{k}"] = f"{shape.row_blocks}, {shape.k_tiles}, {shape.in_registers}, {shape.in_shared}"
            constants[f"GEMM_COLUMNS_{k}"] = self.gemms[n][1]
        cell = problem.cell
        return (
            defines(constants)
            + f'#include "layers/{cell.name}/cuda.cuh"\n'
            + f"KERNEL({self.threads}) run(const GRID_CONSTANT Arguments args) {{ run_cell<{cell.class_name}>(args); }}\n"
        )

    @property
    def files(self) -> tuple[str, ...]:
        """The headers."""
        return (*(f"kernels/cuda/{header}.cuh" for header in HEADERS), f"layers/{self.problem.cell.name}/cuda.cuh")
