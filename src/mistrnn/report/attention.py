"""The mixture of a MIST layer over its delays as a picture: over time, and over examples."""

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from torch import Tensor

from mistrnn.report._files import STYLES, save_figure


def draw_attention(mixture: Tensor, delays: tuple[int, ...], folder: Path, *, title: str) -> list[Path]:
    """Draw a mixture [T, B, D] and return the files: SVG, PNG and CSV (means and deviations over examples, by step)."""
    over_examples = mixture.double().mean(1).cpu()  # [T, D]
    deviation = mixture.double().std(1, correction=0).cpu()
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=[3, 1], sharey=True)
    image = left.imshow(
        over_examples.T.numpy(), aspect="auto", origin="lower", cmap="cividis", vmin=0, interpolation="nearest"
    )
    figure.colorbar(image, ax=left, label="mean weight over examples", location="left")
    left.set(xlabel="time step", ylabel="delay", title=title)
    left.set_yticks(range(len(delays)), [str(delay) for delay in delays])
    of_examples = mixture.double().mean(0).cpu().numpy()  # [B, D] each example's mean over time
    colour = STYLES[1][0]
    spread = np.random.default_rng(0).uniform(-0.25, 0.25, of_examples.shape)
    right.scatter(of_examples, np.arange(len(delays)) + spread, s=5, color="0.6", linewidth=0)
    right.scatter(of_examples.mean(0), range(len(delays)), s=60, color=colour, marker="D", edgecolor="white", zorder=3)
    right.set(xlabel="mean weight over time\n(diamond: of all)", title="each example", xlim=(0, None))
    right.spines[["top", "right"]].set_visible(False)
    rows = [
        {"step": step}
        | {f"delay_{delay}_mean": float(over_examples[step, k]) for k, delay in enumerate(delays)}
        | {f"delay_{delay}_std": float(deviation[step, k]) for k, delay in enumerate(delays)}
        for step in range(len(over_examples))
    ]
    return save_figure(figure, folder, "attention", rows)
