"""The variants of the kernels for large layers of many trials, see kernels/cuh/wide.cuh.

E trials, B batch, H hidden, D delays. A tile is 16 units, or 8 sequences.
"""

from dataclasses import dataclass
from math import ceil

from mistrnn.kernels._variant import OLDEST_WITH_CLUSTERS, Problem, block_memory, defines

CELLS = ("mist", "lstm")
"""Those of which the paper has large layers."""

MOST_TILES = 13
"""Of sequences in a block of a product: for 104 of them there are registers."""

MOST_WARPS = 7
"""Of a block of a product; with 50 trials of 512 units, 6 leave some blocks for a second round, which takes twice as long."""

SEQUENCES = 4
"""Of a block between the products."""


def serves(problem: Problem, capability: int) -> bool:
    """Return whether these kernels can compute a problem: options are left to the others."""
    options = (problem.norm, problem.reset, problem.lengths, problem.reverse, problem.zoneout, problem.dropout)
    plain = not any(options) and not problem.probe and not problem.double and problem.parts > 0
    return problem.cell in CELLS and plain and problem.hidden % 128 == 0 and capability >= OLDEST_WITH_CLUSTERS


@dataclass(frozen=True)
class WideVariant:
    """The kernels of one direction: so many tiles of sequences in a block, and warps with 32 rows of the product each."""

    problem: Problem
    tiles: int
    warps: int
    capability: int

    cluster = 0
    """What tells the records of these kernels from those of others."""

    @property
    def products(self) -> list[tuple[int, int]]:
        """For each product, how many times 32 rows the weights have, and 16 columns."""
        problem, hidden = self.problem, self.problem.hidden
        rows_and_columns = [(problem.gates * hidden, hidden)]
        if problem.cell == "mist":
            rows_and_columns = [(hidden + problem.extra_rows, hidden), (hidden, hidden)]
            if problem.backward:
                rows_and_columns = [(hidden, hidden), (hidden, hidden + problem.extra_rows)]
        elif problem.backward:
            rows_and_columns = [(hidden, problem.gates * hidden)]
        return [(ceil(rows / 32), ceil(columns / 16)) for rows, columns in rows_and_columns]

    @property
    def threads(self) -> int:
        """Threads of a block of a product."""
        return 32 * self.warps

    @property
    def step_threads(self) -> int:
        """Threads of a block between the products."""
        return self.problem.hidden // 4

    @property
    def step_memory(self) -> int:
        """Bytes of shared memory of such a block: sums over its warps."""
        return 2 * self.step_threads // 32 * 16 * 4

    @property
    def _stage(self) -> int:
        """Bytes of weights and of what they multiply that a block reads at once."""
        return self.ahead * self.problem.parts * (self.warps * 2 * 512 + 2 * self.tiles * 32 * 8)

    @property
    def ahead(self) -> int:
        """Tiles along the depth that a block reads at once: a barrier follows each time, and three parts fill the registers."""
        return 1 if self.problem.parts == 3 else 2

    @property
    def stages(self) -> int:
        """How many of them are under way."""
        return min(8 // self.ahead, block_memory(self.capability) // self._stage)

    @property
    def shared_memory(self) -> int:
        """Bytes of shared memory of a block of a product; it turns its results around there."""
        return max(self.stages * self._stage, self.warps * self.tiles * 8 * 36 * 4)

    @property
    def fits(self) -> bool:
        """Whether the GPU has so much."""
        return self.stages >= 2 and self.shared_memory <= block_memory(self.capability)

    @property
    def z_stride(self) -> int:
        """From one sequence to the next in what a product gives."""
        return 32 * max(rows for rows, _ in self.products)

    def chunks(self, batch: int) -> int:
        """Return how many blocks the sequences of a trial take in a product."""
        return ceil(batch / (8 * self.tiles))

    def u_bytes(self, product: int, batch: int) -> int:
        """Return the bytes of what a product reads, of one trial."""
        return self.products[product][1] * self.chunks(batch) * self.tiles * 32 * 8 * self.problem.parts

    @property
    def packed_tiles(self) -> int:
        """Tiles of the weights of a trial, laid out for the products."""
        return sum(2 * rows * columns for rows, columns in self.products)

    def working_memory(self, batch: int) -> dict[str, int]:
        """Return what a run takes of memory while it is under way, in bytes for each trial.

        The weights, laid out for the products; what these read and give; and what an LSTM carries from step to step.
        """
        problem = self.problem
        return {
            "packed": self.packed_tiles * problem.parts * 512,
            **{f"u {n}": self.u_bytes(n, batch) for n in range(problem.phases)},
            "z": batch * self.z_stride * 4,
            "carried": batch * problem.hidden * 4 * (problem.cell == "lstm"),
        }

    def working_bytes(self, batch: int) -> int:
        """Return all of that."""
        return sum(self.working_memory(batch).values())

    def product_grid(self, product: int, trials: int, batch: int) -> tuple[int, int, int]:
        """Return how many blocks a product takes."""
        return ceil(trials * self.products[product][0] / self.warps), self.chunks(batch), 1

    def blocks(self, batch: int) -> int:
        """Return how many blocks the sequences of a trial take between the products."""
        return ceil(batch / SEQUENCES)

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
            "WARPS": self.warps,
            "SEQUENCE_TILES": self.tiles,
            "SEQUENCES": SEQUENCES,
            "STAGES": self.stages,
            "AHEAD": self.ahead,
            "Z_STRIDE": self.z_stride,
            "TALL_0": rows,
            "DEPTH_0": columns,
            "TALL_1": more_rows,
            "DEPTH_1": more_columns,
        }
        return defines(constants) + f'#include "layers/{self.problem.cell}/wide.cuh"\n'

    @property
    def files(self) -> tuple[str, ...]:
        """What the source includes."""
        own = ("device", "arguments", "wide")
        return (*(f"kernels/cuh/{header}.cuh" for header in own), f"layers/{self.problem.cell}/wide.cuh")


def wide_variant(problem: Problem, trials: int, batch: int, capability: int, multiprocessors: int) -> WideVariant:
    """Return the variant for so many trials and sequences: blocks of the same size, for all multiprocessors."""
    tiles = ceil(batch / 8)
    chunks = ceil(tiles / MOST_TILES)
    found = WideVariant(problem, ceil(tiles / chunks), MOST_WARPS, capability)
    work = trials * chunks * min(rows for rows, _ in found.products)
    return WideVariant(problem, found.tiles, max(4, min(MOST_WARPS, ceil(work / multiprocessors))), capability)
