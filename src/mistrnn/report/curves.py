"""Learning curves as a picture, readable in print and by colour-blind people."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from mistrnn.report._files import STYLES, save_figure


@dataclass(frozen=True)
class Curves:
    """The validation errors of one study's trials over its steps."""

    label: str
    trials: Sequence[tuple[Sequence[int], Sequence[float]]]
    """(steps, errors) of each trial."""
    best: int | None
    """Which of the trials is the best by validation."""


def draw_curves(studies: Sequence[Curves], folder: Path, name: str, *, title: str, trivial_error: float) -> list[Path]:
    """Draw every trial as a thin line and each study's best as a thick one, and return the files: svg, png, csv."""
    figure = Figure(figsize=(7.5, 4.5), layout="constrained")
    axes = figure.subplots()
    axes.axhline(trivial_error, color="0.5", linewidth=1)
    axes.annotate(
        "trivial predictor", (1.0, trivial_error), xycoords=("axes fraction", "data"), ha="right", va="bottom",
        fontsize=9, color="0.35", xytext=(-4, 2), textcoords="offset points",
    )  # fmt: skip
    for study, (colour, style) in zip(studies, STYLES, strict=False):
        for k, (steps, errors) in enumerate(study.trials):
            if k != study.best:
                axes.plot(steps, errors, color=colour, linestyle=style, linewidth=0.8, alpha=0.35)
        if study.best is not None:
            steps, errors = study.trials[study.best]
            axes.plot(steps, errors, color=colour, linestyle=style, linewidth=2.4, label=study.label)
    axes.set(xlabel="optimisation steps", ylabel="validation error", title=title)
    axes.set_ylim(0, 1.5 * trivial_error)
    axes.set_xlim(left=0)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, title="best of the trials (thick)", alignment="left")
    points = (
        {"layer": study.label, "trial": k, "step": step, "validation error": error}
        for study in studies
        for k, (steps, errors) in enumerate(study.trials)
        for step, error in zip(steps, errors, strict=True)
    )
    return save_figure(figure, folder, name, list(points))
