"""Gradient norms against tau as a picture, and figure 2 with it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib
import numpy as np
import torch
from matplotlib.figure import Figure

from mistrnn.analysis import reach
from mistrnn.errors import UsageError
from mistrnn.paper.figure2 import Curve
from mistrnn.report._files import STYLES, save_figure

DECADES = 8
"""Norms below the largest by more than that are not shown."""


@dataclass(frozen=True)
class Norms:
    """One line: the norms by tau, and those of single trials behind it."""

    label: str
    column: str
    mean: Sequence[float]
    trials: Sequence[Sequence[float]] = ()


def draw_gradients(lines: Sequence[Norms], folder: Path, name: str, *, title: str) -> list[Path]:
    """Draw norms against tau on a logarithmic scale and return the files: SVG, PNG and CSV."""
    largest = max((value for line in lines for value in line.mean if value < float("inf")), default=0.0)
    if not largest > 0:
        raise UsageError("there is no gradient to draw: all norms are zero, infinite or not a number.")
    figure = Figure(figsize=(8, 4.8), layout="constrained")
    axes = figure.subplots()
    # Many lines are one thing at many steps: from dark to light, in their order.
    many = matplotlib.colormaps["cividis"](np.linspace(0, 0.9, len(lines)))
    styles = STYLES if len(lines) <= len(STYLES) else [(colour, "-") for colour in many]
    for line, (colour, style) in zip(lines, styles, strict=False):
        for trial in line.trials:
            axes.plot(trial, color=colour, linewidth=0.6, alpha=0.35)
        far = reach(torch.tensor(line.mean))
        label = f"{line.label}: 1% up to τ = {far}"
        axes.plot(line.mean, color=colour, linestyle=style, linewidth=2.2, label=label)
        if 0 <= far < len(line.mean) - 1:
            axes.plot(
                [far], [line.mean[far]], marker="o", markersize=7, color=colour, markeredgecolor="white", zorder=4
            )
    axes.set_yscale("log")
    axes.set_ylim(largest * 10**-DECADES, largest * 3)
    axes.set_xlim(0, max(len(line.mean) for line in lines) - 1)
    axes.set(xlabel="τ, steps before the loss", ylabel="norm of the gradient by the hidden state", title=title)
    axes.grid(axis="y", color="0.9", linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    length = max(len(line.mean) for line in lines)
    rows = [
        {"tau": tau} | {line.column: line.mean[tau] if tau < len(line.mean) else "" for line in lines}
        for tau in range(length)
    ]
    return save_figure(figure, folder, name, rows)


def draw_figure2(curves: Sequence[Curve], folder: Path, steps: int) -> list[Path]:
    """Draw figure 2 and return its files."""
    lines = [Norms(c.row.label, f"{c.row.layer}_{c.row.hidden}", c.mean.tolist(), c.norms.tolist()) for c in curves]
    trials = len(curves[0].norms)
    title = f"Permuted MNIST after {steps} steps of training; thin lines are the {trials} trials"
    return draw_gradients(lines, folder, "figure2", title=title)
