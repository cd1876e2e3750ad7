"""Predictions of a trained model and true labels: a confusion matrix, and one recording over time."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from mistrnn.report._files import save_figure
from mistrnn.tasks import IGNORED, Task
from mistrnn.training import Model

MOST_NUMBERED = 16
"""Classes up to which the counts stand in the cells of a confusion matrix."""


@torch.no_grad()
def predictions(model: Model, task: Task) -> tuple[Tensor, Tensor, Tensor]:
    """Return the confusion matrix [true, predicted] of the test set, and true and predicted labels [T] of its longest one."""
    size = task.output_size
    counts = torch.zeros(size, size, dtype=torch.int64)
    dtype = next(model.parameters()).dtype
    longest: tuple[Tensor, Tensor] | None = None
    for index in torch.split(task.order("test"), 32):
        inputs, targets = task.batch("test", index, dtype)
        found = model(inputs)[0].argmax(-1)
        there = targets != IGNORED
        pairs = targets[there] * size + found[there]
        counts += torch.bincount(pairs, minlength=size * size).view(size, size)
        if longest is None:
            longest = targets[:, 0], found[:, 0]
    assert longest is not None
    return counts, *longest


def draw_confusion(counts: Tensor, classes: Sequence[str], folder: Path, *, title: str) -> list[Path]:
    """Draw a confusion matrix, normalised by true class, and return the files: SVG, PNG and CSV (the counts)."""
    shares = counts.double() / counts.sum(1, keepdim=True).clamp_min(1)
    side = 3.5 + 0.2 * len(classes)
    figure = Figure(figsize=(side + 1, side), layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(shares.numpy(), cmap="cividis", vmin=0, vmax=1)
    figure.colorbar(image, ax=axes, label="share of the true class", shrink=0.8)
    for true, found in torch.nonzero(counts if len(classes) <= MOST_NUMBERED else torch.zeros(0)).tolist():
        colour = "black" if shares[true, found] > 0.5 else "white"
        count = f"{int(counts[true, found]):,}"
        axes.text(found, true, count, ha="center", va="center", color=colour, fontsize=7 if len(count) < 5 else 6)
    # Class names are the caller's: a $ in them is no formula, and one may be "true".
    axes.set_xticks(range(len(classes)), classes, rotation=90, fontsize=8, parse_math=False)
    axes.set_yticks(range(len(classes)), classes, fontsize=8, parse_math=False)
    axes.set(xlabel="predicted", ylabel="true", title=title)
    head = "true" if "true" not in classes else "true class"
    rows = [{head: name} | dict(zip(classes, counts[k].tolist(), strict=True)) for k, name in enumerate(classes)]
    return save_figure(figure, folder, "confusion", rows)


def draw_over_time(truth: Tensor, found: Tensor, classes: Sequence[str], folder: Path, *, title: str) -> list[Path]:
    """Draw true and predicted classes of one recording over time and return the files: SVG, PNG and CSV."""
    there = (truth != IGNORED).numpy()
    steps = np.arange(len(truth))[there]
    figure = Figure(figsize=(10, 1.5 + 0.16 * len(classes)), layout="constrained")
    axes = figure.subplots()
    axes.scatter(steps, truth.numpy()[there], s=26, marker="s", color="#0072B2", label="true", linewidth=0)
    axes.scatter(steps, found.numpy()[there], s=7, marker="o", color="#D55E00", label="predicted", linewidth=0)
    axes.set_yticks(range(len(classes)), classes, fontsize=8)
    axes.set(xlabel="step", title=title)
    axes.grid(axis="y", color="0.92", linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside right upper", frameon=False)
    rows = [
        {"step": int(step), "true": classes[int(truth[step])], "predicted": classes[int(found[step])]} for step in steps
    ]
    return save_figure(figure, folder, "over-time", rows)
