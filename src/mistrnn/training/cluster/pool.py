"""The worker pool of a study: it assigns groups to workers and handles their answers."""

import time
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from mistrnn.errors import UsageError
from mistrnn.training.cluster.worker import Failure, WorkerInfo, WorkerSettings, versions
from mistrnn.training.ledger import Assignment, Interrupted, Ledger
from mistrnn.training.trainer import GroupProgress, Results

POLL_SECONDS = 0.5
"""Seconds between checks of the stop request while all workers are busy."""

PATIENCE_SECONDS = 30.0
"""Seconds without an answer before a line is printed."""

LOSSES_ALLOWED = 3
"""Workers that may die on one group, or during setup, before the group or the study fails."""


@dataclass(eq=False)
class PoolWorker:
    """The pool's view of a worker."""

    actor: Any
    doing: str = ""
    group: Assignment | None = None
    info: WorkerInfo | None = None


class WorkerPool:
    """Keeps a number of workers busy until the ledger is done."""

    def __init__(
        self,
        ray: ModuleType,
        ledger: Ledger,
        worker_class: Any,
        settings: WorkerSettings,
        packed_task: Any,
        group_size: int,
        begun_group_size: int | None = None,
    ) -> None:
        self._ray, self._ledger = ray, ledger
        self._worker_class, self._settings, self._packed_task = worker_class, settings, packed_task
        self._group_size, self._begun_group_size = group_size, begun_group_size
        self._busy: dict[Any, PoolWorker] = {}
        """By the pending answer."""
        self._idle: list[PoolWorker] = []
        self._lost_before_work = 0
        self._last_answer = time.monotonic()

    def run(self, workers: int) -> None:
        """Train all waiting trials with this number of workers."""
        try:
            for _ in range(workers):
                self._start_worker()
            while self._ledger.unfinished:
                if self._ledger.watch.stop():
                    self._save_all()
                    raise Interrupted
                while self._idle and self._ledger.waiting:
                    self._give_group(self._idle.pop())
                self._poll()
        finally:
            for worker in (*self._busy.values(), *self._idle):
                self._ray.kill(worker.actor)

    def _start_worker(self) -> None:
        self._ask(PoolWorker(self._worker_class.remote(self._settings)), "setup", versions(), self._packed_task)

    def _ask(self, worker: PoolWorker, what: str, *arguments: Any) -> None:
        worker.doing = what
        self._busy[getattr(worker.actor, what).remote(*arguments)] = worker

    def _give_group(self, worker: PoolWorker) -> None:
        assert worker.info is not None
        fits = worker.info.fits
        begun_limit = fits if self._begun_group_size is None else min(fits, self._begun_group_size)
        worker.group, checkpoint = self._ledger.take(min(self._group_size, fits), begun_limit)
        self._ask(worker, "begin", worker.group.trials, checkpoint)

    def _poll(self) -> None:
        """Wait briefly for an answer, and give its worker the next request."""
        ready, _ = self._ray.wait(list(self._busy), num_returns=1, timeout=POLL_SECONDS)
        if not ready and time.monotonic() - self._last_answer > PATIENCE_SECONDS:
            self._ledger.watch.say("waiting for the cluster: " + self._activities())
        if ready or time.monotonic() - self._last_answer > PATIENCE_SECONDS:
            self._last_answer = time.monotonic()
        for answer in ready:
            worker = self._busy.pop(answer)
            try:
                self._handle(worker, self._ray.get(answer))
            except self._ray.exceptions.RayTaskError as error:  # our own code failed: no other worker would do better
                raise UsageError(f"a worker failed at {worker.doing!r}: {_last_line(error)}") from error
            except self._ray.exceptions.RayError as error:  # the worker, its node or its answer is lost
                self._replace(worker, error)

    def _handle(self, worker: PoolWorker, answer: Any) -> None:
        if isinstance(answer, Failure):
            self._failed(worker, answer)
        elif isinstance(answer, WorkerInfo):
            worker.info, self._lost_before_work = answer, 0
            self._set_idle(worker)
        elif isinstance(answer, GroupProgress):
            assert worker.group is not None
            self._ledger.advanced(worker.group, answer)
            if answer.done:
                self._ask(worker, "results")
            else:
                self._ask(worker, "advance", worker.group.hopeless, self._ledger.wants_checkpoint(worker.group))
        else:
            assert isinstance(answer, Results)
            assert worker.group is not None
            self._ledger.finished(worker.group, answer)
            self._set_idle(worker)

    def _set_idle(self, worker: PoolWorker) -> None:
        worker.group = None
        self._idle.append(worker)

    def _failed(self, worker: PoolWorker, failure: Failure) -> None:
        if failure.kind == "setup":
            self._ray.kill(worker.actor)
            others = (*self._busy.values(), *self._idle)
            if not any(other.info or other.doing == "setup" for other in others):
                raise UsageError(failure.text)
            self._ledger.watch.say(f"going on without a worker: {failure.text}")
            return
        assert worker.group is not None
        assert worker.info is not None
        group, count = worker.group, len(worker.group.trials)
        if failure.kind == "computation":
            self._ledger.crashed(group, failure.text, worker.info.device)
        elif count == 1:
            raise UsageError(f"one trial does not fit into the memory of {worker.info.host}: {failure.text}")
        else:
            self._too_large(worker)
        self._set_idle(worker)

    def _too_large(self, worker: PoolWorker) -> None:
        """Let the trials of a group that did not fit into memory wait for smaller ones."""
        assert worker.group is not None
        assert worker.info is not None
        count = len(worker.group.trials)
        self._group_size = self._begun_group_size = min(self._group_size, count // 2)
        self._ledger.watch.say(
            f"{count} trials did not fit into the memory of {worker.info.host}: going on with groups of {self._group_size}"
        )
        self._ledger.split(worker.group)

    def _replace(self, worker: PoolWorker, error: Exception) -> None:
        """Replace a worker that died; its group goes to the next free worker."""
        if worker.group is None or worker.info is None:
            self._lost_before_work += 1
            if self._lost_before_work >= LOSSES_ALLOWED:
                raise UsageError(
                    f"workers cannot start: {_last_line(error)}. Every node needs the same mistrnn, torch and Python."
                ) from error
        elif isinstance(error, self._ray.exceptions.OutOfMemoryError) and len(worker.group.trials) > 1:
            self._too_large(worker)
        elif worker.group.losses + 1 >= LOSSES_ALLOWED:
            self._ledger.crashed(worker.group, f"{LOSSES_ALLOWED} workers died over it", worker.info.device)
        else:
            self._ledger.watch.say(
                f"a worker on {worker.info.host} died; {worker.group} will be taken up by another, from the last checkpoint"
            )
            self._ledger.lost(worker.group)
        self._start_worker()

    def _save_all(self) -> None:
        """Wait for all workers, and save the checkpoints of their groups."""
        for answer, worker in self._busy.items():
            if worker.group is None:
                continue
            try:
                found = self._ray.get(answer)
                if isinstance(found, Results):
                    self._ledger.finished(worker.group, found)
                elif isinstance(found, GroupProgress):
                    self._ledger.advanced(worker.group, found)
                    self._ledger.save(worker.group, self._ray.get(worker.actor.checkpoint.remote()))
            except self._ray.exceptions.RayError:
                continue  # its last checkpoint stands

    def _activities(self) -> str:
        doing = [worker.doing for worker in self._busy.values()]
        words = {"setup": "to start", "begin": "to begin", "advance": "in training", "results": "in the test"}
        return ", ".join(f"{doing.count(what)} workers {word}" for what, word in words.items() if what in doing)


def _last_line(error: Exception) -> str:
    """Return the last line of a Ray error, below the remote traceback."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1].rstrip(".") if lines else type(error).__name__
