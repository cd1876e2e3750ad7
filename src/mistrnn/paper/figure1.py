"""Figure 1: direct connections to one time step, and shortest paths from tau steps before, in four architectures.

Made in a second, on anything; nothing is trained.
"""

from dataclasses import dataclass
from itertools import pairwise

from mistrnn.analysis import shortest_path

TAU = 21
"""16 + 4 + 1: three edges with exponential delays, eleven with two delays, 21 with one."""


@dataclass(frozen=True)
class Architecture:
    """One panel of the figure."""

    name: str
    delays: tuple[int, ...]
    has_cell: bool = False
    """Whether adjacent steps have a second connection, of less resistance: LSTM's memory cell."""

    def path(self, tau: int) -> list[int]:
        """Return the times on a shortest path from -tau to 0."""
        return shortest_path(self.delays, tau)


ARCHITECTURES = (
    Architecture("Simple RNN", (1,)),
    Architecture("LSTM", (1,), has_cell=True),
    Architecture("Simple NARX RNN, 2 delays", (1, 2)),
    Architecture("NARX RNN with 5 exponential delays (MIST)", (1, 2, 4, 8, 16)),
)


def rows(tau: int = TAU) -> list[dict[str, object]]:
    """Return the figure's data: every connection to time t = 0, and every edge of a shortest path from -tau."""
    found: list[dict[str, object]] = []
    for architecture in ARCHITECTURES:
        kinds = ("hidden state", "cell") if architecture.has_cell else ("hidden state",)
        edges = [(-delay, 0, "connection") for delay in architecture.delays]
        path = architecture.path(tau)
        edges += [(begin, end, "shortest path") for begin, end in pairwise(path)]
        found += [
            {"architecture": architecture.name, "what": what, "through": kind, "from": begin, "to": end}
            for kind in kinds
            for begin, end, what in edges
        ]
    return found
