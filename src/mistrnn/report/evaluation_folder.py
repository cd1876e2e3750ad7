"""The report about a model in a folder: a page, all figures as JSON, predictions as CSV, and pictures."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from mistrnn.errors import UsageError
from mistrnn.files import written_together
from mistrnn.report._files import save_figure, save_table
from mistrnn.report.evaluation import UNLABELLED, Evaluation, Timeline, stretches
from mistrnn.report.evaluation_text import percent
from mistrnn.report.labels import draw_confusion
from mistrnn.report.model_page import PAGE, write_model_page

FORMAT, VERSION = "mistrnn-report", 1
PICTURES = ("confusion", "where-it-errs", "longest-recording", "numbers")
FILES = (
    "report.json",
    "predictions.csv",
    PAGE,
    *(f"{name}.{kind}" for name in PICTURES for kind in ("svg", "png", "csv")),
)
"""The files of a report."""

TRUE, FOUND = "#0072B2", "#D55E00"


def check_report_folder(folder: Path, *, force: bool) -> None:
    """Refuse a folder in which a report would overwrite something, unless it is an earlier report and `force` is true."""
    taken = [name for name in FILES if (folder / name).exists()]
    if not taken:
        return
    if not force:
        raise UsageError(
            f"{folder}: there is a {taken[0]} already; choose another folder, or overwrite it with --force."
        )
    try:
        earlier = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        earlier = None
    if not isinstance(earlier, dict) or earlier.get("format") != FORMAT:
        raise UsageError(
            f"{folder}: expected an earlier report, because only one of those is overwritten, got other files, such as "
            f"{taken[0]}. Choose another folder."
        )


def clear_report_folder(folder: Path, *, force: bool) -> None:
    """Remove an earlier report with all its pictures if `force` allows it; other files stay."""
    check_report_folder(folder, force=force)
    try:
        for name in FILES if folder.is_dir() else ():
            (folder / name).unlink(missing_ok=True)
    except OSError as error:
        raise UsageError(f"cannot write to the folder {folder}: {error.strerror}.") from error


def save_evaluation(
    evaluation: Evaluation,
    folder: Path,
    *,
    title: str,
    about: Mapping[str, Any],
    history: Sequence[Mapping[str, Any]] = (),
    trials: Sequence[Mapping[str, Any]] = (),
    force: bool = False,
) -> list[Path]:
    """Write the report into a folder and return its files, the page first.

    Args:
        evaluation: the evaluation to write.
        folder: created if missing; other files in it stay.
        title: stands above the page and the pictures.
        about: the model and the data, for the page and for report.json.
        history: a dict for each epoch of the training: epoch, train_loss, validation_loss, best_epoch.
        trials: a dict for each trial of a search, as `write_model_page` takes them.
        force: write it in the place of an earlier report.
    """
    figures = evaluation.figures
    check_report_folder(folder, force=force)
    with written_together(folder) as place:
        content = {"format": FORMAT, "version": VERSION, **figures, "about": dict(about)}
        (place / "report.json").write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        files = [place / "report.json", place / "predictions.csv"]
        save_table(files[1], evaluation.names, evaluation.rows)
        if figures["kind"] == "numbers":
            files += _draw_numbers(evaluation, place, title)
        else:
            counts = torch.tensor(figures["confusion"]["counts"])
            files += draw_confusion(counts, figures["confusion"]["classes"], place, title=title)
        if "over_time" in figures:
            files += _draw_where_it_errs(figures, place, title)
        for longest in evaluation.timelines[:1]:
            files += _draw_longest(longest, figures["confusion"]["classes"], place)
        files.insert(0, write_model_page(place, evaluation, title=title, about=about, history=history, trials=trials))
        clear_report_folder(folder, force=force)  # the earlier one is kept until this one is complete
    return [folder / path.name for path in files]


def _draw_where_it_errs(figures: Mapping[str, Any], folder: Path, title: str) -> list[Path]:
    over_time = figures["over_time"]
    rows: list[dict[str, object]]
    near = over_time.get("near_changes")
    figure = Figure(figsize=(9 if near else 6, 3.6), layout="constrained")
    figure.suptitle(title, fontsize=11)
    axes = figure.subplots(1, 2, width_ratios=(2, 1), sharey=True) if near else [figure.subplots()]
    if "after_reading" in over_time:
        parts = over_time["after_reading"]
        key = "accuracy" if "accuracy" in parts[0] else "mean_absolute_error"
        axes[0].plot([one["read"] for one in parts], [one[key] for one in parts], color=TRUE, marker="o")
        axes[0].set(xlabel="share of each recording that is read", xlim=(0, 1.02))
        axes[0].xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        if key == "accuracy":
            baseline, words = figures["always_the_most_common"]["accuracy"], "always the most common class"
            axes[0].set(ylabel="accuracy", ylim=(0, 1.02))
        else:
            baseline, words = figures["always_the_mean"]["mean_absolute_error"], "always the mean"
            axes[0].set(ylabel="mean absolute error")
            axes[0].set_ylim(0, 1.1 * max(baseline, *(one[key] for one in parts)) or 1.0)  # all may be exact
        axes[0].axhline(baseline, color="0.5", linewidth=1)
        axes[0].annotate(
            words, (1.0, baseline), xycoords=("axes fraction", "data"), xytext=(-4, 2), textcoords="offset points",
            ha="right", va="bottom", fontsize=9, color="0.35",
        )  # fmt: skip
        rows = list(parts)
    else:
        parts = over_time["by_position"]
        _bars(axes[0], [f"to {one['to']:.0%}" for one in parts], [one["error"] for one in parts])
        axes[0].set(xlabel="part of the recording", ylabel="error rate")
        axes[0].tick_params(axis="x", labelrotation=45)
        rows = [{"where": f"{one['from']:.1f} to {one['to']:.1f}", **_numbers_of(one)} for one in parts]
        if near:
            count = near["within_rows"]
            names = {"before": f"{count} rows\nbefore", "after": f"{count} rows\nafter", "elsewhere": "elsewhere"}
            _bars(axes[1], list(names.values()), [near[name]["error"] for name in names])
            axes[1].set(xlabel="near a change of the true class")
            rows += [{"where": words.replace("\n", " "), **_numbers_of(near[name])} for name, words in names.items()]
    if "by_position" in over_time or "accuracy" in rows[0]:
        axes[0].yaxis.set_major_formatter(PercentFormatter(1.0, decimals=None))
    for one in axes:
        one.spines[["top", "right"]].set_visible(False)
    return save_figure(figure, folder, "where-it-errs", rows)


def _bars(axes: Axes, names: Sequence[str], shares: Sequence[float | None]) -> None:
    bars = axes.bar(names, [share or 0.0 for share in shares], color=FOUND, width=0.8)
    axes.bar_label(bars, [percent(share) for share in shares], fontsize=8, padding=1)


def _numbers_of(part: Mapping[str, Any]) -> dict[str, object]:
    return {"rows": part["rows"], "error": part["error"]}


def _draw_longest(longest: Timeline, classes: Sequence[str], folder: Path) -> list[Path]:
    """Draw the true and the predicted classes over time."""
    figure = Figure(figsize=(10, 1.6 + 0.24 * len(classes)), layout="constrained")
    axes = figure.subplots()
    rows: list[dict[str, object]] = []
    for what, values, colour, height in (
        ("true", longest.truth, TRUE, 0.14),
        ("predicted", longest.found, FOUND, -0.14),
    ):
        runs = [(a, b, values[a]) for a, b in stretches(values) if values[a] != UNLABELLED]
        starts, ends, heights = (np.array(column) for column in zip(*runs, strict=True))
        axes.hlines(heights - height, starts, ends, color=colour, linewidth=4, label=what)
        rows += [{"what": what, "from": a + 1, "to": b, "class": classes[k]} for a, b, k in runs]
    axes.set_yticks(range(len(classes)), classes, fontsize=8, parse_math=False)
    axes.set_ylim(len(classes) - 0.5, -0.5)
    axes.set_xlim(0, len(longest.truth))
    axes.set_xlabel("row of the recording, in the order of time")
    axes.set_title(f"The longest recording, {longest.id}", parse_math=False, fontsize=11)
    axes.grid(axis="y", color="0.92", linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside right upper", frameon=False)
    return save_figure(figure, folder, "longest-recording", rows)


def _draw_numbers(evaluation: Evaluation, folder: Path, title: str) -> list[Path]:
    rows = [dict(zip(evaluation.names, row, strict=True)) for row in evaluation.rows]
    truth, found = ([float(str(row[name])) for row in rows] for name in ("true", "predicted"))
    figure = Figure(figsize=(5, 5), layout="constrained")
    axes = figure.subplots()
    ends = [min(truth + found), max(truth + found)]
    axes.plot(ends, ends, color="0.6", linewidth=1)
    axes.scatter(truth, found, s=18, color=TRUE, alpha=0.7, linewidth=0)
    axes.set(xlabel="true", ylabel="predicted", title=title)
    axes.set_aspect("equal", adjustable="datalim")
    axes.spines[["top", "right"]].set_visible(False)
    return save_figure(figure, folder, "numbers", rows)
