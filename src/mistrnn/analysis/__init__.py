"""How gradients travel through a recurrent network, which past a MIST layer uses, and what a step of a layer costs."""

from mistrnn.analysis.attention import attention
from mistrnn.analysis.cost import StepCost, step_cost
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
from mistrnn.analysis.weights import WeightGradients, weight_gradients

__all__ = [
    "Decomposition",
    "GradientNorms",
    "Path",
    "ShortestPaths",
    "StepCost",
    "WeightGradients",
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
    "step_cost",
    "suggest_delays",
    "weight_gradients",
]
