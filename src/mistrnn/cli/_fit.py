"""`mist fit` and `mist tune`: recordings in, a model and its report out."""

import time
import warnings
from pathlib import Path

import numpy as np

from mistrnn.cli._estimator import Flags, estimator_from, kind_of
from mistrnn.cli._model_folder import (
    REPORT,
    SEARCH,
    Kind,
    check_model_folder,
    check_outside,
    clear_search_folder,
    save_reading,
)
from mistrnn.cli._model_report import evaluated, save_and_print
from mistrnn.cli._notices import say
from mistrnn.cli._progress import stop_on_ctrl_c, stopped_with_state
from mistrnn.cli._training_data import Part, TrainingData, check_test_share, read_training_data, reading_of
from mistrnn.estimators import SequenceEstimator
from mistrnn.files import written_together
from mistrnn.report.evaluation_folder import clear_report_folder
from mistrnn.report.model_evaluation import describe_estimator, title_of


def fit_model(flags: Flags) -> bool:
    """Train a model, report on what was held out, and save both; return False if Ctrl-C ended the training.

    A search keeps itself in the folder of the model. When it is stopped, no model is written, and the command exits with 130.
    """
    data, searches = flags.data, flags.search is not None
    kind = kind_of(data)
    check_test_share(data.test_share)
    estimator = estimator_from(kind, flags)
    check_outside(data.out, data.recordings, "folder")
    if flags.training.tensorboard is not None:
        check_outside(flags.training.tensorboard, data.recordings, "folder", option="--tensorboard")
    check_model_folder(data.out, data.force, search=searches)
    found = read_training_data(data, reading_of(data), kind, flags.training.seed)
    started = time.monotonic()
    if flags.search is not None:
        if flags.search.fresh:
            clear_search_folder(data.out / SEARCH)
        estimator.search_dir = data.out / SEARCH
        with stopped_with_state("epoch", estimator.search_dir) as asked:
            _train(estimator, found.training, kind, asked)
        stopped = False
    else:
        with stop_on_ctrl_c("epoch") as asked:
            _train(estimator, found.training, kind, asked)
        stopped = bool(asked)
    seconds = time.monotonic() - started
    _save(estimator, found, data.out, force=data.force)
    _report(estimator, found, kind, flags, seconds, stopped)
    return not stopped


def _train(estimator: SequenceEstimator, part: Part, kind: Kind, asked: list[int]) -> None:
    groups = part.groups
    if groups is not None and len(set(groups)) < 2:
        if estimator.early_stopping or estimator.n_trials > 1:
            say(f"the training set has a single {part.group_column}, so the validation set has recordings of the same.")
        groups = None
    y = part.targets if kind == "rows" else np.array(part.targets)
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_: say(str(message))  # no line of code: the reader did not write it
        estimator._fit(part.inputs, y, None, groups, lambda _: bool(asked))


def _save(estimator: SequenceEstimator, found: TrainingData, out: Path, *, force: bool) -> None:
    estimator.channel_names_ = list(found.kept.reading.columns or ())
    # How and where it was trained is no part of a model.
    estimator.set_params(verbose=False, log_dir=None, search_dir=None, engine=None)
    with written_together(out) as place:
        estimator.save_pretrained(place)
        save_reading(place, found.kept)
    clear_report_folder(out / REPORT, force=force)  # it is about another model


def _report(
    estimator: SequenceEstimator, found: TrainingData, kind: Kind, flags: Flags, seconds: float, stopped: bool
) -> None:
    """Evaluate the held-out recordings, save the report and print it; say where the model is, whatever happens."""
    data, tested = flags.data, found.held_out
    trained = f"\n{_trained(estimator, seconds)}"
    try:
        if tested.recordings:
            evaluation = evaluated(estimator, kind, tested)
            about = {
                **describe_estimator(estimator),
                "stopped_by_ctrl_c": stopped,
                "seconds": round(seconds, 1),
                "recordings": str(data.recordings),
                "evaluated_on": f"recordings that were held out from training{tested.of_groups}",
                "trained_on": found.training.ids,
                "held_out": tested.ids,
            }
            title = f"{title_of(estimator)}: recordings that were held out"
            heading = f"{trained}\n\nOn the held-out recordings:\n\n"
            save_and_print(evaluation, estimator, data.out / REPORT, title, about, data.force, heading)
        else:
            print(
                f"{trained}\n\nNothing was held out (--test-share 0), so there is no report: evaluate the model on other "
                "recordings with `mist evaluate`."
            )
    finally:  # if the report cannot be written, or Ctrl-C comes, too
        print(f"model: {data.out}")
    if stopped:
        print("stopped by Ctrl-C; the model is the best so far.")


def _trained(estimator: SequenceEstimator, seconds: float) -> str:
    parameters = f"{estimator.parameter_count():,} parameters"
    if estimator.n_trials > 1:
        networks = len(getattr(estimator.network_, "networks", [estimator.network_]))
        refit = f"the best {networks}" if networks > 1 else "the best one"
        return f"searched {estimator.n_trials} trials and trained {refit} in {seconds:.0f} s; {parameters}"
    kept = f", kept epoch {estimator.best_epoch_}" if estimator.early_stopping else ""
    return f"trained {estimator.n_epochs_} epochs in {seconds:.0f} s{kept}; {parameters}"
