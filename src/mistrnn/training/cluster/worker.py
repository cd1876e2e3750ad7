"""A worker: a process of the cluster that trains the groups of a study, one at a time."""

import platform
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

import mistrnn
from mistrnn._digest import code_digest
from mistrnn._memory import keep_freed_memory
from mistrnn.errors import UsageError
from mistrnn.tasks import Task, register_task
from mistrnn.training.cluster.shipping import Packed, unpacked
from mistrnn.training.embedded import choose_device
from mistrnn.training.memory import OutOfMemory
from mistrnn.training.study import Study
from mistrnn.training.sweep import study_task
from mistrnn.training.trainer import (
    Checkpoint,
    ComputationFailed,
    Data,
    GroupProgress,
    Results,
    Trainer,
    device_name,
    experiment_from,
    fitting_trials,
)

PIECE_SECONDS = 1.0
"""Seconds of training per request."""


@dataclass(frozen=True)
class WorkerSettings:
    """The settings of a worker."""

    study: dict[str, Any]
    data: str | None
    """The folder of the task's files, where the task itself is not sent."""
    data_identity: str | None
    device: str
    threads: int
    neighbours: int
    """Workers that share the memory of a node."""
    own_task: type[Task] | None = None
    """A task that has been registered where the study was started, and that no worker finds by its name."""


@dataclass(frozen=True)
class WorkerInfo:
    """The machine of a worker."""

    host: str
    device: str
    fits: int
    """How many trials it can train at once."""


@dataclass(frozen=True)
class Failure:
    """The answer of a worker to a request that failed."""

    kind: str
    """setup, memory or computation"""
    text: str


@cache
def versions() -> dict[str, str]:
    """Return the versions that all machines of a study must share."""
    return {
        "mistrnn": f"{mistrnn.__version__} (code {code_digest()})",
        "torch": torch.__version__.split("+")[0],
    }


class Worker:
    """Trains groups on request; returns `Failure` for errors of its setup or its computation."""

    def __init__(self, settings: WorkerSettings) -> None:
        self._settings = settings
        self._trainer: Trainer | None = None

    def setup(self, expected: dict[str, str], packed_task: Packed | None) -> WorkerInfo | Failure:
        """Compare versions and data with those of the driver, and load the task."""
        differences = [
            f"{name} {here} here, {expected[name]} there" for name, here in versions().items() if here != expected[name]
        ]
        if differences:
            return self._failure("setup", f"versions differ from where the study was started: {'; '.join(differences)}")
        settings = self._settings
        try:
            keep_freed_memory()
            torch.set_num_threads(settings.threads)
            if settings.own_task is not None:
                register_task(settings.own_task)
            self._study = experiment_from(settings.study)
            self._device = choose_device(settings.device)
            task = unpacked(packed_task) if packed_task else self._own_task()
            if task.data_identity != settings.data_identity:
                return self._failure(
                    "setup", f"other data here ({task.data_identity}) than there ({settings.data_identity})"
                )
            self._task: Data = task.to(self._device)
            fits = fitting_trials(self._study, self._task, self._device, 1 / settings.neighbours)
        except UsageError as error:
            return self._failure("setup", str(error))
        return WorkerInfo(platform.node(), device_name(self._device), fits)

    def _own_task(self) -> Data:
        assert isinstance(self._study, Study)  # the cases of a search are always sent
        return study_task(self._study, Path(self._settings.data) if self._settings.data else None)

    def begin(self, trials: Sequence[int], checkpoint: Checkpoint | None) -> GroupProgress | Failure:
        """Start a group, or resume it from a checkpoint."""
        self._trainer = None  # its memory is free before the next is made
        try:
            self._trainer = Trainer(self._study, self._task, trials, self._device, checkpoint)
            return self._trainer.progress()
        except (OutOfMemory, ComputationFailed) as error:
            return self._broken(error)

    def advance(self, retire: Sequence[int], checkpoint: bool) -> GroupProgress | Failure:
        """Train for about `PIECE_SECONDS`."""
        assert self._trainer is not None
        try:
            return self._trainer.advance(PIECE_SECONDS, retire, checkpoint=checkpoint)
        except (OutOfMemory, ComputationFailed) as error:
            return self._broken(error)

    def checkpoint(self) -> Checkpoint:
        """Return the checkpoint from which another worker resumes."""
        assert self._trainer is not None
        return self._trainer.checkpoint()

    def results(self) -> Results | Failure:
        """Return the results of a finished group."""
        assert self._trainer is not None
        try:
            return self._trainer.results()
        except (OutOfMemory, ComputationFailed) as error:
            return self._broken(error)

    def _broken(self, error: Exception) -> Failure:
        self._trainer = None
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
        return self._failure("memory" if isinstance(error, OutOfMemory) else "computation", str(error))

    def _failure(self, kind: str, text: str) -> Failure:
        return Failure(kind, f"{text} (worker on {platform.node()})" if kind == "setup" else text)
