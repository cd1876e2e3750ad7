"""How gradients travel through a recurrent network: their norms, their paths, and which past a MIST layer uses."""

from mistrnn.analysis.attention import attention
from mistrnn.analysis.gradients import GradientNorms, gradient_norms, reach
from mistrnn.analysis.ordered import Decomposition, Path, ordered_derivative
from mistrnn.analysis.paths import (
    ShortestPaths,
    clockwork_log10_path_counts,
    clockwork_path_lengths,
    clockwork_shortest_path,
    count_paths,
    edges_of,
    log10_path_counts,
    shortest_path,
    shortest_path_lengths,
    shortest_paths,
    suggest_delays,
)

__all__ = [
    "Decomposition",
    "GradientNorms",
    "Path",
    "ShortestPaths",
    "attention",
    "clockwork_log10_path_counts",
    "clockwork_path_lengths",
    "clockwork_shortest_path",
    "count_paths",
    "edges_of",
    "gradient_norms",
    "log10_path_counts",
    "ordered_derivative",
    "reach",
    "shortest_path",
    "shortest_path_lengths",
    "shortest_paths",
    "suggest_delays",
]
