"""The paper's tables and figures, and the report page."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Annotated

import typer
from rich.table import Table

from mistrnn.cli._app import app, console, reproduce_app
from mistrnn.cli._flag_groups import with_flags
from mistrnn.cli._flags import Device, Fresh, GroupSize, Only, Seed, Steps, list_of_numbers
from mistrnn.cli._page import write_page
from mistrnn.cli._progress import watched
from mistrnn.errors import UsageError
from mistrnn.paper import figure1, figure2, figure3, table1, table3, table4
from mistrnn.paper.comparison import Comparison, Row, StudyResults, chosen_rows, place_of, run_rows
from mistrnn.report import (
    draw_confusion,
    draw_figure1,
    draw_figure2,
    draw_figure3,
    draw_over_time,
    estimate_text,
    percent,
    predictions,
    share_text,
)
from mistrnn.tasks import RecordingTask, Task, make_task
from mistrnn.training import Model, Recorded, Study, plus_minus, study_task

Rows = Annotated[str | None, typer.Option("--rows", help="Only these rows, such as mist-139,lstm-100.")]
Trials = Annotated[int | None, typer.Option("--trials", help="Fewer trials than the paper's 50.")]
Seeds = Annotated[str, typer.Option("--seeds", help="Seeds, such as 0,1: several are pooled.")]
Prepared = Annotated[Path, typer.Option("--data", help="Folder that `mist data` has prepared.")]
StandIn = Annotated[
    bool, typer.Option("--stand-in", help="The data stands in for the paper's, which must be asked for.")
]
Mnist = Annotated[Path, typer.Option("--data", help="Folder with the files of MNIST.")]


@dataclass(frozen=True)
class RowFlags:
    """The studies of the rows: their length, their seeds, and where they run."""

    trials: Trials = None
    steps: Steps = None
    seeds: Seeds = "0"
    device: Device = "auto"
    group_size: GroupSize = None
    only: Only = None
    fresh: Fresh = False


@reproduce_app.command("table1")
@with_flags
def table1_command(
    asked: RowFlags,
    data: Mnist,
    out: Annotated[Path, typer.Option("--out", help="Where the studies and the page go.")] = Path("table1"),
    rows: Rows = None,
) -> None:
    """Run the rows of table 1 (permuted MNIST) under the paper's protocol, and print ours beside published."""
    chosen = chosen_rows((*table1.ROWS, *table1.CONTROL_ROWS), words_of_flag(rows) or [row.key for row in table1.ROWS])
    tasks: dict[str, Task] = {}

    def task_of(study: Study) -> Task:
        key = str(study.task_settings)  # the files are the same for every seed
        if key not in tasks:
            tasks[key] = study_task(study, data)
        return tasks[key]

    found = run_asked(chosen, out, task_of, asked)
    _print_comparisons(table1.TITLE, [(row, table1.comparison(row, own)) for row, own in found], published=True)
    say_what_is_shortened(chosen, asked)
    write_page([out], out / "report.html")
    leave_if_crashed(found)


@reproduce_app.command("table3")
@with_flags
def table3_command(
    asked: RowFlags,
    data: Prepared,
    stand_in: StandIn = False,
    out: Annotated[Path, typer.Option("--out", help="Where the studies and the page go.")] = Path("table3"),
    rows: Rows = None,
) -> None:
    """Run the rows of table 3 (TIMIT), or with --stand-in the same on NLTK's sample of TIMIT."""
    _recorded_table(table3, data, stand_in, out, rows, asked)


@reproduce_app.command("table4")
@with_flags
def table4_command(
    asked: RowFlags,
    data: Prepared,
    stand_in: StandIn = False,
    out: Annotated[Path, typer.Option("--out", help="Where the studies and the page go.")] = Path("table4"),
    rows: Rows = None,
) -> None:
    """Run the rows of table 4 (MobiAct), or with --stand-in layers of as many parameters on HAPT."""
    _recorded_table(table4, data, stand_in, out, rows, asked)


def _recorded_table(
    table: ModuleType,
    data: Path,
    stand_in: bool,
    out: Path,
    rows: str | None,
    asked: RowFlags,
) -> None:
    """Run a table on recordings, print it, and draw what its best model says."""
    chosen = chosen_rows(table.STAND_IN_ROWS if stand_in else table.ROWS, words_of_flag(rows) or None)
    task = study_task(chosen[0].study, data)
    assert isinstance(task, RecordingTask)
    wanted = table.STAND_IN if stand_in else table.DATA
    if task.data_name != wanted:
        hint = " (--stand-in)" if task.data_name == table.STAND_IN else ""
        raise UsageError(f"{data}: expected the prepared recordings of {wanted}, got {task.data_name}{hint}.")
    found = run_asked(chosen, out, lambda _: task, asked)
    title = f"{wanted}, standing in for {table.DATA}" if stand_in else table.TITLE
    _print_comparisons(title, [(row, table.comparison(row, own)) for row, own in found], published=not stand_in)
    say_what_is_shortened(chosen, asked)
    done = [
        (trial["val_error"], trial["trial"], row, results)
        for row, own in found
        for results in own
        for trial in results.trials
        if trial["val_error"] is not None
    ]
    if done:
        _, best, row, results = min(done, key=lambda one: one[0])
        model = Recorded(out / place_of(row, results.study.seed)).model(best, task.to("cpu")).eval()
        draw_predictions(model, task, out, f"{row.label}, trial {best}, on {wanted}")
    write_page([out], out / "report.html")
    leave_if_crashed(found)


def draw_predictions(model: Model, task: RecordingTask, out: Path, title: str) -> None:
    """Draw a model's confusions on the test set, and what it says over time where every frame has a label."""
    counts, truth, said = predictions(model, task)
    pictures = draw_confusion(counts, task.classes, out / "pictures", title=title)
    if not task.one_label:
        pictures += draw_over_time(truth, said, task.classes, out / "pictures", title=title)
    for picture in pictures:
        print(picture)


def _print_comparisons(title: str, results: list[tuple[Row, Comparison]], *, published: bool) -> None:
    """Print a table: ours beside published, or ours alone."""
    names = ["row", "error %, ours", "log10 lr, ours"]
    names += ["error %, published", "log10 lr, published"] if published else []
    table = Table(*names, box=None, pad_edge=False)
    for row, result in results:
        ours, theirs = result.log10_learning_rate, row.published.log10_learning_rate
        cells = [row.label, estimate_text(result.ours), _pair(ours)]
        if published:
            cells += [percent(row.published.error, row.published.deviation), _pair(theirs)]
        table.add_row(*cells)
    print(f"\n{title}: test error of the top 10% by validation")
    print_table(table, [(row.label, result.verdict) for row, result in results if published])
    for row, result in results:
        for one in result.seeds if len(result.seeds) > 1 else ():
            print(f"  {row.label}, seed {one.study.seed} alone: {percent(*one.summary.test_error)}")


def print_table(table: Table, verdicts: Sequence[tuple[str, str]]) -> None:
    """Print a table, and below it, where they have room, the verdicts of its rows."""
    table.columns[0].no_wrap = True
    console.print(table)
    for label, verdict in verdicts:
        print(f"  {label}: {verdict}")


def _pair(values: tuple[float, float] | None) -> str:
    return plus_minus(*values, 2) if values else "-"


@reproduce_app.command("figure1")
def figure1_command(
    out: Annotated[Path, typer.Option("--out", help="Where the figure goes.")] = Path("figure1"),
    tau: Annotated[int, typer.Option("--tau", help="How many steps the shortest paths lead over.")] = figure1.TAU,
) -> None:
    """Draw direct connections and shortest paths in four architectures."""
    if tau < 1:
        raise UsageError(f"expected --tau >= 1, got {tau}.")
    for architecture in figure1.ARCHITECTURES:
        edges = len(architecture.path(tau)) - 1
        print(f"{architecture.name}: {edges} edge{'' if edges == 1 else 's'} over {tau} steps")
    for path in draw_figure1(out, tau):
        print(path)


@reproduce_app.command("figure2")
def figure2_command(
    data: Mnist,
    out: Annotated[Path, typer.Option("--out", help="Where the studies and the figure go.")] = Path("figure2"),
    steps: Annotated[int, typer.Option("--steps", help="Optimisation steps before the measurement.")] = figure2.STEPS,
    trials: Annotated[int, typer.Option("--trials", help="Models of each layer.")] = figure2.TRIALS,
    seed: Seed = 0,
    device: Device = "auto",
) -> None:
    """Measure gradient norms against tau early in training on permuted MNIST."""
    task = make_task("pmnist", seed=seed, data=data)
    with watched(steps, out) as (show, stop):
        curves = figure2.run(
            out, task, steps=steps, trials=trials, seed=seed, device=device, say=show.line, report=show.step, stop=stop
        )
    print(figure2.sentence(curves, steps))
    if steps < figure2.STEPS or trials < figure2.TRIALS:
        print(f"Shortened: {trials} trials and {steps} steps instead of {figure2.TRIALS} and {figure2.STEPS}.")
    if task.data_note:
        print(task.data_note)
    for path in draw_figure2(curves, out, steps):
        print(path)


@reproduce_app.command("figure3")
@with_flags
def figure3_command(
    asked: RowFlags,
    out: Annotated[Path, typer.Option("--out", help="Where the studies and the page go.")] = Path("figure3"),
    delays: Annotated[str, typer.Option("--delays", help="Copy delays.")] = "50,100,200,400",
    layers: Annotated[str | None, typer.Option("--rows", help="Only these layers, such as mist,lstm.")] = None,
    control: Annotated[bool, typer.Option("--control", help="The Clockwork with 1024 units instead.")] = False,
) -> None:
    """Run the copy problem of figure 3 under the paper's protocol, and print who solves it beside the paper."""
    wanted = words_of_flag(layers) or list(figure3.LAYERS_COMPARED)
    unknown = [name for name in wanted if name not in figure3.LAYERS_COMPARED]
    if unknown:
        raise UsageError(f"expected --rows among {', '.join(figure3.LAYERS_COMPARED)}, got {', '.join(unknown)}.")
    chosen = [
        row for row in figure3.rows(list_of_numbers("delays", delays), control=control) if row.study.layer in wanted
    ]
    if not chosen:
        raise UsageError("expected no --rows with --control, because the control is a Clockwork alone.")
    found = run_asked(chosen, out, study_task, asked)
    table = Table("row", "best validation error %", "solved once", "solved at the end", box=None, pad_edge=False)
    verdicts = []
    for row, own in found:
        result = figure3.outcome(row, own)
        table.add_row(row.label, percent(result.best_error), share_text(result.once), share_text(result.at_the_end))
        verdicts.append((row.label, result.verdict))
    print(
        f"\n{figure3.TITLE}: solved is an error below {figure3.SOLVED:.1%}; always answering blank has "
        f"{figure3.trivial_error():.2%}"
    )
    print_table(table, verdicts)
    say_what_is_shortened(chosen, asked)
    write_page([out], out / "report.html")
    # With what earlier commands have left there: the rows are often run one by one.
    curves = [row for row in figure3.best_curves(out) if row.curves]
    for path in draw_figure3(curves, out) if curves else ():
        print(path)
    leave_if_crashed(found)


@app.command("report")
def report_command(
    folders: Annotated[list[str], typer.Argument(help="Folders with studies, at any depth, or addresses of such.")],
    out: Annotated[Path, typer.Option("--out", help="The page to write.")] = Path("report.html"),
) -> None:
    """Write one HTML page about any set of studies: tables, curves, learning rates, gradient norms, paths."""
    write_page(folders, out)


def words_of_flag(text: str | None) -> list[str]:
    """Return the words in a flag, each once."""
    return list(dict.fromkeys(word.strip() for word in (text or "").split(",") if word.strip()))


def run_asked(
    rows: list[Row],
    out: Path,
    task_of: Callable[[Study], Task],
    asked: RowFlags,
) -> list[tuple[Row, list[StudyResults]]]:
    """Run what is missing of some rows, watched."""
    with watched(asked.steps or rows[0].study.total_steps, out) as (show, stop):
        return run_rows(
            rows,
            out,
            list_of_numbers("seeds", asked.seeds),
            task_of,
            trials=asked.trials,
            steps=asked.steps,
            device=asked.device,
            group_size=asked.group_size,
            only=None if asked.only is None else list_of_numbers("only", asked.only),
            fresh=asked.fresh,
            say=show.line,
            report=show.step,
            stop=stop,
        )


def leave_if_crashed(found: list[tuple[Row, list[StudyResults]]]) -> None:
    """Leave with status 1 if some trials crashed, as `mist sweep` does."""
    if any(trial["status"] == "crashed" for _, own in found for results in own for trial in results.trials):
        raise typer.Exit(1)


def say_what_is_shortened(rows: list[Row], asked: RowFlags) -> None:
    """Say in which way a run is less than the paper's."""
    paper = rows[0].study
    less = []
    if asked.trials is not None and asked.trials < paper.trials:
        less.append(f"{asked.trials} trials instead of {paper.trials}")
    if asked.steps is not None and asked.steps < paper.total_steps:
        less.append(f"{asked.steps:,} steps instead of {paper.total_steps:,}")
    if less:
        print(f"Shortened: {' and '.join(less)}. These numbers are not those of the paper's experiment.")
