"""How good a model is on labelled recordings: figures for each class, confusions, and where in time it errs.

T time, K classes. Nothing here knows about models: it takes what is true and what was predicted.
"""

import itertools
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from rich.text import Text

from mistrnn.errors import UsageError
from mistrnn.files import written_together
from mistrnn.report._files import save_figure, save_table
from mistrnn.report.labels import draw_confusion

FORMAT, VERSION = "mistrnn-report", 1
TENTHS = tuple(round(0.1 * k, 1) for k in range(1, 11))
MOST_CLASSES_PRINTED = 20
UNLABELLED = -1
PICTURES = ("confusion", "where-it-errs", "longest-recording", "numbers")
FILES = (
    "report.json",
    "predictions.csv",
    *(f"{name}.{kind}" for name in PICTURES for kind in ("svg", "png", "csv")),
)
"""All that a report may consist of."""

TRUE, FOUND = "#0072B2", "#D55E00"


@dataclass(frozen=True)
class Evaluation:
    """What came out, as numbers, and what was predicted, as a table."""

    figures: dict[str, Any]
    names: Sequence[str]
    """The columns of the table."""
    rows: Iterable[Sequence[object]]
    """Its rows; they may be gone through once."""
    longest: tuple[str, NDArray[np.int64], NDArray[np.int64]] | None = None
    """Row labels: the id of the longest recording, its true classes and the predicted ones [T]."""


def evaluate_recordings(
    ids: Sequence[str],
    truth: NDArray[np.int64],
    probabilities: Sequence[NDArray[np.float32]],
    classes: Sequence[str],
) -> Evaluation:
    """Judge one class for each recording.

    Args:
        ids: of the recordings.
        truth: [recordings] the true classes, as places in `classes`.
        probabilities: [T, K] for each recording, as if it had ended at each of its steps; [1, K] if that is not known.
        classes: their names.
    """
    found = np.array([one[-1].argmax() for one in probabilities])
    figures = _class_figures("recordings", truth, found, classes)
    right = int((truth == found).sum())
    figures["accuracy_95_percent_interval"] = _wilson(right, len(truth))
    if any(len(one) > 1 for one in probabilities):
        by_share = []
        for share in TENTHS:
            early = np.array([one[math.ceil(share * len(one)) - 1].argmax() for one in probabilities])
            by_share.append({"read": share, "accuracy": float((early == truth).mean())})
        figures["over_time"] = {"after_reading": by_share}
    rows = [
        [own, classes[true], classes[said], f"{one[-1].max():.6f}", "yes" if true == said else "no"]
        for own, true, said, one in zip(ids, truth, found, probabilities, strict=True)
    ]
    return Evaluation(figures, ("id", "true", "label", "probability", "right"), rows)


def evaluate_rows(
    ids: Sequence[str],
    rows: Sequence[NDArray[np.int64]],
    truth: Sequence[NDArray[np.int64]],
    probabilities: Sequence[NDArray[np.float32]],
    classes: Sequence[str],
) -> Evaluation:
    """Judge one class for each row.

    Args:
        ids: of the recordings.
        rows: [T] for each recording: the row of the file, from 0.
        truth: [T] for each recording: places in `classes`, -1 where a row has no label.
        probabilities: [T, K] for each recording.
        classes: their names.
    """
    found = [one.argmax(-1) for one in probabilities]
    labelled = [one != UNLABELLED for one in truth]
    all_true = np.concatenate([one[there] for one, there in zip(truth, labelled, strict=True)])
    all_found = np.concatenate([one[there] for one, there in zip(found, labelled, strict=True)])
    figures = _class_figures("rows", all_true, all_found, classes)
    figures["recordings"] = len(ids)
    wrong = [one != other for one, other in zip(truth, found, strict=True)]
    figures["over_time"] = {
        "by_position": _by_position(wrong, labelled),
        "near_changes": _near_changes(truth, wrong, labelled),
    }
    table = (
        [own, int(row) + 1, classes[true] if true != UNLABELLED else "", classes[said], f"{share[said]:.6f}"]
        for own, places, one, other, shares in zip(ids, rows, truth, found, probabilities, strict=True)
        for row, true, said, share in zip(places, one, other, shares, strict=True)
    )
    which = int(np.argmax([there.sum() for there in labelled]))
    longest = (ids[which], truth[which], found[which])
    return Evaluation(figures, ("id", "row", "true", "label", "probability"), table, longest)


def evaluate_numbers(
    ids: Sequence[str],
    truth: NDArray[np.float64],
    found: NDArray[np.float64],
    after_reading: Mapping[float, NDArray[np.float64]],
) -> Evaluation:
    """Judge one number for each recording; `after_reading` has what was predicted from the first share of each."""
    error = found - truth
    spread = float(np.square(truth - truth.mean()).sum())
    figures = {
        "kind": "numbers",
        "count": len(truth),
        "mean_absolute_error": float(np.abs(error).mean()),
        "root_mean_square_error": float(np.sqrt(np.square(error).mean())),
        "r2": 1 - float(np.square(error).sum()) / spread if spread > 0 else None,
        "always_the_mean": {"mean_absolute_error": float(np.abs(truth - truth.mean()).mean())},
        "over_time": {
            "after_reading": [
                {"read": share, "mean_absolute_error": float(np.abs(early - truth).mean())}
                for share, early in after_reading.items()
            ]
        },
    }
    rows = [[own, float(t), float(f)] for own, t, f in zip(ids, truth, found, strict=True)]
    return Evaluation(figures, ("id", "true", "predicted"), rows)


def _class_figures(
    kind: str, truth: NDArray[np.int64], found: NDArray[np.int64], classes: Sequence[str]
) -> dict[str, Any]:
    size = len(classes)
    counts = np.bincount(truth * size + found, minlength=size * size).reshape(size, size)  # [true, predicted]
    of_true, of_found, right = counts.sum(1), counts.sum(0), counts.diagonal()
    rows = []
    for k, name in enumerate(classes):
        others = counts[k].copy()
        others[k] = 0
        mistaken = {"class": classes[int(others.argmax())], "count": int(others.max())} if others.any() else None
        rows.append(
            {
                "class": name,
                "precision": float(right[k] / of_found[k]) if of_found[k] else None,
                "recall": float(right[k] / of_true[k]) if of_true[k] else None,
                "f1": float(2 * right[k] / (of_true[k] + of_found[k])) if of_true[k] + of_found[k] else None,
                "support": int(of_true[k]),
                "mistaken_for": mistaken,
            }
        )
    there = [row for row in rows if row["support"]]
    common = int(of_true.argmax())
    return {
        "kind": kind,
        "count": len(truth),
        "accuracy": float(right.sum() / len(truth)),
        "balanced_accuracy": float(np.mean([row["recall"] for row in there])),
        "macro_f1": float(np.mean([row["f1"] for row in there])),
        "always_the_most_common": {"class": classes[common], "accuracy": float(of_true[common] / len(truth))},
        "classes": rows,
        "confusion": {"classes": list(classes), "counts": counts.tolist()},
    }


def _wilson(right: int, count: int) -> list[float]:
    """Return the 95% interval of a share."""
    z, share = 1.96, right / count
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count)) / (1 + z * z / count)
    return [max(0.0, middle - half), min(1.0, middle + half)]


def _by_position(
    wrong: Sequence[NDArray[np.bool_]], labelled: Sequence[NDArray[np.bool_]]
) -> list[dict[str, float | int | None]]:
    """Return the error of each tenth of the recordings."""
    errors, counts = np.zeros(10, dtype=np.int64), np.zeros(10, dtype=np.int64)
    for mistakes, there in zip(wrong, labelled, strict=True):
        tenth = np.arange(len(there)) * 10 // len(there)
        counts += np.bincount(tenth[there], minlength=10)
        errors += np.bincount(tenth[there & mistakes], minlength=10)
    return [
        {"from": round(0.1 * k, 1), "to": TENTHS[k], "rows": int(counts[k]), "error": _share(errors[k], counts[k])}
        for k in range(10)
    ]


def _near_changes(
    truth: Sequence[NDArray[np.int64]], wrong: Sequence[NDArray[np.bool_]], labelled: Sequence[NDArray[np.bool_]]
) -> dict[str, Any] | None:
    """Return the error just before and just after the true class changes, and elsewhere; None if it never does.

    Just is a tenth of how long a class lasts, by the median. Rows without a label are passed over: where another class
    follows them, it changes there.
    """
    lengths: list[int] = []
    for one in truth:
        edges = np.flatnonzero(np.diff(one, prepend=one[0] - 1, append=one[-1] - 1))
        lengths += [int(n) for n, start in zip(np.diff(edges), edges, strict=False) if one[start] != UNLABELLED]
    near = max(1, round(float(np.median(lengths)) / 10))
    names = ("before", "after", "elsewhere")
    errors, counts = dict.fromkeys(names, 0), dict.fromkeys(names, 0)
    changes = 0
    for one, mistakes, there in zip(truth, wrong, labelled, strict=True):
        steps = np.arange(len(one))
        own = np.flatnonzero(there)
        at = own[1:][one[own[1:]] != one[own[:-1]]]  # the first step of the new class
        changes += len(at)
        bounds = np.concatenate([[-math.inf], at, [math.inf]])
        place = np.searchsorted(at, steps, side="right")
        since, until = steps - bounds[place], bounds[place + 1] - steps
        after = since < near
        before = (until <= near) & ~after
        for name, where in (("before", before), ("after", after), ("elsewhere", ~before & ~after)):
            counts[name] += int((where & there).sum())
            errors[name] += int((where & there & mistakes).sum())
    if not changes:
        return None
    found: dict[str, Any] = {"changes": changes, "within_rows": near}
    return found | {name: {"rows": counts[name], "error": _share(errors[name], counts[name])} for name in names}


def _share(part: int, whole: int) -> float | None:
    return float(part / whole) if whole else None


def print_evaluation(evaluation: Evaluation, console: Console) -> None:
    """Print a report for people: on a terminal, or in a pipe."""
    if not console.is_terminal:
        console = Console(file=console.file, width=160)  # no table is cut because a pipe has no width
    figures = evaluation.figures

    def line(text: str) -> None:
        console.print(text, highlight=False, markup=False, emoji=False, soft_wrap=True)

    if figures["kind"] == "numbers":
        _print_numbers(figures, console, line)
        return
    common = figures["always_the_most_common"]
    what = f"{figures['count']:,} recordings"
    interval = ""
    if figures["kind"] == "rows":
        what = f"{figures['count']:,} labelled rows of {figures['recordings']:,} recordings"
    else:
        low, high = figures["accuracy_95_percent_interval"]
        interval = f" (95% interval {low:.1%} to {high:.1%})"
    line(f"{what}: {figures['accuracy']:.1%} right{interval}.")
    line(
        f"Always answering {common['class']!r}: {common['accuracy']:.1%}. Mean recall of the classes: "
        f"{figures['balanced_accuracy']:.1%}, mean F1: {figures['macro_f1']:.3f}."
    )
    _print_classes(figures, console, line)
    over_time = figures.get("over_time", {})
    if "after_reading" in over_time:
        line("\nWhere in time: right if only the first part of each recording had been read")
        table = _table(*(f"{one['read']:.0%}" for one in over_time["after_reading"]))
        table.add_row(*(f"{one['accuracy']:.1%}" for one in over_time["after_reading"]))
        console.print(table)
    if "by_position" in over_time:
        line("\nWhere in time: error in each tenth of the recordings")
        table = _table(*(f"to {one['to']:.0%}" for one in over_time["by_position"]))
        table.add_row(*(_percent(one["error"]) for one in over_time["by_position"]))
        console.print(table)
        near = over_time["near_changes"]
        if near is None:
            line("The true class never changes within a recording.")
        else:
            rows = "1 row" if near["within_rows"] == 1 else f"{near['within_rows']} rows"
            line(
                f"\nError near the {near['changes']:,} changes of the true class: {_percent(near['before']['error'])} in the "
                f"{rows} before one, {_percent(near['after']['error'])} in the {rows} from one on, "
                f"{_percent(near['elsewhere']['error'])} elsewhere."
            )


def _print_classes(figures: Mapping[str, Any], console: Console, line: Any) -> None:
    line("")
    full = _table("", "class", "precision", "recall", "F1", figures["kind"], "most often taken for", left=(1, 6))
    short = _table("", "class", "precision", "recall", "F1", figures["kind"], left=(1,))
    for number, row in enumerate(figures["classes"], 1):
        mistaken = row["mistaken_for"]
        words = f"{mistaken['class']} ({mistaken['count']:,})" if mistaken else "-"
        f1 = "-" if row["f1"] is None else f"{row['f1']:.3f}"
        cells = [_percent(row["precision"]), _percent(row["recall"]), f1, f"{row['support']:,}"]
        short.add_row(str(number), _plain(row["class"]), *cells)
        full.add_row(str(number), _plain(row["class"]), *cells, _plain(words))
    console.print(full if _fits(full, console) else short)
    counts = figures["confusion"]["counts"]
    table = _table("", "class", *(str(number) for number in range(1, len(counts) + 1)), left=(1,))
    for number, (name, row) in enumerate(zip(figures["confusion"]["classes"], counts, strict=True), 1):
        table.add_row(str(number), _plain(name), *(f"{count:,}" if count else "." for count in row))
    if len(counts) > MOST_CLASSES_PRINTED or not _fits(table, console):
        line(f"\nThe confusion matrix of {len(counts)} classes is in the picture and in confusion.csv.")
        return
    line("\nConfusions: a line for each true class, a column for each predicted one")
    console.print(table)


def _print_numbers(figures: Mapping[str, Any], console: Console, line: Any) -> None:
    r2 = "not defined, because all are the same" if figures["r2"] is None else f"{figures['r2']:.3f}"
    line(
        f"{figures['count']:,} recordings: mean absolute error {figures['mean_absolute_error']:.4g} (always answering the "
        f"mean: {figures['always_the_mean']['mean_absolute_error']:.4g}), root mean square error "
        f"{figures['root_mean_square_error']:.4g}, R² {r2}."
    )
    line("\nWhere in time: mean absolute error if only the first part of each recording had been read")
    parts = figures["over_time"]["after_reading"]
    table = _table(*(f"{one['read']:.0%}" for one in parts))
    table.add_row(*(f"{one['mean_absolute_error']:.4g}" for one in parts))
    console.print(table)


def _table(*names: str, left: Sequence[int] = ()) -> Table:
    table = Table(box=None, pad_edge=False)
    for number, name in enumerate(names):
        table.add_column(name, justify="left" if number in left else "right", no_wrap=True)
    return table


def _fits(table: Table, console: Console) -> bool:
    return console.measure(table, options=console.options.update(width=10_000)).maximum <= console.width


def _plain(text: str) -> Text:
    return Text(text)  # no markup and no pictures of rich's


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"


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
    """Remove an earlier report, which may have had other pictures, where `force` allows it; what else is there stays."""
    check_report_folder(folder, force=force)
    try:
        for name in FILES if folder.is_dir() else ():
            (folder / name).unlink(missing_ok=True)
    except OSError as error:
        raise UsageError(f"cannot write to the folder {folder}: {error.strerror}.") from error


def save_evaluation(
    evaluation: Evaluation, folder: Path, *, title: str, about: Mapping[str, Any], force: bool = False
) -> list[Path]:
    """Write the report into a folder and return its files.

    Args:
        evaluation: what to write.
        folder: made if need be; what else is in it stays.
        title: stands above the pictures.
        about: goes into report.json, beside the figures.
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
        if evaluation.longest is not None:
            files += _draw_longest(*evaluation.longest, figures["confusion"]["classes"], place)
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
        axes[0].set(xlabel="share of each recording that was read", xlim=(0, 1.02))
        axes[0].xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        if key == "accuracy":
            baseline, words = figures["always_the_most_common"]["accuracy"], "always the most common class"
            axes[0].set(ylabel="recordings that are right", ylim=(0, 1.02))
        else:
            baseline, words = figures["always_the_mean"]["mean_absolute_error"], "always the mean"
            axes[0].set(ylabel="mean absolute error")
            axes[0].set_ylim(0, 1.1 * max(baseline, *(one[key] for one in parts)))
        axes[0].axhline(baseline, color="0.5", linewidth=1)
        axes[0].annotate(
            words, (1.0, baseline), xycoords=("axes fraction", "data"), xytext=(-4, 2), textcoords="offset points",
            ha="right", va="bottom", fontsize=9, color="0.35",
        )  # fmt: skip
        rows = list(parts)
    else:
        parts = over_time["by_position"]
        _bars(axes[0], [f"to {one['to']:.0%}" for one in parts], [one["error"] for one in parts])
        axes[0].set(xlabel="part of the recording", ylabel="rows that are wrong")
        axes[0].tick_params(axis="x", labelrotation=45)
        rows = [{"where": f"{one['from']:.1f} to {one['to']:.1f}", **_numbers_of(one)} for one in parts]
        if near:
            count = near["within_rows"]
            names = {"before": f"{count} rows\nbefore", "after": f"{count} rows\nfrom it on", "elsewhere": "elsewhere"}
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
    axes.bar_label(bars, [_percent(share) for share in shares], fontsize=8, padding=1)


def _numbers_of(part: Mapping[str, Any]) -> dict[str, object]:
    return {"rows": part["rows"], "error": part["error"]}


def _draw_longest(
    own: str, truth: NDArray[np.int64], found: NDArray[np.int64], classes: Sequence[str], folder: Path
) -> list[Path]:
    """Draw what is true and what was predicted over time, as lines from where a class begins to where it ends."""
    figure = Figure(figsize=(10, 1.6 + 0.24 * len(classes)), layout="constrained")
    axes = figure.subplots()
    rows: list[dict[str, object]] = []
    for what, values, colour, height in (("true", truth, TRUE, 0.14), ("predicted", found, FOUND, -0.14)):
        edges = np.flatnonzero(np.diff(values, prepend=values[0] - 1, append=values[-1] - 1))
        runs = [(a, b, values[a]) for a, b in itertools.pairwise(edges) if values[a] != UNLABELLED]
        starts, ends, heights = (np.array(column) for column in zip(*runs, strict=True))
        axes.hlines(heights - height, starts, ends, color=colour, linewidth=4, label=what)
        rows += [{"what": what, "from": int(a) + 1, "to": int(b), "class": classes[k]} for a, b, k in runs]
    axes.set_yticks(range(len(classes)), classes, fontsize=8, parse_math=False)
    axes.set_ylim(len(classes) - 0.5, -0.5)
    axes.set_xlim(0, len(truth))
    axes.set_xlabel("row of the recording, in the order of time")
    axes.set_title(f"The longest recording, {own}", parse_math=False, fontsize=11)
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
