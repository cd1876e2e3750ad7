"""Models of people's own recordings: fit, predict, evaluate, stream, export."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from mistrnn.cli._app import app
from mistrnn.cli._flags import BatchSize, Delays, Device, Hidden, LayerName, NumLayers, Periods, Seed, Tensorboard
from mistrnn.errors import UsageError

Recordings = Annotated[
    Path,
    typer.Argument(help="A folder with a file for each recording (CSV, Parquet, NPZ), or one long table."),
]
ModelFolder = Annotated[Path, typer.Argument(help="A folder that `mist fit` has made.")]
Labels = Annotated[
    Path | None, typer.Option("--labels", help="A table with a label for each recording (CSV, Parquet, NPZ).")
]
LabelColumn = Annotated[
    str | None,
    typer.Option(
        "--label-column", help="The labels: of the table (default: label) or, without one, of the recordings."
    ),
]
IdColumn = Annotated[
    str | None, typer.Option("--id-column", help="What names the recording, in a long table or the table of labels.")
]
Force = Annotated[bool, typer.Option("--force", help="Overwrite what an earlier run has written.")]


@app.command()
def fit(
    recordings: Recordings,
    out: Annotated[Path, typer.Option("--out", help="The model's folder.")],
    labels: Labels = None,
    label_column: LabelColumn = None,
    per_recording: Annotated[
        bool, typer.Option("--per-recording", help="The label column says one thing for each recording, not row.")
    ] = False,
    regress: Annotated[bool, typer.Option("--regress", help="The labels are numbers to predict, not classes.")] = False,
    columns: Annotated[
        str | None,
        typer.Option(
            "--columns",
            help="The inputs, such as ax,ay,az; a name with a comma in quotes (default: what is nothing else).",
        ),
    ] = None,
    id_column: IdColumn = None,
    time_column: Annotated[
        str | None, typer.Option("--time-column", help="Puts the rows in order; is not an input.")
    ] = None,
    group_column: Annotated[
        str | None, typer.Option("--group-column", help="Whose a recording is: nobody is both trained and tested on.")
    ] = None,
    test_share: Annotated[
        float, typer.Option("--test-share", help="What to hold out for the report; 0: nothing.")
    ] = 0.2,
    layer: LayerName = "mist",
    hidden: Hidden = 64,
    num_layers: NumLayers = 1,
    delays: Delays = None,
    periods: Periods = None,
    epochs: Annotated[
        int | None, typer.Option("--epochs", help="Times through all recordings (default: as many as makes sense).")
    ] = None,
    batch_size: BatchSize = 32,
    learning_rate: Annotated[float, typer.Option("--learning-rate", help="The learning rate at the start.")] = 0.003,
    class_weight: Annotated[
        str, typer.Option("--class-weight", help="balanced: rare classes count as much as common ones; or none.")
    ] = "none",
    piece_length: Annotated[
        int | None,
        typer.Option("--piece-length", help="Labels of rows: train on pieces of so many rows (default: 1000)."),
    ] = None,
    seed: Seed = 0,
    device: Device = "auto",
    tensorboard: Tensorboard = None,
    force: Force = False,
) -> None:
    """Train a model on recordings, hold some out, and report how it does on them."""
    given = locals()  # the flags, by their names
    with _packages("fit"):
        from mistrnn.cli._own_data import fit_model
    if not fit_model(**given):
        raise typer.Exit(130)  # Ctrl-C; what there was is saved


@app.command()
def predict(
    model: ModelFolder,
    recordings: Recordings,
    out: Annotated[Path, typer.Option("--out", help="The CSV file to write.")],
    id_column: IdColumn = None,
    force: Force = False,
) -> None:
    """Write what a model says of recordings into a CSV file."""
    with _packages("predict"):
        from mistrnn.cli._own_data import write_predictions
    write_predictions(model, recordings, out, id_column=id_column, force=force)


@app.command()
def evaluate(
    model: ModelFolder,
    recordings: Recordings,
    out: Annotated[Path, typer.Option("--out", help="The report's folder.")],
    labels: Labels = None,
    label_column: LabelColumn = None,
    id_column: IdColumn = None,
    force: Force = False,
) -> None:
    """Report how a model does on other labelled recordings."""
    with _packages("evaluate"):
        from mistrnn.cli._own_data import evaluate_model
    evaluate_model(model, recordings, out, labels=labels, label_column=label_column, id_column=id_column, force=force)


@app.command()
def stream(
    model: ModelFolder,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Answer a line that cannot be read with an empty one, and go on.")
    ] = False,
) -> None:
    """Read rows from standard input as they come, and write a label and its probability for each at once."""
    with _packages("stream"):
        from mistrnn.cli._live import answer_lines
    status = answer_lines(model, skip_bad=skip_bad)
    if status:
        raise typer.Exit(status)


@app.command()
def export(
    model: ModelFolder,
    onnx: Annotated[Path, typer.Option("--onnx", help="The file to write.")],
    step: Annotated[
        bool, typer.Option("--step", help="One step with its state, for streams, not whole recordings.")
    ] = False,
    force: Force = False,
) -> None:
    """Write a model as an ONNX graph."""
    with _packages("export", extra="onnx"):
        from mistrnn.estimators import SequenceEstimator
        from mistrnn.estimators.export import export_onnx
    if force and onnx.exists() and onnx.suffix != ".onnx":
        raise UsageError(f"{onnx}: expected a name that ends in .onnx, because only such a file is overwritten.")
    export_onnx(SequenceEstimator.from_pretrained(model), onnx, step=step, force=force)
    print(onnx)


@contextlib.contextmanager
def _packages(command: str, extra: str = "estimators") -> Iterator[None]:
    """Say what to install where a package is missing: these commands need more than the others."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("mistrnn"):
            raise
        raise UsageError(
            f"`mist {command}` needs {error.name}, which is not installed: pip install 'mistrnn[{extra}]'."
        ) from error
