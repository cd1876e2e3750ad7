"""Figure 1 as a picture: time from left to right, connections as arcs."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from mistrnn.paper import figure1
from mistrnn.paper.figure1 import Architecture
from mistrnn.report._files import STYLES, save_figure

HIDDEN, CELL = STYLES[0][0], STYLES[1][0]
MINUS = "\N{MINUS SIGN}"


def draw_figure1(folder: Path, tau: int = figure1.TAU) -> list[Path]:
    """Draw the four architectures and return the files: SVG, PNG and CSV."""
    figure = Figure(figsize=(10, 4.4), layout="constrained")
    axes = figure.subplots(2, 2, sharex=True, sharey=True)
    for panel, architecture in zip(axes.flat, figure1.ARCHITECTURES, strict=True):
        _draw(panel, architecture, tau)
    figure.legend(
        handles=[
            Line2D([], [], color=HIDDEN, linestyle=(0, (3, 1.5)), linewidth=1.4, label="direct connections to time t"),
            Line2D([], [], color=HIDDEN, linewidth=2.2, label=f"a shortest path from t {MINUS} τ to t"),
            Line2D([], [], color=CELL, linewidth=2.2, label="through the memory cell, with less resistance"),
        ],
        loc="outside lower center",
        ncols=3,
        frameon=False,
    )
    return save_figure(figure, folder, "figure1", figure1.rows(tau))


def _draw(axes: Axes, architecture: Architecture, tau: int) -> None:
    path = architecture.path(tau)
    sides = [(1.0, HIDDEN), (1.9, CELL)] if architecture.has_cell else [(1.0, HIDDEN)]
    for height, colour in sides:
        for delay in architecture.delays:
            _arc(axes, -delay, 0, -height, color=colour, linestyle=(0, (3, 1.5)), linewidth=1.4)
        for begin, end in pairwise(path):
            _arc(axes, begin, end, height, color=colour, linewidth=2.2)
    times = range(-tau, 1)
    axes.scatter(times, [0] * len(times), s=24, facecolor="white", edgecolor="0.3", linewidth=1, zorder=3)
    axes.scatter(path, [0] * len(path), s=24, color="0.25", zorder=4)
    axes.annotate(f"t {MINUS} {tau}", (-tau, 0), xytext=(0, -9), textcoords="offset points", ha="center", va="top")
    axes.annotate("t", (0, 0), xytext=(8, 0), textcoords="offset points", va="center")
    edges = len(path) - 1
    axes.set_title(f"{architecture.name}: {edges} edge{'s' if edges > 1 else ''}", fontsize=11)
    axes.set(xlim=(-max(tau, *architecture.delays) - 1, 1.5), ylim=(-2.4, 2.4))
    axes.axis("off")


def _arc(axes: Axes, begin: int, end: int, height: float, **style: Any) -> None:
    """Draw an arc above the line of time, or below it for a negative height; longer ones are higher."""
    across = np.linspace(0, 1, 60)
    axes.plot(begin + (end - begin) * across, height * 0.5 * (end - begin) ** 0.5 * np.sin(np.pi * across), **style)
