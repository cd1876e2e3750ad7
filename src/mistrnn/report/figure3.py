"""Figure 3 as a picture: for each delay a panel with the validation curves of every layer's best trials."""

from collections.abc import Sequence
from math import ceil
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, PercentFormatter

from mistrnn.paper.figure3 import TOP, BestCurves, most_shown, style_of, trivial_error
from mistrnn.report._files import STYLES, save_figure
from mistrnn.report._thinning import thinned
from mistrnn.tasks import TASKS

MOST_POINTS = 500
"""Of a curve."""


def draw_figure3(rows: Sequence[BestCurves], folder: Path) -> list[Path]:
    """Draw the curves of some rows, a panel for each delay, and return the files: SVG, PNG and CSV."""
    delays = sorted({row.delay for row in rows})
    columns = min(2, len(delays))
    down = ceil(len(delays) / columns)
    figure = Figure(figsize=(5.6 * columns, 4 * down), layout="constrained")
    panels = list(figure.subplots(down, columns, squeeze=False).flat)
    for panel, delay in zip(panels, delays, strict=False):
        _draw(panel, delay, [row for row in rows if row.delay == delay])
    for panel in panels[len(delays) :]:
        panel.axis("off")
    figure.suptitle(_what_is_shown(rows), fontsize=9)
    points = [
        {
            "delay": row.delay,
            "layer": row.study.layer,
            "hidden": row.study.hidden,
            "seed": curve.seed,
            "trial": curve.trial,
            "step": step,
            "val_error": error,
        }
        for row in rows
        for curve in row.curves
        for step, error in _thinned(curve.points)
    ]
    return save_figure(figure, folder, "figure3", points)


def _what_is_shown(rows: Sequence[BestCurves]) -> str:
    """Return a caption: the trials drawn, and the part of the data that the picture cuts."""
    steps, whole = max(row.study.total_steps for row in rows), TASKS["copy"].default_steps
    cut = any(error > most_shown() for row in rows for curve in row.curves for _, error in curve.points)
    return (
        f"The best trials by validation error, up to {TOP} of each row and seed"
        + (f"; {steps:,} of the paper's {whole:,} steps" if steps < whole else "")
        + (f"; errors above {most_shown():.0%} are cut" if cut else "")
    )


def _draw(axes: Axes, delay: int, rows: Sequence[BestCurves]) -> None:
    trivial = trivial_error()
    axes.axhline(trivial, color="0.5", linewidth=1)
    axes.annotate(
        "always blank", (1.0, trivial), xycoords=("axes fraction", "data"), ha="right", va="bottom",
        fontsize=8, color="0.35", xytext=(-2, 2), textcoords="offset points",
    )  # fmt: skip
    for row in rows:
        colour, style = STYLES[style_of(row.study)]
        kept = f", {row.at_the_end.count} at the end" if row.once.count else ""
        label: str | None = f"{row.label}: {row.once.count} of {row.once.trials} solved{kept}"
        for curve in row.curves:
            steps, errors = zip(*_thinned(curve.points), strict=True)
            axes.plot(steps, errors, color=colour, linestyle=style, linewidth=1.2, alpha=0.8, label=label)
            label = None
    axes.set(xlabel="optimisation steps", ylabel="validation error", title=f"Copy delay {delay}")
    axes.set_ylim(-0.002, most_shown())
    axes.set_xlim(0, max(row.study.total_steps for row in rows))
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2)


def _thinned(points: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """Return so many points of a curve as are drawn."""
    return [points[k] for k in thinned([error for _, error in points], MOST_POINTS)]
