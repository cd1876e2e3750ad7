"""Gradient norms against tau as a picture, and figure 2 with it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib
import numpy as np
import torch
from matplotlib.figure import Figure

from mistrnn.analysis import reach
from mistrnn.errors import UsageError
from mistrnn.paper.figure2 import Curve, reach_rows
from mistrnn.report._files import STYLES, save_figure, save_rows

DECADES = 8
"""Norms below the largest by more than that are not shown."""


@dataclass(frozen=True)
class Norms:
    """One line: the norms by tau, and the band between the quartiles of several trials behind it."""

    label: str
    column: str
    values: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None


def draw_gradients(lines: Sequence[Norms], folder: Path, name: str, *, title: str) -> list[Path]:
    """Draw norms against tau on a logarithmic scale and return the files: SVG, PNG and CSV."""
    largest = max((value for line in lines for value in line.values if value < float("inf")), default=0.0)
    if not largest > 0:
        raise UsageError("there is no gradient to draw: all norms are zero, infinite or not a number.")
    figure = Figure(figsize=(8, 4.8), layout="constrained")
    axes = figure.subplots()
    # Many lines are one thing at many steps: from dark to light, in their order.
    many = matplotlib.colormaps["cividis"](np.linspace(0, 0.9, len(lines)))
    styles = STYLES if len(lines) <= len(STYLES) else [(colour, "-") for colour in many]
    for line, (colour, style) in zip(lines, styles, strict=False):
        if line.low is not None and line.high is not None:
            axes.fill_between(range(len(line.low)), line.low, line.high, color=colour, alpha=0.15, linewidth=0)
        far = reach(torch.tensor(line.values))
        label = f"{line.label}: 1% up to τ = {far}"
        axes.plot(line.values, color=colour, linestyle=style, linewidth=2.2, label=label)
        if 0 <= far < len(line.values) - 1:
            axes.plot(
                [far], [line.values[far]], marker="o", markersize=7, color=colour, markeredgecolor="white", zorder=4
            )
    axes.set_yscale("log")
    axes.set_ylim(largest * 10**-DECADES, largest * 3)
    axes.set_xlim(0, max(len(line.values) for line in lines) - 1)
    axes.set(xlabel="τ, steps before the loss", ylabel="norm of the gradient by the hidden state", title=title)
    axes.grid(axis="y", color="0.9", linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    length = max(len(line.values) for line in lines)
    rows = [
        {"tau": tau} | {column: values[tau] if tau < len(values) else "" for column, values in _columns(lines)}
        for tau in range(length)
    ]
    return save_figure(figure, folder, name, rows)


def _columns(lines: Sequence[Norms]) -> list[tuple[str, Sequence[float]]]:
    """Return the columns of the CSV file: each line, and its band if it has one."""
    found = []
    for line in lines:
        found.append((line.column, line.values))
        if line.low is not None and line.high is not None:
            found += [(f"{line.column}_low_quartile", line.low), (f"{line.column}_high_quartile", line.high)]
    return found


def draw_weight_gradients(
    models: Mapping[str, Mapping[str, Sequence[float]]], folder: Path, name: str, *, title: str
) -> list[Path]:
    """Draw the components of weight gradients by tau and return the files: SVG, PNG and CSV.

    Args:
        models: by the label of a model, the norms by tau of each `parameter gate`, as `WeightGradients.norms` names them.
        folder: where the files go.
        name: their name.
        title: the title of the picture.

    Each parameter is a row of the picture, each model a column, and each gate a line.
    """
    parameters = list(dict.fromkeys(line.split()[0] for norms in models.values() for line in norms))
    size = 4.6 * len(models), 2.4 * len(parameters)
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(len(parameters), len(models), sharex=True, sharey=True, squeeze=False)
    for column, (label, norms) in enumerate(models.items()):
        for axes, parameter in zip(grid[:, column], parameters, strict=True):
            own = {
                line.removeprefix(parameter).strip(): values
                for line, values in norms.items()
                if line.split()[0] == parameter
            }
            for (gate, values), (colour, style) in zip(own.items(), STYLES, strict=False):
                axes.plot(values, color=colour, linestyle=style, linewidth=1.8, label=gate or None)
            axes.set_title(f"{parameter}, {label}", fontsize="medium")
            axes.grid(axis="y", color="0.9", linewidth=0.8)
            axes.spines[["top", "right"]].set_visible(False)
            if len(own) > 1:
                axes.legend(frameon=False, ncols=len(own))
        grid[-1, column].set_xlabel("τ, steps before the loss")
    largest = max((value for norms in models.values() for values in norms.values() for value in values), default=0.0)
    if not 0 < largest < float("inf"):
        raise UsageError("there is no gradient to draw: all components are zero, or some are infinite or not a number.")
    grid[0, 0].set_yscale("log")
    grid[0, 0].set_ylim(largest * 10**-DECADES, largest * 3)
    figure.suptitle(title)
    figure.supylabel("norm of the gradient's component")
    columns = {f"{line}, {label}": values for label, norms in models.items() for line, values in norms.items()}
    length = max(map(len, columns.values()))
    rows = [
        {"tau": tau} | {column: values[tau] if tau < len(values) else "" for column, values in columns.items()}
        for tau in range(length)
    ]
    return save_figure(figure, folder, name, rows)


def draw_figure2(curves: Sequence[Curve], folder: Path, steps: int) -> list[Path]:
    """Draw figure 2 and return its files: the picture, its data, and the reach by step and share."""
    lines = []
    for curve in curves:
        low, high = curve.quartiles.tolist()
        lines.append(Norms(curve.row.label, f"{curve.row.layer}_{curve.row.hidden}", curve.median.tolist(), low, high))
    title = f"Permuted MNIST after {steps} steps: median and quartiles of {len(curves[0].norms)} trials"
    pictures = draw_gradients(lines, folder, "figure2", title=title)
    table = folder / "reach.csv"
    save_rows(table, reach_rows(curves))
    return [*pictures, table]
