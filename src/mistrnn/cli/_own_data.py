"""What `mist fit`, `predict` and `evaluate` do: tables in, a model, a report or predictions out."""

import shlex
import sys
import time
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mistrnn.cli._app import console
from mistrnn.cli._flags import names, numbers
from mistrnn.cli._labelled import contents_of, labelled, targets_of
from mistrnn.cli._model_folder import (
    ESTIMATORS,
    REPORT,
    Kept,
    Kind,
    check_model_folder,
    check_outside,
    check_writable,
    load_model,
    save_reading,
)
from mistrnn.cli._notices import say, say_doubtful_inputs, say_untested_classes
from mistrnn.cli._prediction_table import are_predictions, prediction_rows
from mistrnn.cli._progress import stop_on_ctrl_c
from mistrnn.errors import UsageError
from mistrnn.estimators import SequenceEstimator
from mistrnn.estimators._fitting import Epoch
from mistrnn.files import written_together
from mistrnn.layers import LAYERS
from mistrnn.report._files import save_table
from mistrnn.report.evaluation import Evaluation
from mistrnn.report.evaluation_folder import check_report_folder, clear_report_folder, save_evaluation
from mistrnn.report.evaluation_text import print_evaluation
from mistrnn.report.model_evaluation import describe_estimator, evaluate_estimator
from mistrnn.tables import Reading, Recording, hold_out, read_recordings
from mistrnn.training.study import OWN_OPTIONS

MOST_CLASSES_NAMED = 30


def fit_model(
    *,
    recordings: Path,
    out: Path,
    labels: Path | None,
    label_column: str | None,
    per_recording: bool,
    regress: bool,
    columns: str | None,
    id_column: str | None,
    time_column: str | None,
    group_column: str | None,
    test_share: float,
    force: bool,
    **settings: Any,
) -> bool:
    """Train a model, report on what was held out, and save both; return whether it ran to its end."""
    kind = _kind(labels, label_column, per_recording, regress)
    if not 0 <= test_share < 1:
        raise UsageError(f"expected --test-share from 0 to below 1, got {test_share}.")
    estimator = _estimator(kind, settings)
    check_outside(out, recordings, "folder")
    if settings["tensorboard"] is not None:
        check_outside(settings["tensorboard"], recordings, "folder", option="--tensorboard")
    check_model_folder(out, force)
    reading = Reading(
        columns=None if columns is None else names("columns", columns),
        id_column=id_column,
        time_column=time_column,
        label_column=label_column or "label",
        group_column=group_column,
    )
    others = {"label": reading.label_column, "time": time_column, "group": group_column, "id": id_column}
    for what, name in others.items():
        if name is not None and name in (reading.columns or ()):
            raise UsageError(f"expected --columns without {name!r}, because it is the {what} column, not an input.")
    found, reading, table = labelled(recordings, reading, kind, labels, training=True, need_id=id_column is not None)
    targets, classes = targets_of(found, kind, table, reading)
    _print_summary(found, reading, classes)
    held = np.zeros(len(found), dtype=bool)
    if test_share > 0:
        if len(found) < 2:
            raise UsageError(
                f"{recordings}: expected several recordings, because --test-share {test_share} of them are held out, got one. "
                "A long table needs --id-column; --test-share 0 trains on all, without an honest figure."
            )
        groups = [str(one.group) for one in found] if group_column is not None else None
        held = hold_out(test_share, contents_of(found, kind), groups, settings["seed"])
    train_on, test_on = np.flatnonzero(~held), np.flatnonzero(held)
    _print_split(found, train_on, test_on, group_column)
    say_untested_classes(contents_of(found, kind), held, group_column)
    say_doubtful_inputs([found[k] for k in train_on], reading)
    learnt = [found[k] for k in train_on]
    stopped, seconds = _train(estimator, learnt, [targets[k] for k in train_on], kind, group_column)
    estimator.channel_names_ = list(reading.columns or ())
    estimator.verbose, estimator.log_dir = False, None  # how it was watched is no part of a model
    with written_together(out) as place:
        estimator.save_pretrained(place)
        save_reading(place, _kept(reading, kind, labels, recordings))
    clear_report_folder(out / REPORT, force=force)  # it is about another model
    trained = (
        f"\ntrained {estimator.n_epochs_} epochs in {seconds:.0f} s, kept epoch {estimator.best_epoch_}; "
        f"{estimator.parameter_count():,} weights"
    )
    try:
        if len(test_on):
            tested = [found[k] for k in test_on]
            evaluation = _judged(
                estimator, kind, tested, [targets[k] for k in test_on], groups=group_column is not None
            )
            about = {
                **describe_estimator(estimator),
                "stopped_by_ctrl_c": stopped,
                "seconds": round(seconds, 1),
                "recordings": str(recordings),
                "evaluated_on": "recordings that were held out from training" + _whose(found, test_on, group_column),
                "trained_on": [one.id for one in learnt],
                "held_out": [one.id for one in tested],
            }
            title = f"{_layer_name(estimator)}, {estimator.hidden_size} units: recordings that were held out"
            heading = f"{trained}\n\nOn what was held out:\n\n"
            _report(evaluation, estimator, out / REPORT, title, about, force, heading)
        else:
            print(
                f"{trained}\n\nNothing was held out (--test-share 0), so there is no honest figure: evaluate it on other "
                "recordings."
            )
    finally:  # if the report cannot be written, or Ctrl-C comes, too
        print(f"model: {out}")
    if stopped:
        print("stopped by Ctrl-C; the model is the best so far.")
    return not stopped


def write_predictions(model: Path, recordings: Path, out: Path, *, id_column: str | None, force: bool) -> None:
    """Write what a model says of recordings into a CSV file."""
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
    found, reading, table = labelled(
        recordings,
        reading,
        kept.kind,
        labels,
        training=False,
        need_id=id_column is not None,
        skip=kept.skipped(recordings),
    )
    targets, _ = targets_of(found, kept.kind, table, reading, known=estimator)
    evaluation = _judged(estimator, kept.kind, found, targets, groups=False)
    about = {
        "model": str(model),
        **describe_estimator(estimator),
        "recordings": str(recordings),
        "evaluated_on": f"the recordings in {recordings}",
        "evaluated": [one.id for one in found],
    }
    title = f"{_layer_name(estimator)}, {estimator.hidden_size} units: {len(found):,} other recordings"
    _report(evaluation, estimator, out, title, about, force)


def _kind(labels: Path | None, label_column: str | None, per_recording: bool, regress: bool) -> Kind:
    if labels is None and regress:
        raise UsageError(
            "expected --labels, because --regress takes its numbers from a table, one row for each recording."
        )
    if labels is None and label_column is None:
        raise UsageError(
            "expected labels: --labels TABLE with one for each recording, or --label-column NAME, a column of the recordings."
        )
    if labels is not None and per_recording:
        raise UsageError(
            "expected no --per-recording with --labels, because a table has one label for each recording anyway."
        )
    if labels is not None:
        return "numbers" if regress else "recordings"
    return "recordings" if per_recording else "rows"


def _estimator(kind: Kind, settings: dict[str, Any]) -> SequenceEstimator:
    """Return an estimator, its settings checked, so that nobody waits for a mistake."""
    name = settings["layer"]
    options: dict[str, Any] = {}
    if name not in LAYERS:
        raise UsageError(f"expected --layer among {', '.join(LAYERS)}, got {name!r}.")
    for option, owners in OWN_OPTIONS.items():
        if settings.get(option) is not None:
            if name not in owners:
                raise UsageError(f"{name}: expected no --{option}, because they belong to {' and '.join(owners)}.")
            options[option] = numbers(option, settings[option])
    weights = {"none": None, "balanced": "balanced"}
    if settings["class_weight"] not in weights:
        raise UsageError(f"expected --class-weight balanced or none, got {settings['class_weight']!r}.")
    own: dict[str, Any] = {} if kind == "numbers" else {"class_weight": weights[settings["class_weight"]]}
    if kind == "numbers" and settings["class_weight"] != "none":
        raise UsageError("expected no --class-weight with --regress, because numbers are no classes.")
    if settings["piece_length"] is not None:
        if kind != "rows":
            raise UsageError(
                "expected no --piece-length, because it is for labels of rows, and these are of recordings."
            )
        own["piece_length"] = settings["piece_length"]
    if not 0 <= settings["seed"] < 2**31:
        raise UsageError(f"expected --seed between 0 and 2^31 - 1, got {settings['seed']}.")
    estimator = ESTIMATORS[kind](
        layer=name,
        hidden_size=settings["hidden"],
        num_layers=settings["num_layers"],
        layer_options=options or None,
        max_epochs=settings["epochs"],
        batch_size=settings["batch_size"],
        learning_rate=settings["learning_rate"],
        device=settings["device"],
        random_state=settings["seed"],
        log_dir=None if settings["tensorboard"] is None else str(settings["tensorboard"]),
        verbose=True,
        **own,
    )
    estimator._check_parameters()
    try:
        LAYERS[name](1, estimator.hidden_size, estimator.num_layers, **options, device="meta")
    except (ValueError, TypeError, RuntimeError) as error:
        raise UsageError(str(error)) from error
    return estimator


def _kept(reading: Reading, kind: Kind, labels: Path | None, recordings: Path) -> Kept:
    """Return what new tables are read by: with the place of the labels, if they lay among the recordings."""
    if labels is None:
        return Kept(reading, kind, None)
    beside, folder = labels.parent.resolve(), recordings.resolve()  # the file itself may be a link to somewhere else
    if beside.is_relative_to(folder):
        return Kept(reading, kind, (beside.relative_to(folder) / labels.name).as_posix())
    return Kept(reading, kind, labels.name, labels_elsewhere=True)


def _print_summary(recordings: Sequence[Recording], reading: Reading, classes: Counter[Any]) -> None:
    rows = [len(one.values) for one in recordings]
    print(f"{len(recordings):,} recordings of {min(rows):,} to {max(rows):,} rows, {sum(rows):,} in all")
    print(f"inputs: {', '.join(reading.columns or ())}")
    if classes:
        words = ", ".join(f"{label} {count:,}" for label, count in sorted(classes.items())[:MOST_CLASSES_NAMED])
        print(f"{len(classes)} classes: {words}{', …' if len(classes) > MOST_CLASSES_NAMED else ''}")


def _print_split(
    recordings: Sequence[Recording], train_on: NDArray[np.int64], test_on: NDArray[np.int64], group_column: str | None
) -> None:
    if not len(test_on):
        print(f"trained on: all {len(train_on):,} recordings")
        return
    print(f"trained on: {len(train_on):,} recordings{_whose(recordings, train_on, group_column)}")
    print(f"held out:   {len(test_on):,} recordings{_whose(recordings, test_on, group_column)}", flush=True)


def _whose(recordings: Sequence[Recording], chosen: NDArray[np.int64], group_column: str | None) -> str:
    if group_column is None:
        return ""
    names = sorted({str(recordings[k].group) for k in chosen})
    more = f" and {len(names) - 10} more" if len(names) > 10 else ""
    return f" ({group_column} {', '.join(names[:10])}{more})"


def _train(
    estimator: SequenceEstimator,
    recordings: Sequence[Recording],
    targets: list[Any],
    kind: Kind,
    group_column: str | None,
) -> tuple[bool, float]:
    """Train, and return whether Ctrl-C ended it, and the seconds it took."""
    groups: list[str | None] | None = None
    if group_column is not None:
        groups = [one.group for one in recordings]
        if len(set(groups)) < 2:
            say(f"one {group_column} alone is trained on: when to stop is judged by other recordings of the same.")
            groups = None
    y: Any = targets if kind == "rows" else np.array(targets)
    started = time.monotonic()
    with stop_on_ctrl_c("epoch") as asked, warnings.catch_warnings():
        warnings.showwarning = lambda message, *_: say(str(message))  # no line of code: the reader did not write it

        def report(_: Epoch) -> bool:
            return bool(asked)

        estimator._fit([one.values.T for one in recordings], y, None, groups, report)
    return bool(asked), time.monotonic() - started


def _judged(
    estimator: SequenceEstimator, kind: Kind, recordings: Sequence[Recording], targets: Sequence[Any], *, groups: bool
) -> Evaluation:
    """Compare what a model says with what is true."""
    return evaluate_estimator(
        estimator,
        kind,
        [one.values.T for one in recordings],
        targets,
        ids=[one.id for one in recordings],
        groups=[one.group for one in recordings] if groups else None,
        rows=[one.rows for one in recordings],
        over_time=kind == "numbers" or not estimator.network_.layer.bidirectional,
    )


def _report(
    evaluation: Evaluation,
    estimator: SequenceEstimator,
    folder: Path,
    title: str,
    about: dict[str, Any],
    force: bool,
    heading: str = "",
) -> None:
    """Save a report, then print it: a reader who has left, as `| head` does, takes nothing away from the folder."""
    try:
        about = {**about, "command": shlex.join(["mist", *sys.argv[1:]])}
        files = save_evaluation(evaluation, folder, title=title, about=about, history=estimator.history_, force=force)
    finally:  # there may be no room to save it: then the figures are told at least
        print(heading, end="")
        print_evaluation(evaluation, console)
    pictures = ", ".join(path.name for path in files if path.suffix == ".png")
    print(f"\nreport: {folder} (report.html, report.json, predictions.csv, {pictures})")


def _layer_name(estimator: SequenceEstimator) -> str:
    return type(estimator.network_.layer).__name__
