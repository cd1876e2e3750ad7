"""The variants of the kernels for large layers of many trials, see kernels/cuh/wide.cuh.

E trials, B batch, H hidden, D delays. A tile of sequences is 8 of them; those of weights are below.
"""

from dataclasses import dataclass, replace
from math import ceil

from mistrnn.kernels._variant import OLDEST_WITH_CLUSTERS, Problem, block_memory, defines

GENERATION_WITH_GROUPS = 90
"""The compute capability, times ten, of the GPUs on which four warps can multiply together (`wgmma`)."""

CELLS = ("mist", "lstm")
"""Those of which the paper has large layers."""

MOST_TILES, MOST_TILES_OF_GROUPS = 13, 16
"""Of sequences in a block of a product: for 104 or 128 of them there are registers."""

MOST_WARPS, MOST_GROUPS = 7, 4
"""Of a block of a product; with 50 trials of 512 units, 6 warps leave blocks for a second round, which takes twice as long."""

RESIDENT = 512
"""Threads of a multiprocessor between the products: so many registers are left for each that none is kept in memory."""

MOST_SEQUENCES = 25
"""Of a block there."""


def serves(problem: Problem, capability: int) -> bool:
    """Return whether these kernels can compute a problem: options are left to the others."""
    options = (problem.norm, problem.reset, problem.lengths, problem.reverse, problem.zoneout, problem.dropout)
    plain = not any(options) and not problem.probe and not problem.double and problem.parts > 0
    return problem.cell in CELLS and plain and problem.hidden % 128 == 0 and capability >= OLDEST_WITH_CLUSTERS


def is_grouped(problem: Problem, capability: int) -> bool:
    """Return whether groups of four warps multiply together; three parts need more sums than there are registers for."""
    return capability == GENERATION_WITH_GROUPS and problem.parts < 3


@dataclass(frozen=True)
class WideVariant:
    """The kernels of one direction."""

    problem: Problem
    tiles: int
    """Of sequences, of a block of a product."""
    width: int
    """Of such a block, too: how many tiles of rows of the weights it takes."""
    sequences: int
    """Of a block between the products."""
    capability: int

    cluster = 0
    """What tells the records of these kernels from those of others."""

    @property
    def grouped(self) -> bool:
        """Whether groups of four warps multiply together."""
        return is_grouped(self.problem, self.capability)

    @property
    def architecture(self) -> str:
        """What the compiler compiles for: that instruction is one of a single generation."""
        return f"sm_{self.capability}{'a' if self.grouped else ''}"

    @property
    def weight_tile(self) -> tuple[int, int]:
        """Rows and columns of the weights that a warp or a group multiplies by at once."""
        return (64, 32) if self.grouped else (32, 16)

    @property
    def products(self) -> list[tuple[int, int]]:
        """For each product, how many of those tiles the weights have in each direction."""
        problem, hidden = self.problem, self.problem.hidden
        rows_and_columns = [(problem.gates * hidden, hidden)]
        if problem.cell == "mist":
            rows_and_columns = [(hidden + problem.extra_rows, hidden), (hidden, hidden)]
            if problem.backward:
                rows_and_columns = [(hidden, hidden), (hidden, hidden + problem.extra_rows)]
        elif problem.backward:
            rows_and_columns = [(hidden, problem.gates * hidden)]
        tall, deep = self.weight_tile
        return [(ceil(rows / tall), ceil(columns / deep)) for rows, columns in rows_and_columns]

    @property
    def threads(self) -> int:
        """Threads of a block of a product: with groups, one more warp copies what they read."""
        return 32 * (4 * self.width + 1) if self.grouped else 32 * self.width

    @property
    def step_threads(self) -> int:
        """Threads of a block between the products."""
        return self.problem.hidden // 4

    @property
    def step_memory(self) -> int:
        """Bytes of shared memory of such a block: sums over its warps."""
        return 2 * self.step_threads // 32 * 16 * 4

    @property
    def trials_met(self) -> int:
        """Of how many trials a block multiplies, at most."""
        return 1 if self.grouped and all(rows % self.width == 0 for rows, _ in self.products) else 2

    @property
    def ahead(self) -> int:
        """Tiles along the depth that a block reads at once: a barrier follows each time, and three parts fill the registers."""
        return 1 if self.grouped or self.problem.parts == 3 else 2

    @property
    def _stage(self) -> int:
        """Bytes of weights and of what they multiply that a block reads at once."""
        tall, deep = self.weight_tile
        return self.ahead * self.problem.parts * 2 * deep * (self.width * tall + self.trials_met * self.tiles * 8)

    @property
    def stages(self) -> int:
        """How many of them are under way."""
        most = 6 if self.grouped else 8 // self.ahead
        return min(most, (block_memory(self.capability) - 16 * most) // self._stage)

    @property
    def shared_memory(self) -> int:
        """Bytes of shared memory of a block of a product; groups count there, and warps turn their results around."""
        stages = self.stages * self._stage
        return stages + 16 * self.stages if self.grouped else max(stages, self.width * self.tiles * 8 * 36 * 4)

    @property
    def fits(self) -> bool:
        """Whether the GPU has so much."""
        return self.stages >= 2 and self.shared_memory <= block_memory(self.capability)

    @property
    def z_stride(self) -> int:
        """From one sequence to the next in what a product gives."""
        return self.weight_tile[0] * max(rows for rows, _ in self.products)

    def chunks(self, batch: int) -> int:
        """Return how many blocks the sequences of a trial take in a product."""
        return ceil(batch / (8 * self.tiles))

    def u_bytes(self, product: int, batch: int) -> int:
        """Return the bytes of what a product reads, of one trial."""
        places = self.products[product][1] * self.weight_tile[1]
        return places * self.chunks(batch) * self.tiles * 8 * 2 * self.problem.parts

    @property
    def packed_tiles(self) -> int:
        """Tiles of the weights of a trial that a warp lays out for the products: a group's, or half of a warp's."""
        return sum(rows * columns for rows, columns in self.products) * (1 if self.grouped else 2)

    def working_memory(self, batch: int) -> dict[str, int]:
        """Return what a run takes of memory while it is under way, in bytes for each trial.

        The weights, laid out for the products; what these read and give; and what an LSTM carries from step to step.
        """
        problem, (tall, deep) = self.problem, self.weight_tile
        return {
            "packed": sum(rows * columns for rows, columns in self.products) * tall * deep * 2 * problem.parts,
            **{f"u {n}": self.u_bytes(n, batch) for n in range(problem.phases)},
            "z": batch * self.z_stride * 4,
            "carried": batch * problem.hidden * 4 * (problem.cell == "lstm"),
        }

    def working_bytes(self, batch: int) -> int:
        """Return all of that."""
        return sum(self.working_memory(batch).values())

    def product_grid(self, product: int, trials: int, batch: int) -> tuple[int, int, int]:
        """Return how many blocks a product takes."""
        return ceil(trials * self.products[product][0] / self.width), self.chunks(batch), 1

    def blocks(self, batch: int) -> int:
        """Return how many blocks the sequences of a trial take between the products."""
        return ceil(batch / self.sequences)

    def saved_numbers(self, steps: int, batch: int) -> int:
        """Return the numbers that a trial saves for the backward pass."""
        problem = self.problem
        width = problem.hidden + problem.extra_rows if problem.cell == "mist" else 5 * problem.hidden
        return ceil(steps * batch * width * problem.save / 64) * 64

    def ring_numbers(self, steps: int, batch: int) -> int:
        """Return the numbers that gradients under way of one trial take."""
        problem = self.problem
        return problem.memory * batch * problem.hidden if problem.cell == "mist" and problem.backward else 0

    @property
    def source(self) -> str:
        """The program."""
        (rows, columns), (more_rows, more_columns) = (*self.products, (0, 1))[:2]
        constants = self.problem.constants | {
            "GROUPED": self.grouped,
            "WIDTH": self.width,
            "TRIALS_MET": self.trials_met,
            "SEQUENCE_TILES": self.tiles,
            "RESIDENT": RESIDENT,
            "STAGES": self.stages,
            "AHEAD": self.ahead,
            "Z_STRIDE": self.z_stride,
            "TALL_0": rows,
            "DEPTH_0": columns,
            "TALL_1": more_rows,
            "DEPTH_1": more_columns,
        }
        if self.grouped:
            constants |= group_product(self.tiles)
        return defines(constants) + f'#include "layers/{self.problem.cell}/wide.cuh"\n'

    @property
    def files(self) -> tuple[str, ...]:
        """What the source includes."""
        way = ("groups", "ring", "wide_groups") if self.grouped else ("wide_warps",)
        own = ("device", "parts", "arguments", *way, "wide")
        return (*(f"kernels/cuh/{header}.cuh" for header in own), f"layers/{self.problem.cell}/wide.cuh")


def group_product(tiles: int) -> dict[str, str]:
    """Return the instruction by which four warps multiply for so many tiles of sequences: it names each register of its sum."""
    count = 4 * tiles
    sums = ", ".join(f"%{n}" for n in range(count))
    return {
        "GROUP_PRODUCT": f'"wgmma.mma_async.sync.aligned.m64n{8 * tiles}k16.f32.bf16.bf16 '
        f'{{{sums}}}, %{count}, %{count + 1}"',
        "GROUP_PRODUCT_MORE": f'"%{count + 2}"',
        "GROUP_PRODUCT_SUMS(s)": ", ".join(f'"+f"(s[{n // 4}][{n % 4}])' for n in range(count)),
    }


def wide_variant(problem: Problem, trials: int, batch: int, capability: int, multiprocessors: int) -> WideVariant:
    """Return the variant for so many trials and sequences: blocks of the same size, for all multiprocessors."""
    found = WideVariant(problem, 1, 1, 1, capability)
    # Between the products all blocks are on the GPU at once, if that can be: who comes later would keep the others waiting.
    at_once = multiprocessors * max(1, RESIDENT // found.step_threads)
    sequences = max(1, min(MOST_SEQUENCES, ceil(batch / max(1, at_once // max(1, trials)))))
    grouped, tiles = found.grouped, ceil(batch / 8)
    chunks = ceil(tiles / (MOST_TILES_OF_GROUPS if grouped else MOST_TILES))
    found = replace(found, tiles=ceil(tiles / chunks), sequences=sequences)
    rows = min(rows for rows, _ in found.products)
    least, most = (1, min(rows, MOST_GROUPS)) if grouped else (4, MOST_WARPS)
    found = replace(found, width=max(least, min(most, ceil(trials * chunks * rows / multiprocessors))))
    while not found.fits and (found.width > least or found.tiles > 1):  # on a GPU with little shared memory
        found = replace(found, width=found.width - 1) if found.width > least else replace(found, tiles=found.tiles - 1)
    return found
