"""The report: one self-contained HTML file about any set of studies, readable offline.

Tables and text are rendered here; `template/page.js` draws the charts from embedded data.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mistrnn import __version__
from mistrnn.errors import UsageError
from mistrnn.files import write_whole
from mistrnn.layers import LAYERS
from mistrnn.paper import figure3, table1, table3, table4
from mistrnn.paper.comparison import Comparison, Row, StudyResults
from mistrnn.report import charts
from mistrnn.report._files import refused
from mistrnn.report._html import part, render
from mistrnn.report.collected import Found, collect
from mistrnn.report.texts import NOTHING, error_text, estimate_text, percent, share_text
from mistrnn.tasks import TASKS
from mistrnn.training import plus_minus

COLOURS = 8
"""Colours of a chart's series, before they repeat with other dashes."""


@dataclass(frozen=True)
class Built:
    """The written page, and messages about studies that it does not show."""

    path: Path
    studies: int
    problems: list[str]
    notes: list[str]


@dataclass(frozen=True)
class Cell:
    """A cell of a table: its text and its sort key."""

    text: str
    value: float | str | None = None
    link: str | None = None
    parts: tuple[tuple[str, str], ...] = ()
    """Texts with a link each, in place of the text."""


@dataclass(frozen=True)
class Table:
    """A table whose columns can be sorted."""

    caption: str
    columns: list[str]
    rows: list[list[Cell]]


def build_page(folders: Sequence[Path | str], out: Path, *, title: str = "Recurrent layers compared") -> Built:
    """Write the report about all studies in these folders or at these addresses, the whole file or nothing.

    It takes the place of an earlier page and of nothing else.
    """
    if out.exists() and not _is_page(out):
        raise refused(out)
    collected = collect(folders)
    found, problems = collected.studies, collected.problems
    if not found:
        raise UsageError("expected at least one study to report on:\n  " + "\n  ".join(problems))
    names = {id(one): f"study-{number}" for number, one in enumerate(found)}
    context = {
        "title": title,
        "version": __version__,
        "date": time.strftime("%Y-%m-%d %H:%M"),
        "problems": problems,
        "notes": collected.notes,
        "counts": f"{len(found)} {'study' if len(found) == 1 else 'studies'}, {sum(len(one.trials) for one in found)} trials",
        "paper": [*_paper_tables(found, names), *_some(_figure3(found, names))],
        "tasks": list(_tasks(found, names)),
        "studies": [_study(one, names[id(one)]) for one in found],
        "paths": charts.shortest_paths(found, max((_steps(one) for one in found), default=0)),
        "css": part("page.css"),
        "script": part("page.js"),
    }
    content = render("page.html", context)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_whole(out, content)
    except OSError as error:
        raise UsageError(f"cannot write {out}: {error.strerror}.") from error
    return Built(out, len(found), problems, collected.notes)


def _is_page(path: Path) -> bool:
    """Whether a file is a page that was written here."""
    try:
        text = path.read_bytes()
    except OSError:
        return False
    return b"<!doctype html>" in text[:1000] and b" with mistrnn " in text


def _steps(found: Found) -> int:
    """Return how long the study's sequences are, as far as its curves or settings tell."""
    if found.gradients:
        return int(found.gradients["norms"].size(1))
    settings = found.study.task_settings
    if found.study.task == "copy":
        return int(1.2 * settings.get("delay", 100))
    known = {"addition": 200, "smnist": 784, "pmnist": 784}
    return int(settings.get("length", settings.get("last_pixels", known.get(found.study.task, 500))))


def label(found: Found) -> str:
    """Return a study's layer, size and options."""
    study = found.study
    options = ", ".join(f"{name} {value}" for name, value in study.layer_options.items())
    return f"{LAYERS[study.layer].__name__}, {study.hidden} units" + (f", {options}" if options else "")


def _seeds(row: Row, found: Iterable[Found]) -> list[tuple[Found, StudyResults]]:
    return [(one, one.results) for one in found if row.owns(one.study, one.row)]


def _counted(
    own: Iterable[tuple[Found, StudyResults]], seeds: Sequence[StudyResults]
) -> list[tuple[Found, StudyResults]]:
    """Return the studies that a row's numbers come from: one of each seed."""
    return [(one, results) for one, results in own if any(results is seed for seed in seeds)]


def _paper_tables(found: Sequence[Found], names: dict[int, str]) -> Iterable[dict[str, Any]]:
    """Give each table of the paper that has a study, with published values."""
    for title, rows, comparison in (
        (table1.TITLE, (*table1.ROWS, *table1.CONTROL_ROWS), table1.comparison),
        (table3.TITLE, table3.ROWS, table3.comparison),
        (table4.TITLE, table4.ROWS, table4.comparison),
    ):
        yield from _some(_paper_table(title, rows, comparison, found, names))


def _paper_table(
    title: str,
    paper_rows: Sequence[Row],
    comparison: Callable[[Row, Sequence[StudyResults]], Comparison],
    found: Sequence[Found],
    names: dict[int, str],
) -> dict[str, Any] | None:
    rows, shown = [], []
    for row in paper_rows:
        own = _seeds(row, found)
        if not own:
            continue
        result = comparison(row, [seed for _, seed in own])
        own = _counted(own, result.seeds)
        anchors = {seed.study.seed: f"#{names[id(one)]}" for one, seed in own}
        rows.append(_comparison_cells(result, anchors))
        shown += [(f"{row.label}, seed {one.study.seed}", one) for one, _ in own]
    if not rows:
        return None
    columns = ["layer", "error %, ours", "error %, published", "difference", "verdict", "log10 learning rate, ours"]
    columns += ["log10 learning rate, published", "seeds: top 10% of each", "diverged"]
    caption = (
        "Mean test error of the top 10% of 50 trials by validation error, in percent. Ours: the estimate from the trials of "
        "all seeds, with a 95% interval (bootstrap over trials). Published, and each seed: mean ± deviation over the top 10%."
    )
    return {
        "title": title,
        "table": Table(caption, columns, rows),
        "charts": _some(charts.overview("Top 10% of trials, mean validation error", shown)),
    }


def _comparison_cells(result: Comparison, anchors: dict[int, str]) -> list[Cell]:
    row, published = result.row, result.row.published
    rate, their_rate = result.log10_learning_rate, published.log10_learning_rate
    each = tuple(
        (
            f"seed {results.study.seed}: {percent(*results.summary.test_error) if results.summary.top else NOTHING}",
            anchors[results.study.seed],
        )
        for results in result.seeds
    )
    diverged = sum(seed.summary.diverged for seed in result.seeds)
    return [
        Cell(row.label, row.label, each[0][1]),
        Cell(estimate_text(result.ours), result.ours.value if result.ours else None),
        Cell(percent(published.error, published.deviation), published.error),
        Cell(_signed(result.difference), result.difference),
        Cell(result.verdict, result.verdict),
        Cell(plus_minus(*rate, 2) if rate else NOTHING, rate[0] if rate else None),
        Cell(plus_minus(*their_rate, 2) if their_rate else NOTHING, their_rate[0] if their_rate else None),
        Cell("", None, parts=each),
        Cell(f"{diverged} of {sum(len(seed.trials) for seed in result.seeds)}", diverged),
    ]


def _signed(difference: float | None) -> str:
    if difference is None:
        return NOTHING
    return f"{round(100 * difference, 2) + 0.0:+.2f}"  # never -0.00


def _figure3(found: Sequence[Found], names: dict[int, str]) -> dict[str, Any] | None:
    """Return figure 3: who solves the copy problem, and the curves of the top 5, if any study belongs to it."""
    rows, pictures = [], []
    for delay in figure3.DELAYS:
        series = []
        for row in figure3.rows([delay]) + figure3.rows([delay], control=True):
            own = _seeds(row, found)
            if not own:
                continue
            result = figure3.outcome(row, [seed for _, seed in own])
            own = _counted(own, result.seeds)
            name = row.label.rsplit(",", 1)[0]
            rows.append(
                [
                    Cell(f"{name}, delay {delay}", row.label, f"#{names[id(own[0][0])]}"),
                    Cell(str(delay), delay),
                    Cell(percent(result.best_error), result.best_error),
                    Cell(share_text(result.once), result.once.count),
                    Cell(share_text(result.at_the_end), result.at_the_end.count),
                    Cell(result.verdict, result.verdict),
                ]
            )
            for k, (one, results) in enumerate(own):
                lines = charts.trial_lines(one, one.summary.top[: figure3.TOP])
                if lines:
                    label = name if len(own) == 1 else f"{name}, seed {results.study.seed}"
                    # Further seeds have the same colour, and other dashes.
                    style = figure3.style_of(one.study) + COLOURS * k
                    series.append({"name": label, "lines": lines, "style": style})
        if series:
            pictures.append(
                charts.chart(
                    f"Delay {delay}: the top 10%",
                    "optimisation steps",
                    "validation error",
                    series,
                    percent=True,
                    yTop=figure3.most_shown(),
                )
            )
    if not rows:
        return None
    columns = [
        "layer",
        "delay",
        "best validation error %",
        "solved once",
        "solved at the end",
        "compared with the paper",
    ]
    solved, trivial = 100 * figure3.SOLVED, 100 * figure3.trivial_error()
    caption = (
        f"Solved: an error below {solved:.1f}%, once by the parameters of the best validation on validation and test set, at "
        f"the end at the last validation, too; 95% intervals (Wilson) of the share. Always answering blank has {trivial:.2f}%."
    )
    return {"title": figure3.TITLE, "table": Table(caption, columns, rows), "charts": pictures}


def _tasks(found: Sequence[Found], names: dict[int, str]) -> Iterable[dict[str, Any]]:
    """Give the studies by task, each task with a table and the best curves in one chart."""
    groups: dict[str, list[Found]] = {}
    for one in sorted(found, key=_task_order):
        settings = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in one.study.task_settings.items())
        groups.setdefault(one.study.task + (f", {settings}" if settings else ""), []).append(one)
    for name, own in groups.items():
        error, is_share = charts.error_axis(own[0])
        unit = f"{error}{' %' if is_share else ''}"
        columns = [
            "study",
            "layer",
            "parameters",
            f"test {unit}, top 10%",
            f"best validation {unit}",
            "log10 learning rate",
        ]
        columns += ["trials", "diverged", "steps", "seed", "seconds", "device"]
        rows = [_study_cells(one, names[id(one)]) for one in own]
        shown = [(f"{label(one)} ({one.name})", one) for one in own]
        yield {
            "title": f"Task {name}",
            "summary": TASKS[own[0].study.task].summary,
            "table": Table("Every study of this task; the name leads to its trials and settings.", columns, rows),
            "charts": _some(charts.overview("Top 10% of trials, mean validation error", shown)),
        }


def _task_order(found: Found) -> tuple[str, list[tuple[str, float, str]]]:
    """Return where a study's task stands among others: settings by their size, if they are numbers."""
    settings = sorted(found.study.task_settings.items())
    return found.study.task, [
        (name, value if isinstance(value, int | float) else 0.0, str(value)) for name, value in settings
    ]


def _study_cells(found: Found, anchor: str) -> list[Cell]:
    summary, trials = found.summary, found.trials
    error, rate = summary.test_error, summary.log10_learning_rate
    best = min((t["val_error"] for t in trials if t["val_error"] is not None), default=None)
    parameters = next((t["parameters"] for t in trials if t.get("parameters")), None)
    seconds = sum(t["seconds"] / t["group"] for t in trials if t.get("seconds"))  # a trial's is that of its whole group
    devices = sorted({str(t.get("device")) for t in trials})
    return [
        Cell(found.name, found.name, f"#{anchor}"),
        Cell(label(found), label(found)),
        Cell(f"{parameters:,}" if parameters else NOTHING, parameters),
        Cell(error_text(found, *error) if summary.top else NOTHING, error[0] if summary.top else None),
        Cell(error_text(found, best), best),
        Cell(plus_minus(*rate, 2) if summary.top else NOTHING, rate[0] if summary.top else None),
        Cell(f"{found.results.finished} of {found.study.trials}", found.results.finished),
        Cell(str(summary.diverged), summary.diverged),
        Cell(f"{found.study.total_steps:,}", found.study.total_steps),
        Cell(str(found.study.seed), found.study.seed),
        Cell(f"{seconds:,.0f}", seconds),
        Cell(", ".join(devices) or NOTHING, ", ".join(devices)),
    ]


def _study(found: Found, anchor: str) -> dict[str, Any]:
    """Return the page's data about one study."""
    top = set(found.summary.top)
    columns = ["trial", "learning rate", "validation error", "test error", "best step", "status", "among the top 10%"]
    rows = [
        [
            Cell(str(t["trial"]), t["trial"]),
            Cell(f"{t['learning_rate']:.5f}", t["learning_rate"]),
            Cell(error_text(found, t["val_error"]), t["val_error"]),
            Cell(error_text(found, t["test_error"]), t["test_error"]),
            Cell(str(t["best_step"] or NOTHING), t["best_step"]),
            Cell(_status(t), t["status"]),
            Cell("yes" if t["trial"] in top else "no", t["trial"] in top),
        ]
        for t in found.trials
    ]
    settings = {name: value for name, value in found.study.as_dict().items() if value not in (None, {}, [])}
    missing = found.study.trials - found.results.finished
    return {
        "anchor": anchor,
        "name": found.name,
        "label": label(found),
        "task": found.study.task,
        "note": f"{missing} of {found.study.trials} trials have not finished." if missing else "",
        "settings": settings,
        "about": {**found.about, **({"data": found.data} if found.data else {})},
        "table": Table("Every trial.", columns, rows),
        "charts": _some(
            *(draw(found) for draw in (charts.learning_curves, charts.error_by_learning_rate, charts.gradient_norms))
        ),
    }


def _status(trial: dict[str, Any]) -> str:
    if trial["status"] in ("diverged", "stopped"):
        return f"{trial['status']} at step {trial['steps']}"
    return f"crashed: {trial.get('error', '')}" if trial["status"] == "crashed" else str(trial["status"])


def _some(*made: dict[str, Any] | None) -> list[dict[str, Any]]:
    return [one for one in made if one is not None]
