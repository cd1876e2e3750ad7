"""A study from its settings to its results: groups of trials, checkpoints, test errors, the top 10%."""

import contextlib
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import torch

from mistrnn.errors import UsageError
from mistrnn.tasks import Task, make_task
from mistrnn.training.group import Group
from mistrnn.training.memory import OutOfMemory, out_of_memory, trials_that_fit
from mistrnn.training.store import Store
from mistrnn.training.study import Study
from mistrnn.training.tensorboard import Log

TOP_SHARE = 0.1


class Interrupted(Exception):  # noqa: N818 (nothing went wrong)
    """The study was asked to stop, and did, with a checkpoint written."""


class ComputationFailed(Exception):  # noqa: N818 (it carries the error)
    """Something broke inside the computation of a group: no fault of the caller's, perhaps not of other groups."""


@dataclass(frozen=True)
class Progress:
    """Where a running group stands."""

    step: int
    steps: int
    trials: int
    running: int
    diverged: int
    best_errors: tuple[float, ...]
    """The lowest validation errors so far, best first."""
    finished_trials: int
    """Trials of the study that earlier groups have finished."""
    all_trials: int


@dataclass(frozen=True)
class Summary:
    """The paper's numbers: the top 10% of trials by validation error."""

    trials: int
    top: tuple[int, ...]
    test_error: tuple[float, float]
    """Mean and standard deviation."""
    log10_learning_rate: tuple[float, float]
    diverged: int
    crashed: int


@dataclass(frozen=True)
class Watch:
    """How the caller follows a study."""

    report: Callable[[Progress], None]
    say: Callable[[str], None]
    stop: Callable[[], bool]
    checkpoint_seconds: float
    log: Log | None


def run_study(
    study: Study,
    folder: Path | str,
    *,
    data: Path | None = None,
    device: str = "auto",
    fresh: bool = False,
    group_size: int | None = None,
    only: Sequence[int] | None = None,
    checkpoint_seconds: float = 60.0,
    report: Callable[[Progress], None] = lambda progress: None,
    say: Callable[[str], None] = lambda line: None,
    stop: Callable[[], bool] = lambda: False,
    task: Task | None = None,
    log_dir: str | PathLike[str] | None = None,
) -> list[dict[str, Any]]:
    """Run what is missing of a study and return all its trials, in order.

    Args:
        study: the settings.
        folder: where everything is kept, a path or an address such as s3://bucket/study; the same call again resumes.
        data: the folder of a task's files.
        device: cpu, cuda, cuda:1, … or auto: a GPU if there is one.
        fresh: forget the study that is in the folder.
        group_size: how many trials train at once; as many as memory holds if left out.
        only: run only these trials.
        checkpoint_seconds: how often the running group is saved.
        report: called after every step.
        say: called with a line for the log now and then.
        stop: asked after every step; if true, the group is saved and `Interrupted` raised.
        task: the study's task if it is at hand already.
        log_dir: a folder for TensorBoard, one run for each trial.
    """
    place = choose_device(device)
    if group_size is not None and group_size < 1:
        raise UsageError(f"expected group_size >= 1, got {group_size}.")
    unknown = [trial for trial in only or [] if not 0 <= trial < study.trials]
    if unknown:
        raise UsageError(f"expected trials between 0 and {study.trials - 1}, got {unknown}.")
    task = (task or study_task(study, data)).to(place)
    with _memory_named(f"a trial of {study.layer} with {study.hidden} units"):
        study.initial_parameters(0, task)
    if study.batch_size > task.sizes["train"]:
        raise UsageError(f"expected batch_size <= {task.sizes['train']}, the training set, got {study.batch_size}.")
    logging = contextlib.nullcontext(None) if log_dir is None else Log(log_dir)
    with logging as log, Store(folder, study, task.data_identity, fresh=fresh) as store:
        watch = Watch(report, say, stop, checkpoint_seconds, log)
        wanted = list(range(study.trials)) if only is None else sorted(set(only))
        crashed: set[int] = set()
        while True:
            complete = {row["trial"] for row in store.trials() if row["status"] != "crashed"} | crashed
            missing = [trial for trial in wanted if trial not in complete]
            if not missing:
                return store.trials()
            size = _settled_group_size(study, task, place, store, group_size, len(missing), say)
            trials, checkpoint = missing[:size], store.load_checkpoint(missing[0])
            if checkpoint is not None:
                saved = [record["trial"] for record in checkpoint[1]["records"]]
                if len(saved) <= size and set(saved) <= set(missing):
                    trials = saved
                    say(f"going on with trials {saved[0]} to {saved[-1]} from step {checkpoint[1]['step']}")
                else:
                    checkpoint = None  # of a larger group than is wanted now
            try:
                run_group(study, task, trials, place, store, checkpoint, watch)
            except OutOfMemory as error:
                if len(trials) == 1:
                    raise UsageError(f"one trial does not fit into the memory of {place}: {error}") from error
                group_size = len(trials) // 2
                say(
                    f"{len(trials)} trials did not fit into the memory of {place}: going on with groups of {group_size}"
                )
                store.set_group_size(group_size)
            except ComputationFailed as error:
                say(f"trials {trials[0]} to {trials[-1]} crashed: {error}. The same command tries them again.")
                store.finish([_crashed(study, trial, str(error), len(trials), place) for trial in trials], {}, {})
                crashed |= set(trials)
            if place.type == "cuda":
                torch.cuda.empty_cache()


def study_task(study: Study, data: Path | None = None) -> Task:
    """Return the task of a study, on the CPU."""
    with _memory_named(f"the data of {study.task}"):
        return make_task(study.task, study.task_settings, seed=study.seed, data=data)


def run_group(
    study: Study,
    task: Task,
    trials: Sequence[int],
    device: torch.device,
    store: Store,
    checkpoint: tuple[dict[str, torch.Tensor], dict[str, Any]] | None,
    watch: Watch,
) -> None:
    """Train some trials to the end, from their checkpoint if there is one, and add them to the store."""
    started = time.monotonic()
    with _failures_named():
        group = Group(study, task, trials, device)
    seconds_before = 0.0
    if checkpoint is not None:
        group.restore(*checkpoint)
        seconds_before = checkpoint[1]["seconds"]
    finished_before = len(store.trials())

    def seconds() -> float:
        return seconds_before + time.monotonic() - started

    def save() -> None:
        tensors, rest = group.snapshot()
        store.save_checkpoint(trials[0], tensors, {**rest, "seconds": seconds()})

    saved = time.monotonic()
    while not group.done:
        with _failures_named():
            validated = group.advance()
        if validated and watch.log is not None:
            _log_curves(watch.log, group)
        watch.report(_progress(study, group, finished_before))
        if watch.stop():
            save()
            raise Interrupted
        if time.monotonic() - saved >= watch.checkpoint_seconds:
            save()
            saved = time.monotonic()
    with _failures_named():
        tested = group.evaluate(group.best, "test")
    model = study.model(task, device="meta")
    rows = []
    for record, test_error in zip(group.records, tested, strict=True):
        validated = record.best_step is not None
        rows.append(
            {
                "trial": record.trial,
                "status": "ok" if record.diverged_step is None else "diverged",
                "learning_rate": study.learning_rate_of(record.trial),
                "val_error": record.best_error if validated else None,
                "test_error": test_error if validated else None,
                "best_step": record.best_step,
                "steps": record.diverged_step or group.step,
                "parameters": model.parameter_count(),
                "seconds": round(seconds(), 3),
                "group": len(trials),
                "device": _device_name(device),
            }
        )
    best = {name: value.cpu() for name, value in group.best.items()}
    models = {
        record.trial: {name: value[k].contiguous() for name, value in best.items()}
        for k, record in enumerate(group.records)
        if record.best_step is not None
    }
    curves = {record.trial: record.curve for record in group.records}
    store.finish(rows, curves, models, {record.trial: record.gradients for record in group.records})
    store.drop_checkpoint(trials[0])


def _log_curves(log: Log, group: Group) -> None:
    """Log the last point of each curve that has one for this step."""
    for record in group.records:
        if record.curve and record.curve[-1][0] == group.step:
            _, train_loss, error = record.curve[-1]
            log.add({"train_loss": train_loss, "validation_error": error}, group.step, run=f"trial-{record.trial}")


def summarise(rows: Sequence[dict[str, Any]]) -> Summary:
    """Return the paper's numbers; trials without a validation error rank last and are never in the top.

    >>> rows = [{"trial": k, "status": "ok", "val_error": e, "test_error": e + 0.01, "learning_rate": 0.1}
    ...         for k, e in enumerate([0.3, 0.1, 0.2])]
    >>> summarise(rows).top
    (1,)
    """
    ranked = sorted(
        (row for row in rows if row["val_error"] is not None), key=lambda row: (row["val_error"], row["trial"])
    )
    top = ranked[: max(1, round(TOP_SHARE * len(rows)))]
    return Summary(
        trials=len(rows),
        top=tuple(row["trial"] for row in top),
        test_error=_mean_and_deviation([row["test_error"] for row in top]),
        log10_learning_rate=_mean_and_deviation([math.log10(row["learning_rate"]) for row in top]),
        diverged=sum(row["status"] == "diverged" for row in rows),
        crashed=sum(row["status"] == "crashed" for row in rows),
    )


def choose_device(device: str) -> torch.device:
    """Return the device of that name; auto is a GPU if there is one."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        place = torch.device(device)
    except RuntimeError:
        place = torch.device("meta")
    if place.type not in ("cpu", "cuda"):
        raise UsageError(f"expected device auto, cpu or cuda, got {device!r}.")
    seen = torch.cuda.device_count()
    if place.type == "cuda" and (place.index or 0) >= seen:
        raise UsageError(f"expected a CUDA device for {device!r}, but torch {torch.__version__} sees {seen} here.")
    return place


def _settled_group_size(
    study: Study,
    task: Task,
    device: torch.device,
    store: Store,
    asked: int | None,
    missing: int,
    say: Callable[[str], None],
) -> int:
    """Return how many trials train at once: decided once for a study, so that a resumed one runs the same groups."""
    settled = store.group_size()
    if settled is None or (asked is not None and asked != settled):
        with _memory_named(f"a trial of {study.layer} with {study.hidden} units"):
            settled = asked or trials_that_fit(study, task, device)
        if settled < missing:
            reason = "" if asked else " do not fit into memory at once: they"
            say(f"{missing} trials{reason} run in groups of {settled}")
        store.set_group_size(settled)
    return settled


@contextlib.contextmanager
def _failures_named() -> Iterator[None]:
    """Tell a computation that breaks apart from one that runs out of memory."""
    try:
        yield
    except Exception as error:
        if out_of_memory(error):
            raise OutOfMemory(str(error)) from error
        raise ComputationFailed(f"{type(error).__name__}: {error}") from error


@contextlib.contextmanager
def _memory_named(what: str) -> Iterator[None]:
    try:
        yield
    except (RuntimeError, MemoryError, OverflowError) as error:
        if out_of_memory(error):
            raise UsageError(f"{what} would not fit into memory ({error}).") from error
        raise


def _crashed(study: Study, trial: int, reason: str, group: int, device: torch.device) -> dict[str, Any]:
    unknown = ("val_error", "test_error", "best_step", "steps", "parameters", "seconds")
    return {
        "trial": trial,
        "status": "crashed",
        "learning_rate": study.learning_rate_of(trial),
        **dict.fromkeys(unknown),
        "group": group,
        "device": _device_name(device),
        "error": reason,
    }


def _progress(study: Study, group: Group, finished: int) -> Progress:
    errors = sorted(record.best_error for record in group.records if record.best_step is not None)
    return Progress(
        step=group.step,
        steps=study.total_steps,
        trials=len(group.records),
        running=len(group.running),
        diverged=sum(record.diverged_step is not None for record in group.records),
        best_errors=tuple(errors[:3]),
        finished_trials=finished,
        all_trials=study.trials,
    )


def _mean_and_deviation(values: Sequence[float]) -> tuple[float, float]:
    if not values:
        return math.nan, math.nan
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
