"""Models of people's own recordings: fit, tune, predict, evaluate, stream, export."""

from pathlib import Path
from typing import Annotated

import typer

from mistrnn.cli._app import app, extra_named
from mistrnn.cli._flag_groups import with_flags
from mistrnn.cli._model_flags import (
    DataFlags,
    Force,
    IdColumn,
    LabelColumn,
    Labels,
    NetworkFlags,
    Recordings,
    SearchFlags,
    StoppingFlags,
    TrainingFlags,
)
from mistrnn.errors import UsageError

ModelFolder = Annotated[Path, typer.Argument(help="The folder of a model, made by `mist fit` or `mist tune`.")]


@app.command()
@with_flags
def fit(data: DataFlags, network: NetworkFlags, training: TrainingFlags, stopping: StoppingFlags) -> None:
    """Train a model on recordings, and report its accuracy on recordings that are held out."""
    with extra_named("fit"):
        from mistrnn.cli._estimator import Flags
        from mistrnn.cli._fit import fit_model
    if not fit_model(Flags(data, network, training, stopping=stopping)):
        raise typer.Exit(130)  # Ctrl-C; the model so far is saved


@app.command()
@with_flags
def tune(data: DataFlags, network: NetworkFlags, training: TrainingFlags, search: SearchFlags) -> None:
    """As fit, with a search: many trials of random settings; the model is the mean of the best ones.

    The search is kept in OUT/search. After Ctrl-C or a kill, the same command resumes it.
    """
    with extra_named("tune"):
        from mistrnn.cli._estimator import Flags
        from mistrnn.cli._fit import fit_model
    fit_model(Flags(data, network, training, search=search))


@app.command()
def predict(
    model: ModelFolder,
    recordings: Recordings,
    out: Annotated[Path, typer.Option("--out", help="The CSV file to write.")],
    id_column: IdColumn = None,
    force: Force = False,
) -> None:
    """Write the predictions of a model for recordings into a CSV file."""
    with extra_named("predict"):
        from mistrnn.cli._own_data import write_predictions
    write_predictions(model, recordings, out, id_column=id_column, force=force)


@app.command()
def evaluate(
    model: ModelFolder,
    recordings: Recordings,
    out: Annotated[Path, typer.Option("--out", help="The folder for the report.")],
    labels: Labels = None,
    label_column: LabelColumn = None,
    id_column: IdColumn = None,
    force: Force = False,
) -> None:
    """Report the accuracy of a model on other labelled recordings."""
    with extra_named("evaluate"):
        from mistrnn.cli._own_data import evaluate_model
    evaluate_model(model, recordings, out, labels=labels, label_column=label_column, id_column=id_column, force=force)


@app.command()
def stream(
    model: ModelFolder,
    skip_bad: Annotated[
        bool,
        typer.Option("--skip-bad", help="Answer a line that cannot be read with empty cells, instead of an error."),
    ] = False,
) -> None:
    """Read rows from standard input, and write a label and its probability after each row."""
    with extra_named("stream"):
        from mistrnn.cli._live import answer_lines
    status = answer_lines(model, skip_bad=skip_bad)
    if status:
        raise typer.Exit(status)


@app.command()
def export(
    model: ModelFolder,
    onnx: Annotated[Path, typer.Option("--onnx", help="The file to write.")],
    step: Annotated[
        bool, typer.Option("--step", help="The graph of a single step with its state, for streams.")
    ] = False,
    force: Force = False,
) -> None:
    """Write a model as an ONNX graph."""
    with extra_named("export", extra="onnx"):
        from mistrnn.estimators import SequenceEstimator
        from mistrnn.estimators.export import export_onnx
    if force and onnx.exists() and onnx.suffix != ".onnx":
        raise UsageError(f"{onnx}: expected a name that ends in .onnx, because only such a file is overwritten.")
    export_onnx(SequenceEstimator.from_pretrained(model), onnx, step=step, force=force)
    print(onnx)
