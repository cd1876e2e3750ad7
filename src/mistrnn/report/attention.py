"""The mixture of a MIST layer over its delays as a picture: over time, and over examples."""

from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from mistrnn.report._files import STYLES, save_figure


def draw_attention(
    mixture: Tensor, delays: tuple[int, ...], folder: Path, *, title: str, lengths: Tensor | None = None
) -> list[Path]:
    """Draw a mixture [T, B, D] and return the files: SVG, PNG and CSV (means and deviations over examples, by step).

    lengths: [B] how many steps of each sequence are real, where they differ. Every mean is over these alone, and the picture
    ends with the longest sequence.
    """
    steps, batch, _ = mixture.shape
    lengths = torch.full((batch,), steps) if lengths is None else lengths.cpu()
    if lengths.shape != (batch,) or int(lengths.min()) < 1 or int(lengths.max()) > steps:
        raise ValueError(
            f"draw_attention: expected a length from 1 to {steps} for each of {batch} sequences, got {lengths.tolist()}."
        )
    there = (torch.arange(int(lengths.max())).unsqueeze(1) < lengths).unsqueeze(-1)  # [T, B, 1]
    mixture = torch.where(there, mixture[: len(there)].double().cpu(), 0.0)
    over_examples = mixture.sum(1) / there.sum(1)  # [T, D]
    apart = torch.where(there, mixture - over_examples.unsqueeze(1), 0.0)
    deviation = (apart.square().sum(1) / there.sum(1)).sqrt()
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=[3, 1], sharey=True)
    image = left.imshow(
        over_examples.T.numpy(), aspect="auto", origin="lower", cmap="cividis", vmin=0, interpolation="nearest"
    )
    figure.colorbar(image, ax=left, label="mean weight over examples", location="left")
    left.set(xlabel="time step", ylabel="delay", title=title)
    left.set_yticks(range(len(delays)), [str(delay) for delay in delays])
    of_examples = (mixture.sum(0) / lengths.unsqueeze(1)).numpy()  # [B, D] each example's mean over time
    of_all = (mixture.sum((0, 1)) / lengths.sum()).numpy()  # a long example counts for more
    colour = STYLES[1][0]
    spread = np.random.default_rng(0).uniform(-0.25, 0.25, of_examples.shape)
    right.scatter(of_examples, np.arange(len(delays)) + spread, s=5, color="0.6", linewidth=0)
    right.scatter(of_all, range(len(delays)), s=60, color=colour, marker="D", edgecolor="white", zorder=3)
    right.set(xlabel="mean weight over time\n(diamond: of all)", title="each example", xlim=(0, None))
    right.spines[["top", "right"]].set_visible(False)
    rows = [
        {"step": step}
        | {f"delay_{delay}_mean": float(over_examples[step, k]) for k, delay in enumerate(delays)}
        | {f"delay_{delay}_std": float(deviation[step, k]) for k, delay in enumerate(delays)}
        for step in range(len(over_examples))
    ]
    return save_figure(figure, folder, "attention", rows)
