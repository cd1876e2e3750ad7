"""Studies and single models: sweep, train, demo; tasks, layers and data."""

import time
from inspect import signature
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from mistrnn.cli._app import app, console, data_app
from mistrnn.cli._flag_groups import with_flags
from mistrnn.cli._flags import EarlyStop
from mistrnn.cli._layer_costs import print_costs
from mistrnn.cli._page import write_page
from mistrnn.cli._progress import watched
from mistrnn.cli._study_flags import (
    EngineFlags,
    FolderFlags,
    GroupFlags,
    LayerFlags,
    TrainingFlags,
    study_from,
)
from mistrnn.cli._task_flags import TaskFlags
from mistrnn.demo import BATCH, DELAY, STEPS, TRIALS, run_demo
from mistrnn.files import folder_at
from mistrnn.layers import LAYERS
from mistrnn.paper import figure3
from mistrnn.tasks import TASKS, find_installed_tasks
from mistrnn.tasks._mnist_files import MIRRORS, get
from mistrnn.tasks.hapt import prepare_hapt
from mistrnn.tasks.mobiact import prepare_mobiact
from mistrnn.tasks.surgical import prepare_surgical
from mistrnn.tasks.timit import LABEL_AT, prepare_timit
from mistrnn.training import Study, plus_minus, run_study, study_task, summarise
from mistrnn.training.processes import process_rank


@app.command()
@with_flags
def sweep(
    task: TaskFlags,
    layer: LayerFlags,
    training: TrainingFlags,
    folder: FolderFlags,
    groups: GroupFlags,
    engine: EngineFlags,
    trials: Annotated[
        int, typer.Option("--trials", help="Models that differ in learning rate, weights and data order.")
    ] = 50,
    early_stop: EarlyStop = None,
) -> None:
    """Train many trials with random learning rates as one computation, and report the top 10% by validation."""
    study = study_from(task, layer, training, trials=trials, early_stop=early_stop)
    _run_and_print(study, task.data, folder, groups, engine)


@app.command()
@with_flags
def train(
    task: TaskFlags,
    layer: LayerFlags,
    training: TrainingFlags,
    folder: FolderFlags,
    learning_rate: Annotated[float, typer.Option("--learning-rate", help="The learning rate.")],
) -> None:
    """Train one model with one learning rate: a study of one trial."""
    study = study_from(task, layer, training, trials=1, learning_rate=learning_rate)
    _run_and_print(study, task.data, folder)


@app.command()
def tasks() -> None:
    """List the tasks and their settings."""
    find_installed_tasks()
    flags = signature(sweep).parameters
    table = Table("task", "what it is", "settings", "steps", "validation every", box=None, pad_edge=False)
    for name, kind in TASKS.items():
        settings = "\n".join(
            f"--{key.replace('_', '-')}: {text}" if key in flags else f"--setting {key}=…: {text}"
            for key, text in kind.settings.items()
        )
        table.add_row(name, kind.summary, settings, f"{kind.default_steps:,}", str(kind.validation_interval))
    console.print(table)


@app.command()
def layers(
    cost: Annotated[
        bool, typer.Option("--cost", help="Operations, memory and time of a step, beside an LSTM.")
    ] = False,
    hidden: Annotated[int, typer.Option("--hidden", help="--cost: the LSTM's units.", min=1)] = 100,
    input_size: Annotated[int, typer.Option("--input-size", help="--cost: inputs.", min=1)] = 1,
    output_size: Annotated[int, typer.Option("--output-size", help="--cost: outputs of the readout.", min=1)] = 10,
    steps: Annotated[int, typer.Option("--steps", help="--cost: time steps of a measured run.", min=1)] = 200,
    batch_size: Annotated[int, typer.Option("--batch-size", help="--cost: sequences of a measured run.", min=1)] = 100,
) -> None:
    """List the layers, or with --cost what a step of each costs."""
    if cost:
        print_costs(hidden, input_size, output_size, steps=steps, batch=batch_size)
        return
    table = Table("layer", "what it is", box=None, pad_edge=False)
    for name, kind in LAYERS.items():
        table.add_row(name, (kind.__doc__ or "").split("\n")[0].split(";")[0])
    console.print(table)


From = Annotated[Path, typer.Option("--from", help="The data set as it was downloaded: a folder or a zip archive.")]
PreparedIn = Annotated[Path, typer.Option("--dir", help="The folder to make.")]


@data_app.command()
def timit(
    place: From,
    folder: PreparedIn,
    label_at: Annotated[
        str, typer.Option("--label-at", help="Where a frame's label is read: start (the authors' choice) or middle.")
    ] = LABEL_AT[0],
) -> None:
    """Prepare TIMIT, or the sample of it that comes with NLTK."""
    prepare_timit(place, folder, print, label_at=label_at)


@data_app.command()
def mobiact(place: From, folder: PreparedIn) -> None:
    """Prepare MobiAct v2.0."""
    prepare_mobiact(place, folder, print)


@data_app.command()
def surgical(place: From, folder: PreparedIn) -> None:
    """Prepare JIGSAWS (Suturing), recordings in the standard form (MISTIC-SL), or Gesture Phase Segmentation."""
    prepare_surgical(place, folder, print)


@data_app.command()
def hapt(
    place: From,
    folder: PreparedIn,
    frames: Annotated[bool, typer.Option("--frames", help="Whole recordings, for hapt-frames.")] = False,
    downsample: Annotated[int, typer.Option("--downsample", help="Means of so many samples.")] = 1,
) -> None:
    """Prepare HAPT: labelled segments, or whole recordings."""
    prepare_hapt(place, folder, frames=frames, downsample=downsample, say=print)


@data_app.command()
def mnist(
    folder: Annotated[Path, typer.Option("--dir", help="Where the four files are or go.")],
    mirror: Annotated[list[str] | None, typer.Option("--mirror", help="Download from here instead.")] = None,
) -> None:
    """Get the four files of MNIST, or check those that are there."""
    get(folder, mirror or MIRRORS, say=print)


@app.command()
def demo(
    out: Annotated[Path, typer.Option("--out", help="Where the demo's studies and picture go.")] = Path("mist-demo"),
) -> None:
    """Compare MIST, LSTM, RNN and Clockwork on a copy problem: a few trials each, minutes on 2 CPU cores."""
    started = time.monotonic()
    with watched(STEPS, out) as (show, stop):
        rows, picture = run_demo(out, say=show.line, report=show.step, stop=stop)
    table = Table(
        "layer", "units", "parameters", "best val error", "its test error", "its learning rate", "trials that solved it",
        box=None, pad_edge=False,
    )  # fmt: skip
    for row in rows:
        table.add_row(
            row["layer"],
            str(row["units"]),
            f"{row['parameters']:,}",
            f"{row['val_error']:.4f}",
            f"{row['test_error']:.4f}",
            f"{row['learning_rate']:.4f}",
            f"{row['solved']} of {TRIALS}",
        )
    console.print()
    console.print(table)
    print(
        f"\nCopy problem, delay {DELAY}: {TRIALS} trials of {STEPS} steps for each layer, batches of {BATCH}, learning rates "
        f"10^U(-4, 1), seed 0.\nAlways answering 'blank' has an error of {figure3.trivial_error():.4f}. "
        f"Solved: below {figure3.SOLVED}. Took {time.monotonic() - started:.0f} s.\nLearning curves: {picture}"
    )
    write_page([out], out / "report.html")


def _run_and_print(
    study: Study,
    data: Path | None,
    folder: FolderFlags,
    groups: GroupFlags = GroupFlags(),  # noqa: B008 (frozen)
    engine_flags: EngineFlags = EngineFlags(),  # noqa: B008 (frozen)
) -> None:
    """Run a study, print its trials, and leave with status 1 if some crashed."""
    engine = engine_flags.chosen()
    out = folder_at(folder.out).place  # an unknown address is refused before any data is read
    task = study_task(study, data)
    with watched(study.total_steps, out) as (show, stop):
        rows = run_study(
            study,
            out,
            data=data,
            device=folder.device,
            fresh=folder.fresh,
            group_size=groups.group_size,
            only=groups.trials(),
            report=show.step,
            say=show.line,
            stop=stop,
            task=task,
            log_dir=folder.tensorboard,
            engine=engine,
        )
    if process_rank() == 0:
        _print_trials(study, rows, task.data_note)
    if any(row["status"] == "crashed" for row in rows):
        raise typer.Exit(1)


def _print_trials(study: Study, rows: list[dict[str, Any]], data_note: str) -> None:
    """Every trial, best first, and the top 10%."""
    summary = summarise(rows, of=study.trials)
    table = Table(
        "trial", "learning rate", "val error", "test error", "best step", "status", "", box=None, pad_edge=False
    )
    for row in sorted(rows, key=lambda row: (row["val_error"] is None, row["val_error"] or 0.0, row["trial"])):
        ended_early = row["status"] in ("diverged", "stopped")
        status = f"{row['status']} at step {row['steps']}" if ended_early else row["status"]
        table.add_row(
            str(row["trial"]),
            f"{row['learning_rate']:.5f}",
            _number(row["val_error"]),
            _number(row["test_error"]),
            str(row["best_step"] or "-"),
            status,
            "top 10%" if row["trial"] in summary.top else "",
        )
    console.print(table)
    if summary.top:
        name = TASKS[study.task].error_name
        print(
            f"{study.layer} {study.hidden} on {study.task}: test {name} {plus_minus(*summary.test_error, 4)}, "
            f"log10 learning rate {plus_minus(*summary.log10_learning_rate, 2)} "
            f"(top {len(summary.top)} of {summary.trials} trials, {summary.diverged} diverged"
            f"{f', {summary.stopped} stopped early' if summary.stopped else ''})"
        )
    elif summary.diverged:
        first = min(row["steps"] for row in rows if row["status"] == "diverged")
        print(
            f"{study.layer} {study.hidden} on {study.task}: no trial was validated before it diverged ({summary.diverged} of "
            f"{summary.trials}, the first at step {first}); lower learning rates or a smaller --validate-every may help"
        )
    if len(rows) < study.trials:
        print(f"{len(rows)} of {study.trials} trials so far; the same command without --only runs the others.")
    if data_note:
        print(data_note)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"
