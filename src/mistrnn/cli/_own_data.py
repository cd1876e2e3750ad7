"""`mist predict` and `mist evaluate`: a model and other recordings in, predictions or a report out."""

from dataclasses import replace
from pathlib import Path

from mistrnn.cli._model_folder import check_outside, check_writable, load_model
from mistrnn.cli._model_report import evaluated, save_and_print
from mistrnn.cli._notices import say
from mistrnn.cli._prediction_table import are_predictions, prediction_rows
from mistrnn.cli._training_data import Part, targets_of
from mistrnn.errors import UsageError
from mistrnn.report._files import save_table
from mistrnn.report.evaluation_folder import check_report_folder
from mistrnn.report.model_evaluation import describe_estimator, title_of
from mistrnn.tables import read_labelled, read_recordings


def write_predictions(model: Path, recordings: Path, out: Path, *, id_column: str | None, force: bool) -> None:
    """Write the predictions of a model for recordings into a CSV file."""
    check_outside(out, recordings, "file")
    if out.exists() and not out.is_file():
        what = "a folder" if out.is_dir() else "a device or a pipe"
        raise UsageError(f"{out}: expected the name of a file to write, got {what}.")
    if out.exists() and not force:
        raise UsageError(f"{out}: there is such a file already; choose another name, or overwrite it with --force.")
    if out.exists() and not are_predictions(out):
        raise UsageError(f"{out}: not written by `mist predict`, so it is not overwritten. Choose another name.")
    check_writable(out.parent)
    estimator, kept = load_model(model)
    reading = replace(kept.reading, id_column=id_column or kept.reading.id_column)
    found, reading = read_recordings(
        recordings,
        reading,
        labels=False,
        groups=False,
        strict=False,
        need_id=id_column is not None,
        skip=kept.skipped(recordings),
        say=say,
    )
    header, rows = prediction_rows(estimator, found, reading)
    out.parent.mkdir(parents=True, exist_ok=True)
    save_table(out, header, rows)
    count = sum(len(one.values) for one in found)
    print(f"{out}: {len(found):,} recordings, {count:,} rows")


def evaluate_model(
    model: Path,
    recordings: Path,
    out: Path,
    *,
    labels: Path | None,
    label_column: str | None,
    id_column: str | None,
    force: bool,
) -> None:
    """Report how a model does on labelled recordings."""
    check_outside(out, recordings, "folder")
    check_report_folder(out, force=force)
    check_writable(out)
    estimator, kept = load_model(model)
    if kept.kind == "rows" and labels is not None:
        raise UsageError(
            f"expected no --labels, because {model} labels rows: their labels are a column of the recordings."
        )
    if kept.kind == "numbers" and labels is None:
        raise UsageError(f"expected --labels, because {model} predicts a number for each recording.")
    if labels is None and label_column is None and kept.labels is not None:
        raise UsageError(
            f"expected --labels, because {model} was trained with a table of labels, {kept.labels}, or --label-column NAME, a "
            "column of the recordings."
        )
    reading = replace(
        kept.reading,
        id_column=id_column or kept.reading.id_column,
        label_column=label_column or kept.reading.label_column or "label",
    )
    found, reading, table = read_labelled(
        recordings,
        reading,
        labels=labels,
        per_recording=kept.kind == "recordings",
        training=False,
        need_id=id_column is not None,
        skip=kept.skipped(recordings),
        say=say,
    )
    known = None if kept.kind == "numbers" else estimator.classes_.tolist()
    part = Part(found, targets_of(found, kept.kind, table, reading, known), group_column=None)
    evaluation = evaluated(estimator, kept.kind, part)
    about = {
        "model": str(model),
        **describe_estimator(estimator),
        "recordings": str(recordings),
        "evaluated_on": f"the recordings in {recordings}",
        "evaluated": part.ids,
    }
    save_and_print(evaluation, estimator, out, f"{title_of(estimator)}: {len(found):,} other recordings", about, force)
