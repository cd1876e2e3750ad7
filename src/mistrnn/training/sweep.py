"""A study from its settings to its results, whichever engine computes it, and the top 10% of its trials."""

import contextlib
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, cast

from mistrnn.errors import UsageError
from mistrnn.tasks import Task, make_task
from mistrnn.training.embedded import REFUSED, Embedded, Engine, choose_device
from mistrnn.training.ledger import Ledger, Progress, Watch
from mistrnn.training.memory import memory_named
from mistrnn.training.processes import joined, process_count
from mistrnn.training.store import Store
from mistrnn.training.study import Study
from mistrnn.training.tensorboard import Log

TOP_SHARE = 0.1


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
    stopped: int


def run_study(
    study: Study,
    folder: Path | str,
    *,
    row: str | None = None,
    data: Path | str | None = None,
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
    engine: Engine | None = None,
) -> list[dict[str, Any]]:
    """Run the missing trials of a study and return all its trials, in order.

    Under torchrun, the same call on every process: each trains on its share of every batch, and the first keeps the folder.

    Args:
        study: the settings.
        folder: where everything is kept, a path or an address such as s3://bucket/study; the same call again resumes.
        row: the row of the paper that the study is for, such as table1/mist-139; a new folder stores it.
        data: the folder of a task's files; for `recordings`, one long table, too.
        device: cpu, cuda, cuda:1, … or auto: a GPU if there is one.
        fresh: forget the study that is in the folder.
        group_size: how many trials train at once; as many as memory holds if left out.
        only: run only these trials.
        checkpoint_seconds: how often the running group is saved.
        report: called after every step; on a cluster, when a worker has answered.
        say: called with a line for the log now and then.
        stop: asked as often; if true, the group is saved and `Interrupted` raised.
        task: the study's task if it is at hand already.
        log_dir: a folder for TensorBoard, one run for each trial.
        engine: where to compute: in this process if left out, or `mistrnn.training.RayEngine`.
    """
    if group_size is not None and group_size < 1:
        raise UsageError(f"expected group_size >= 1, got {group_size}.")
    unknown = [trial for trial in only or [] if not 0 <= trial < study.trials]
    if unknown:
        raise UsageError(f"expected trials between 0 and {study.trials - 1}, got {unknown}.")
    if process_count() > 1 and (engine is not None or study.early_stop is not None):
        raise UsageError(
            "expected no engine and no early stopping under torchrun, whose processes train every trial together."
        )
    if log_dir is not None and Path(log_dir).is_file():  # said before anything is forgotten
        raise UsageError(f"cannot write TensorBoard's files to {log_dir}: it is a file.")
    (engine or Embedded()).check(device)
    task = task or study_task(study, data)
    if task.name != study.task:
        raise UsageError(f"expected a task {study.task!r}, because the study says so, got {task.name!r}.")
    with memory_named(study.trial_name):
        study.initial_parameters(0, task)
    if study.batch_size > task.sizes["train"]:
        raise UsageError(f"expected batch_size <= {task.sizes['train']}, the training set, got {study.batch_size}.")
    wanted = range(study.trials) if only is None else sorted(set(only))
    with contextlib.ExitStack() as held:
        if engine is None:
            processes = joined(choose_device(device))
            if not processes.agree(task.data_identity):
                raise UsageError("expected the same data for all processes, and their files differ.")
            engine = Embedded(processes)
            if processes.rank > 0:
                engine.follow(study, task, device, stop)
                return cast("list[dict[str, Any]]", processes.broadcast())
        try:
            store = held.enter_context(Store(folder, study, task.data_identity, row=row, fresh=fresh))
            # After the store, whose folder the log may be in: a new one has nothing else in it.
            log = None if log_dir is None else held.enter_context(Log(log_dir))
            ledger = Ledger(study, store, wanted, Watch(report, say, stop, checkpoint_seconds, log))
            if ledger.waiting:
                store.note_continuation()
        except BaseException:
            if isinstance(engine, Embedded):
                engine.processes.broadcast(REFUSED)
            raise
        engine.run(ledger, task, device=device, data=None if data is None else Path(data), group_size=group_size)
        rows = store.trials()
        if isinstance(engine, Embedded):
            engine.processes.broadcast(rows)
        return rows


def study_task(study: Study, data: Path | str | None = None) -> Task:
    """Return the task of a study, on the CPU; `data` is the folder of its files, if it has any."""
    with memory_named(f"the data of {study.task}"):
        return make_task(study.task, study.task_settings, seed=study.seed, data=data)


def summarise(rows: Sequence[dict[str, Any]], of: int | None = None) -> Summary:
    """Return the paper's numbers; trials without a validation error rank last and are never in the top.

    `of` is how many trials the whole study has, if `rows` are a part of them: the top is a tenth of those, so that the best
    five of 50 are five from the beginning on, and change only when a better trial comes.

    >>> rows = [{"trial": k, "status": "ok", "val_error": e, "test_error": e + 0.01, "learning_rate": 0.1}
    ...         for k, e in enumerate([0.3, 0.1, 0.2])]
    >>> summarise(rows).top
    (1,)
    >>> summarise(rows, of=20).top
    (1, 2)
    """
    ranked = sorted(
        (row for row in rows if row["val_error"] is not None), key=lambda row: (row["val_error"], row["trial"])
    )
    top = ranked[: max(1, round(TOP_SHARE * (of or len(rows))))]
    return Summary(
        trials=len(rows),
        top=tuple(row["trial"] for row in top),
        test_error=_mean_and_deviation([row["test_error"] for row in top]),
        log10_learning_rate=_mean_and_deviation([math.log10(row["learning_rate"]) for row in top]),
        diverged=sum(row["status"] == "diverged" for row in rows),
        crashed=sum(row["status"] == "crashed" for row in rows),
        stopped=sum(row["status"] == "stopped" for row in rows),
    )


def _mean_and_deviation(values: Sequence[float]) -> tuple[float, float]:
    if not values:
        return math.nan, math.nan
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else math.nan


def plus_minus(value: float, spread: float | None, digits: int) -> str:
    """Return a mean with its deviation as a person writes them; of one trial alone there is none.

    >>> plus_minus(0.5, 0.125, 2), plus_minus(0.5, math.nan, 2)
    ('0.50 ± 0.12', '0.50')
    """
    of_several = spread is not None and not math.isnan(spread)
    return f"{value:.{digits}f}" + (f" ± {spread:.{digits}f}" if of_several else "")
