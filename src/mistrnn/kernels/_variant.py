"""The GPU kernels' variants: what is known when a kernel is compiled, and how its work is laid out on the machine.

E trials, B batch, I input, H hidden, D delays. A tile is 16 x 16 numbers of a weight matrix.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import ceil
from pathlib import Path

ROOT = Path(__file__).parents[1]
HEADERS = ("device", "block", "product", "gates", "recurrence")

MAX_HIDDEN, MAX_DELAYS, MAX_DELAY = 1024, 16, 4096
"""The largest layer that the kernels are made and tested for."""

INLINE_INPUTS = 4
"""Up to so many inputs are multiplied in the kernel; more are a matrix product before it."""

REGISTERS_OF_A_MULTIPROCESSOR, MOST_REGISTERS = 65536, 255

BLOCK_MEMORY = {80: 166_912, 86: 101_376, 89: 101_376, 90: 232_448, 100: 232_448, 103: 232_448, 120: 101_376}
"""Shared memory that one block can have, in bytes, by compute capability (times ten)."""

REGISTERS_BESIDE = {
    ("rnn", False): 56,
    ("rnn", True): 64,
    ("clockwork", False): 64,
    ("clockwork", True): 72,
    ("lstm", False): 80,
    ("lstm", True): 112,
    ("gru", False): 80,
    ("gru", True): 112,
    ("narx", False): 64,
    ("narx", True): 64,
    ("mist", False): 72,
    ("mist", True): 96,
}
"""Registers that a thread needs beside weights, without prefetched history: found by compiling, see tests/kernels."""


def block_memory(capability: int) -> int:
    """Return the shared memory of a block; a GPU that is not in the table has at least what its predecessor had."""
    known = [size for version, size in BLOCK_MEMORY.items() if version <= capability]
    return known[-1] if capability in BLOCK_MEMORY else min(known)


@dataclass(frozen=True)
class Problem:
    """What a kernel computes."""

    cell: str
    backward: bool
    hidden: int
    inline_inputs: int
    """I, or -1 if the input comes multiplied already."""
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
    saved_size: int = 0
    ring: int = 1
    """Steps whose gradients MIST keeps for the sums over delays."""

    @property
    def sums_x(self) -> bool:
        """Whether the kernel adds up the gradient of weight_ih."""
        return self.backward and self.inline_inputs == 1

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
    def kinds(self) -> int:
        """Sums over all steps that the backward pass takes of each of them."""
        return 1 + self.sums_x + self.norm


@dataclass(frozen=True)
class Launch:
    """What is chosen: it changes the speed and not the result (but for the order of sums)."""

    rows: int = 8
    """Sequences of a block."""
    cluster: int = 1
    """Blocks that share the units."""
    warps: int | None = None
    """Warps of a block; None for as many as the work needs."""
    prefetch: bool = True
    """Whether MIST reads its history one step ahead."""
    spare: int = 0
    """Registers of a thread that are left to the compiler beyond what it was seen to need."""


@dataclass(frozen=True)
class Shape:
    """How the warps of a block share one product; see product.cuh."""

    across: int
    """Warps beside each other along the rows."""
    ranges: int
    """... and along the columns."""
    tall: int
    """Tiles of one warp on top of each other."""
    wide: int
    """... and beside each other."""
    in_registers: int = 0
    in_shared: int = 0

    @property
    def tiles(self) -> int:
        return self.across * self.ranges * self.tall * self.wide


@dataclass(frozen=True)
class Variant:
    """A kernel to compile: a problem, the choices, and the GPU's compute capability times ten."""

    problem: Problem
    launch: Launch
    capability: int

    @property
    def units(self) -> int:
        """Units of one block."""
        return ceil(self.problem.hidden / self.launch.cluster)

    @property
    def quarter(self) -> int:
        return ceil(self.units / 4)

    @property
    def places(self) -> int:
        return 4 * self.quarter

    @property
    def cell_warps(self) -> int:
        """Warps that the cell needs: a thread has four units of one sequence."""
        return ceil(self.quarter / 8) * ceil(self.launch.rows / 4)

    @property
    def products(self) -> list[tuple[int, int]]:
        """Rows and columns of the matrix of each product, for one block."""
        own, everyone = self.places, self.places * self.launch.cluster
        count = len(self.problem.delays)
        if self.problem.cell == "mist":
            return [(own, everyone), (own, everyone + count)] if self.problem.backward else [(own + count, everyone), (own, everyone)]
        if self.problem.cell == "narx":
            return [(count * own, everyone)]
        gates = self.problem.gates
        return [(own, gates * everyone)] if self.problem.backward else [(gates * own, everyone)]

    @cached_property
    def warps(self) -> int:
        """Warps of a block."""
        if self.launch.warps is not None:
            return max(self.launch.warps, self.cell_warps)
        rows = max(ceil(rows / 16) for rows, _ in self.products)
        useful = ceil(rows / ceil(rows / 16))
        return ceil(max(self.cell_warps, useful) / 4) * 4  # a fourth costs nothing

    @property
    def registers(self) -> int:
        """Registers that a thread can have: a quarter of the warps share a quarter of the multiprocessor's."""
        return min(MOST_REGISTERS, REGISTERS_OF_A_MULTIPROCESSOR // 128 // ceil(self.warps / 4) // 8 * 8)

    def _split(self, rows: int, columns: int) -> Shape:
        """Share a product out evenly, in as few ranges as that allows."""
        tall, wide = ceil(rows / 16), ceil(columns / 16)
        best: tuple[int, int, Shape] | None = None
        for ranges in range(1, min(self.warps, wide, 8) + 1):
            across = min(self.warps // ranges, tall)
            shape = Shape(across, ranges, ceil(tall / across), ceil(wide / ranges))
            cost = (shape.tall * shape.wide * 4 + 3 * ranges, ranges)
            if best is None or cost < best[:2]:
                best = (*cost, shape)
        assert best is not None
        return best[2]

    @cached_property
    def shapes(self) -> list[Shape]:
        """How each product is shared out, and where its weights lie."""
        parts = self.problem.parts
        shapes = [self._split(*product) for product in self.products]
        if parts == 0:
            return [Shape(1, 1, 1, 1)] * len(shapes)
        registers = self.registers
        beside = REGISTERS_BESIDE[self.problem.cell, self.problem.backward] + self.launch.spare
        if self.problem.cell == "mist":
            count = len(self.problem.delays)
            if self.problem.backward:
                beside += 4 * count + (6 * count if self.launch.prefetch else 0)
            else:
                beside += 4 * count if self.launch.prefetch else 0
        if self.problem.norm:
            beside += 16
        beside += 12 * (max(s.tall for s in shapes) - 1) * ceil(self.launch.rows / 8)
        free = registers - beside
        memory = block_memory(self.capability) - self._memory_beside(shapes)
        in_registers, in_shared = [0] * len(shapes), [0] * len(shapes)
        for kept, costs in (
            (in_registers, [4 * parts * shape.tall for shape in shapes]),
            (in_shared, [512 * parts * shape.tall * shape.across * shape.ranges for shape in shapes]),
        ):
            budget = free if kept is in_registers else memory
            while True:
                open_ones = [
                    k
                    for k, shape in enumerate(shapes)
                    if in_registers[k] + in_shared[k] < shape.wide and costs[k] <= budget
                ]
                if not open_ones:
                    break
                k = min(open_ones, key=lambda k: kept[k])
                kept[k] += 1
                budget -= costs[k]
        return [
            Shape(s.across, s.ranges, s.tall, s.wide, in_registers[k], in_shared[k]) for k, s in enumerate(shapes)
        ]

    @property
    def streamed(self) -> int:
        """Bytes of weights that a block reads from the second-level cache at every step."""
        return sum(
            (s.wide - s.in_registers - s.in_shared) * s.tall * s.across * s.ranges * 512 * self.problem.parts
            for s in self.shapes
        )

    def _strides(self, shapes: list[Shape]) -> tuple[int, int]:
        """Return the strides of a sequence in u (bytes) and z (numbers), without conflicts between banks."""
        parts, item = self.problem.parts, 8 if self.problem.double else 4
        if parts == 0:
            columns, rows = max(c for _, c in self.products), max(r for r, _ in self.products)
            return ceil(columns * item / 16) * 16, ceil(rows / 4) * 4 + 4
        bytes_used = max(s.ranges * s.wide for s in shapes) * 16 * 2 * parts
        offsets = (64,) if parts == 2 else (32, 96)
        while bytes_used % 128 not in offsets:
            bytes_used += 32
        return bytes_used, max(s.across * s.tall for s in shapes) * 16 + 4

    def _sizes(self, shapes: list[Shape]) -> dict[str, int]:
        """Return the sizes in shared memory, in bytes but for the table."""
        problem, launch, item = self.problem, self.launch, 8 if self.problem.double else 4
        u_stride, z_stride = self._strides(shapes)
        ranges = 1 if problem.parts == 0 else max(s.ranges for s in shapes)
        table_rows = max(problem.inline_inputs, 0) + 1 + problem.norm
        table = ceil((problem.gates * table_rows * self.places + problem.extra_rows * table_rows) / 4) * 4
        return {
            "u": (2 if launch.cluster > 1 else 1) * ceil(launch.rows / 8) * 8 * u_stride,
            "z": ranges * launch.rows * z_stride * item,
            "table": table,
            "totals": 2 * launch.cluster * ceil(self.quarter / 8) * launch.rows * self.sum_width * item,
        }

    @property
    def sum_width(self) -> int:
        """Numbers that are added up over the units at once."""
        count, problem = len(self.problem.delays), self.problem
        groups = count if problem.cell == "clockwork" else 1
        width = (2 if problem.backward else 1) * groups if problem.norm else 0
        return max(width, count if problem.cell == "mist" and problem.backward else 0)

    def _memory_beside(self, shapes: list[Shape]) -> int:
        sizes, item = self._sizes(shapes), 8 if self.problem.double else 4
        return ceil((sizes["u"] + sizes["z"] + sizes["table"] * item + sizes["totals"]) / 16) * 16

    @property
    def shared_memory(self) -> int:
        """Bytes of shared memory of a block."""
        tiles = sum(s.across * s.ranges * s.in_shared * s.tall for s in self.shapes) if self.problem.parts else 0
        return self._memory_beside(self.shapes) + tiles * 512 * self.problem.parts

    @property
    def tiles(self) -> int:
        """Tiles of packed weights of a block."""
        return sum(s.tiles for s in self.shapes) if self.problem.parts else 0

    @property
    def source(self) -> str:
        """The program: the constants, then the cell's own file, then the kernel."""
        problem, launch = self.problem, self.launch
        (u_stride, z_stride), shapes = self._strides(self.shapes), self.shapes
        sizes = self._sizes(shapes)
        rows, columns = zip(*self.products, strict=True)
        constants: dict[str, object] = {
            "REAL": "double" if problem.double else "float",
            "HIDDEN": problem.hidden,
            "COUNT": len(problem.delays),
            "DELAYS": ", ".join(map(str, problem.delays or (0,))),
            "MEMORY": problem.memory,
            "RING": problem.ring,
            "CLUSTER": launch.cluster,
            "ROWS": launch.rows,
            "WARPS": self.warps,
            "PARTS": problem.parts,
            "PHASES": problem.phases,
            "BACKWARD": problem.backward,
            "INLINE_INPUTS": problem.inline_inputs,
            "HAS_LENGTHS": problem.lengths,
            "HAS_RESET": problem.reset,
            "HAS_NORM": problem.norm,
            "HAS_DROPOUT": problem.dropout,
            "HAS_BIAS": problem.bias,
            "HAS_BIAS_HN": problem.bias_hn,
            "SAVE": problem.save,
            "REVERSE": problem.reverse,
            "ZONEOUT": problem.zoneout,
            "SUMS_X": problem.sums_x,
            "PREFETCH": launch.prefetch,
            "Z_STRIDE": z_stride,
            "U_STRIDE": u_stride,
            "Z_RANGES": 1 if problem.parts == 0 else max(s.ranges for s in shapes),
            "TABLE_SIZE": sizes["table"],
            "SUM_WIDTH": self.sum_width,
            "TILES_AT": self._memory_beside(shapes),
            "PARAMETER_ROWS": problem.gates * problem.hidden + problem.extra_rows,
            "SAVED_SIZE": problem.saved_size,
            "GRADIENT_COLUMNS": problem.columns,
        }
        for k in range(2):
            shape = shapes[min(k, len(shapes) - 1)]
            numbers = (shape.across, shape.ranges, shape.tall, shape.wide, shape.in_registers, shape.in_shared)
            constants[f"SHAPE_{k}"] = ", ".join(map(str, numbers))
            constants[f"PRODUCT_ROWS_{k}"], constants[f"PRODUCT_COLUMNS_{k}"] = rows[k % len(rows)], columns[k % len(rows)]
        lines = [f"#define {key} {int(value) if isinstance(value, bool) else value}" for key, value in constants.items()]
        cell = problem.cell
        return "\n".join(
            [
                *lines,
                f'#include "layers/{cell}/cuda.cuh"',
                f"KERNEL({32 * self.warps}) run(const GRID_CONSTANT Arguments args) {{ run_cell<{cell.title()}>(args); }}",
                "",
            ]
        )


def headers(cell: str) -> Iterator[tuple[str, str]]:
    """Give the name and the text of every file that the source includes."""
    for name in [*(f"kernels/cuh/{header}.cuh" for header in HEADERS), f"layers/{cell}/cuda.cuh"]:
        yield name, (ROOT / name).read_text(encoding="utf-8")
