"""The GPU kernels' variants: what is known when a kernel is compiled, and how its work is laid out on the machine.

E trials, B batch, I input, H hidden, D delays. A tile is 16 x 16 numbers of a weight matrix.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import ceil
from pathlib import Path
from typing import Protocol

ROOT = Path(__file__).parents[1]
HEADERS = ("device", "parts", "arguments", "block", "product", "gates", "recurrence", "one_gate")

MAX_HIDDEN, MAX_DELAYS, MAX_DELAY = 1024, 16, 4096
"""The largest layer that the kernels are made and tested for."""

OLDEST_WITH_CLUSTERS = 90
MAX_HIDDEN_ALONE = {"rnn": 512, "clockwork": 512, "lstm": 256, "gru": 256, "mist": 128, "narx": 128}
"""... on GPUs whose blocks cannot share the units of a layer."""

REGISTERS_OF_A_MULTIPROCESSOR, MOST_REGISTERS = 65536, 255

BLOCK_MEMORY = {80: 166_912, 86: 101_376, 89: 101_376, 90: 232_448, 100: 232_448, 103: 232_448, 120: 101_376}
"""Shared memory that one block can have, in bytes, by compute capability (times ten)."""

REGISTERS_BESIDE = {
    ("rnn", False): 72,
    ("rnn", True): 88,
    ("clockwork", False): 64,
    ("clockwork", True): 92,
    ("lstm", False): 92,
    ("lstm", True): 136,
    ("gru", False): 100,
    ("gru", True): 112,
    ("narx", False): 128,
    ("narx", True): 136,
    ("mist", False): 72,
    ("mist", True): 100,
}
"""Registers that a thread needs beside weights, without prefetched history: found by compiling, see tests/kernels."""

REGISTERS_BESIDE_ALONE = {"rnn": 64, "clockwork": 64, "lstm": 60, "gru": 84, "narx": 48, "mist": 72}
"""... of a thread that has one unit of one sequence."""

VECTORS_BESIDE = {
    (cell, backward): {"rnn": 3, "clockwork": 3, "lstm": 6, "gru": 6, "narx": 4, "mist": 5}[cell] + 3 * backward
    for cell, backward in REGISTERS_BESIDE
}
"""... and for each number that a thread has beyond four."""


def block_memory(capability: int) -> int:
    """Return the shared memory of a block; a GPU that is not in the table has the least of all before it."""
    known = [size for version, size in BLOCK_MEMORY.items() if version <= capability]
    return known[-1] if capability in BLOCK_MEMORY else min(known)


class Program(Protocol):
    """What can be compiled."""

    @property
    def architecture(self) -> str:
        """What the compiler compiles for."""

    @property
    def source(self) -> str:
        """The text."""

    @property
    def files(self) -> tuple[str, ...]:
        """What the source includes."""


@dataclass(frozen=True)
class Problem:
    """What a kernel computes."""

    cell: str
    backward: bool
    hidden: int
    inline: bool
    """Whether the kernel multiplies the input, which is one number, or it comes multiplied already."""
    delays: tuple[int, ...]
    memory: int
    parts: int
    double: bool = False
    bias: bool = True
    bias_hn: bool = False
    norm: bool = False
    reset: bool = False
    lengths: bool = False
    reverse: bool = False
    zoneout: int = 0
    """1 by masks, 2 by its probability."""
    dropout: bool = False
    save: bool = True
    probe: bool = False
    """Whether the full derivative with respect to every state is written."""

    @property
    def sums_x(self) -> bool:
        """Whether the kernel adds up the gradient of weight_ih."""
        return self.backward and self.inline

    @property
    def phases(self) -> int:
        """How many products one step has."""
        return 2 if self.cell == "mist" else 1

    @property
    def gates(self) -> int:
        """Gates of H units that read the input."""
        return {"mist": 2, "lstm": 4, "gru": 3}.get(self.cell, 1)

    @property
    def extra_rows(self) -> int:
        """Rows of the parameters beside the gates."""
        return len(self.delays) if self.cell == "mist" else 0

    @property
    def columns(self) -> int:
        """Gradients of pre-activations that a step writes."""
        return {"gru": 4}.get(self.cell, self.gates) * self.hidden + self.extra_rows

    @property
    def column_stride(self) -> int:
        """From one sequence to the next in those gradients: torch's products want whole 16 bytes."""
        return ceil(self.columns / 4) * 4

    @property
    def mixed_stride(self) -> int:
        """... and in MIST's mixed history."""
        return ceil(self.hidden / 4) * 4

    @property
    def record(self) -> int:
        """Vectors [H] that a step leaves for later steps and for the backward pass; see the cells' own files."""
        if self.cell == "mist":
            own = 2 + (self.zoneout == 2) if self.save else 1
        else:
            own = {"lstm": 5, "gru": 5}.get(self.cell, 1) if self.save else 0
        return own + (2 * self.gates if self.norm and self.save else 0)

    @property
    def extra_record(self) -> int:
        """... and vectors [D] of MIST."""
        return (3 if self.norm else 1) if self.cell == "mist" and self.save else 0

    @property
    def states_before(self) -> int:
        """States before the first step that stand in front of MIST's records."""
        return self.memory if self.cell == "mist" else 0

    @property
    def kinds(self) -> int:
        """Sums over all steps that the backward pass takes of each of them."""
        return 1 + self.sums_x + self.norm

    @property
    def constants(self) -> dict[str, object]:
        """What a program knows of its problem."""
        return {
            "REAL": "double" if self.double else "float",
            "HIDDEN": self.hidden,
            "COUNT": len(self.delays),
            "DELAYS": ", ".join(map(str, self.delays or (0,))),
            "MEMORY": self.memory,
            "PARTS": self.parts,
            "PHASES": self.phases,
            "BACKWARD": self.backward,
            "INLINE_INPUTS": self.inline,
            "HAS_LENGTHS": self.lengths,
            "HAS_RESET": self.reset,
            "HAS_NORM": self.norm,
            "HAS_DROPOUT": self.dropout,
            "HAS_BIAS": self.bias,
            "HAS_BIAS_HN": self.bias_hn,
            "SAVE": self.save,
            "REVERSE": self.reverse,
            "PROBE": self.probe,
            "ZONEOUT": self.zoneout,
            "PARAMETER_ROWS": self.gates * self.hidden + self.extra_rows,
            "RECORD": self.record,
            "EXTRA_RECORD": self.extra_record,
            "STATES_BEFORE": self.states_before,
            "GRADIENT_COLUMNS": self.columns,
            "GRADIENT_STRIDE": self.column_stride,
            "MIXED_STRIDE": self.mixed_stride,
        }


def defines(constants: Mapping[str, object]) -> str:
    """Return the lines at the top of a program."""
    return "".join(
        f"#define {key} {int(value) if isinstance(value, bool) else value}\n" for key, value in constants.items()
    )


@dataclass(frozen=True)
class Launch:
    """What is chosen: it changes the speed and not the result (but for the order of sums)."""

    rows: int = 8
    """Sequences of a block: 8, or a multiple, or forwards one alone, which is multiplied without the tensor cores."""
    cluster: int = 1
    """Blocks that share the units."""
    stack: int = 1
    """Times 16 units of a warp."""
    ranges: int = 1
    """Warps that share what a product adds up."""
    spare: int = 0
    """Registers of a thread that are left to the compiler beyond what it was seen to need."""


@dataclass(frozen=True)
class Shape:
    """The tiles of a warp's share of one product, and where they lie; see product.cuh."""

    tall: int
    wide: int
    in_registers: int = 0
    in_shared: int = 0


@dataclass(frozen=True)
class Variant:
    """A kernel to compile: a problem, the choices, and the GPU's compute capability times ten."""

    problem: Problem
    launch: Launch
    capability: int

    @property
    def cluster(self) -> int:
        """Blocks that share the units."""
        return self.launch.cluster

    @property
    def warps(self) -> int:
        """Warps of a block that have units."""
        return ceil(self.problem.hidden / self.launch.cluster / (16 * self.launch.stack))

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * self.warps * self.launch.ranges

    @property
    def units(self) -> int:
        """Units of a block, the last of a cluster has fewer."""
        return 16 * self.launch.stack * self.warps

    @property
    def places(self) -> int:
        """Units that a cluster has room for."""
        return self.units * self.launch.cluster

    @property
    def alone(self) -> bool:
        """Whether a block has one sequence; see block.cuh."""
        return self.launch.rows == 1

    @property
    def values(self) -> int:
        """Numbers of one thread."""
        return 1 if self.alone else self.launch.rows // 2 * self.launch.stack

    @property
    def thread_rows(self) -> int:
        """Sequences of one thread."""
        return 1 if self.alone else self.launch.rows // 4

    @property
    def pieces(self) -> int:
        """Times 16 bytes that a lane has of a tile of weights: one for each part, or two in plain float32."""
        return 2 if self.alone else self.problem.parts

    @property
    def products(self) -> list[tuple[int, int]]:
        """For each product, how many matrices of the block's units stand on top of each other, and what they read."""
        everyone = ceil(self.problem.hidden / 16) * 16  # places of units that do not exist come after them
        if self.problem.cell == "mist":
            return [(1, everyone), (1, everyone)]
        if self.problem.cell == "narx":
            return [(len(self.problem.delays), everyone)]
        if self.problem.backward:
            return [(1, (self._published - 1) * self.places + everyone)]
        return [(self.problem.gates, everyone)]

    @property
    def _published(self) -> int:
        """Vectors over all places that blocks tell each other for a product: backwards the gates' gradients."""
        return self.problem.gates if self.problem.backward and self.problem.cell != "mist" else 1

    @property
    def registers(self) -> int:
        """Registers that a thread can have: a quarter of the warps share a quarter of the multiprocessor's."""
        share = REGISTERS_OF_A_MULTIPROCESSOR // 128 // ceil(self.threads / 128) // 8 * 8
        return min(MOST_REGISTERS, share - 8 * (self.capability >= 100))  # whose compiler needs some more for itself

    @cached_property
    def shapes(self) -> list[Shape]:
        """The shape of each product: weights fill the registers that are free, then shared memory."""
        pieces, stack = self.pieces, self.launch.stack
        shapes = [Shape(tall, self._wide(columns)) for tall, columns in self.products]
        if pieces == 0:
            return shapes
        free = self.registers - self._registers_beside()
        memory = block_memory(self.capability) - self._memory_beside
        in_registers, in_shared = [0] * len(shapes), [0] * len(shapes)
        for kept, budget, cost in (
            (in_registers, free, 4 * pieces * stack),
            (in_shared, memory, 16 * pieces * stack * self.threads),
        ):
            while True:
                fitting = [
                    k
                    for k, shape in enumerate(shapes)
                    if in_registers[k] + in_shared[k] < shape.wide and cost * shape.tall <= budget
                ]
                if not fitting:
                    break
                k = min(fitting, key=lambda k: kept[k])
                kept[k] += 1
                budget -= cost * shapes[k].tall
        return [Shape(s.tall, s.wide, in_registers[k], in_shared[k]) for k, s in enumerate(shapes)]

    def _wide(self, columns: int) -> int:
        """Return the tiles along what one range of a product reads."""
        return ceil(columns / 16 / self.launch.ranges) if self.problem.parts else ceil(columns / 16)

    def _registers_beside(self) -> int:
        problem, launch = self.problem, self.launch
        count, vectors = len(problem.delays), self.values
        beside = (
            REGISTERS_BESIDE_ALONE[problem.cell] if self.alone else REGISTERS_BESIDE[problem.cell, problem.backward]
        )
        beside += launch.spare
        if problem.cell == "mist":
            beside += ((2 if problem.backward else 1) * count - 1) * vectors + 4 * self.pieces * launch.stack
        if vectors > 4:
            beside += VECTORS_BESIDE[problem.cell, problem.backward] * (vectors - 4)
        return beside + 24 * problem.norm

    @property
    def streamed(self) -> int:
        """Bytes of weights that a block reads from the second-level cache at every step."""
        tiles = sum((s.wide - s.in_registers - s.in_shared) * s.tall for s in self.shapes)
        return tiles * self.launch.stack * self.threads * 16 * self.pieces

    @property
    def u_stride(self) -> int:
        """From one sequence to the next in what a product reads, in bytes, without conflicts between banks."""
        parts, item = self.problem.parts, 8 if self.problem.double else 4
        ranges = self.launch.ranges if parts else 1
        read = (self._wide(columns) * 16 * ranges for _, columns in self.products)
        columns = max(self.places * self._published, *read)
        if parts == 0 or self.alone:
            return columns * item
        used, offsets = columns * 2 * parts, (64,) if parts == 2 else (32, 96)
        while used % 128 not in offsets:
            used += 32
        return used

    @property
    def sum_width(self) -> int:
        """Numbers of a lane that are added up over the units at once."""
        count, problem, rows = len(self.problem.delays), self.problem, self.thread_rows
        groups = count if problem.cell == "clockwork" else 1
        width = (2 if problem.backward else 1) * groups * rows if problem.norm else 0
        return max(width, ceil(count / 8) * rows if problem.cell == "mist" and problem.backward and problem.norm else 0)

    @property
    def extra_width(self) -> int:
        """Numbers of a lane that the softmax of MIST, or its gradient, adds up over the warps."""
        return ceil(len(self.problem.delays) / 8) * self.thread_rows if self.problem.cell == "mist" else 0

    @property
    def buffers(self) -> int:
        """Of what a product reads: two if there is room."""
        return 2 if self._memory_with(2) <= block_memory(self.capability) else 1

    @property
    def cramped(self) -> bool:
        """Whether a thread needs more registers than it can have."""
        return self.problem.parts > 0 and self._registers_beside() > self.registers

    @property
    def _memory_beside(self) -> int:
        """Bytes of shared memory that the weights leave to the rest: u and the sums over units."""
        return self._memory_with(self.buffers)

    def _memory_with(self, buffers: int) -> int:
        item = 8 if self.problem.double else 4
        totals = 2 * self.launch.cluster * self.warps * 32 * (self.sum_width + self.extra_width)
        tall = max(tall for tall, _ in self.products)
        partial = (self.launch.ranges - 1) * self.warps * tall * 32 * self.values
        counters = 32 if self.launch.cluster > 1 else 0
        return buffers * self.launch.rows * self.u_stride + ceil((totals + partial) * item / 16) * 16 + counters

    @property
    def shared_memory(self) -> int:
        """Bytes of shared memory of a block."""
        tiles = sum(s.in_shared * s.tall for s in self.shapes) * self.launch.stack
        return self._memory_beside + tiles * self.threads * 16 * self.pieces

    @property
    def tiles(self) -> int:
        """Tiles of packed weights of a block."""
        if not self.problem.parts:
            return 0
        extra = self.launch.stack * self.warps if self.extra_width else 0
        return sum(s.tall * s.wide for s in self.shapes) * self.launch.stack * self.threads // 32 + extra

    def working_bytes(self, batch: int) -> int:
        """Return what a run takes of memory while it is under way, for each trial: the weights, laid out."""
        return self.cluster * self.tiles * self.pieces * 512

    def blocks(self, batch: int) -> int:
        """Return how many blocks (or clusters of them) a batch takes."""
        return ceil(batch / self.launch.rows)

    @property
    def record_rows(self) -> int:
        """Sequences whose records lie together: of a block, and of eight blocks that have one each."""
        return max(8, self.launch.rows)

    def saved_size(self, steps: int) -> int:
        """Return the numbers that the records of so many sequences take."""
        problem, launch = self.problem, self.launch
        slots = steps + problem.states_before
        records = launch.cluster * self.warps * slots * problem.record * 32 * (self.record_rows // 2 * launch.stack)
        slots = steps + problem.memory
        of_delays = self.record_rows // 4 * ceil(max(1, len(problem.delays)) / 8)
        return records + slots * problem.extra_record * 32 * of_delays

    def saved_blocks(self, batch: int) -> int:
        """Return how many times a batch takes that."""
        return ceil(batch / self.record_rows)

    def saved_numbers(self, steps: int, batch: int) -> int:
        """Return the numbers that all records of one trial take."""
        return self.saved_blocks(batch) * self.saved_size(steps)

    def ring_numbers(self, steps: int, batch: int) -> int:
        """Return the numbers that all sums or gradients under way of one trial take."""
        return self.blocks(batch) * self.ring_size(steps)

    def ring_size(self, steps: int) -> int:
        """Return the numbers that sums or gradients under way of one block (or cluster) take."""
        problem = self.problem
        slots = {"narx": problem.memory, "mist": (steps + problem.memory) * problem.backward}.get(problem.cell, 0)
        return self.launch.cluster * self.warps * slots * 32 * self.values

    @property
    def architecture(self) -> str:
        """What the compiler compiles for."""
        return f"sm_{self.capability}"

    @property
    def source(self) -> str:
        """The program: the constants, then the cell's own file, then the kernel."""
        problem, launch, shapes = self.problem, self.launch, self.shapes
        constants = problem.constants | {
            "CLUSTER": launch.cluster,
            "ROWS": launch.rows,
            "STACK": launch.stack,
            "RANGES": launch.ranges,
            "WARPS": self.warps,
            "BUFFERS": self.buffers,
            "U_STRIDE": self.u_stride,
            "SUM_WIDTH": self.sum_width,
            "EXTRA_WIDTH": self.extra_width,
            "TILES_AT": self._memory_beside,
        }
        for k in range(2):
            n = k % len(shapes)
            shape = shapes[n]
            constants[f"SHAPE_{k}"] = f"{shape.tall}, {shape.wide}, {shape.in_registers}, {shape.in_shared}"
            constants[f"PRODUCT_COLUMNS_{k}"] = self.products[n][1]
        cell = problem.cell
        return (
            defines(constants)
            + f'#include "layers/{cell}/cuda.cuh"\n'
            + f"KERNEL({self.threads}) run(const GRID_CONSTANT Arguments args) {{ run_cell<{cell.title()}>(args); }}\n"
        )

    @property
    def files(self) -> tuple[str, ...]:
        """What the source includes."""
        return (*(f"kernels/cuh/{header}.cuh" for header in HEADERS), f"layers/{self.problem.cell}/cuda.cuh")


def headers(program: Program) -> Iterator[tuple[str, str]]:
    """Give the name and the text of every file that the source includes."""
    for name in program.files:
        yield name, (ROOT / name).read_text(encoding="utf-8")
