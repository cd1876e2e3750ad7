"""The report about a model at the end of `mist fit`, `tune` and `evaluate`."""

import shlex
import sys
from pathlib import Path
from typing import Any

from mistrnn.cli._app import console
from mistrnn.cli._model_folder import Kind
from mistrnn.cli._training_data import Part
from mistrnn.estimators import SequenceEstimator
from mistrnn.report.evaluation import Evaluation
from mistrnn.report.evaluation_folder import save_evaluation
from mistrnn.report.evaluation_text import print_evaluation
from mistrnn.report.model_evaluation import evaluate_estimator


def evaluated(estimator: SequenceEstimator, kind: Kind, part: Part) -> Evaluation:
    """Compare the predictions of a model with the labels of recordings."""
    return evaluate_estimator(
        estimator,
        kind,
        part.inputs,
        part.targets,
        ids=part.ids,
        groups=part.groups,
        rows=[one.rows for one in part.recordings],
        over_time=kind == "numbers" or not estimator.network_.bidirectional,
    )


def save_and_print(
    evaluation: Evaluation,
    estimator: SequenceEstimator,
    folder: Path,
    title: str,
    about: dict[str, Any],
    force: bool,
    heading: str = "",
) -> None:
    """Save a report, then print it: if the reader of the output has left, as with `| head`, the folder is complete."""
    try:
        about = {**about, "command": shlex.join(["mist", *sys.argv[1:]])}
        trials = getattr(estimator, "trials_", ())
        files = save_evaluation(
            evaluation, folder, title=title, about=about, history=estimator.history_, trials=trials, force=force
        )
    finally:  # there may be no room to save it: then the figures are told at least
        print(heading, end="")
        print_evaluation(evaluation, console)
    pictures = ", ".join(path.name for path in files if path.suffix == ".png")
    print(f"\nreport: {folder} (report.html, report.json, predictions.csv, {pictures})")
