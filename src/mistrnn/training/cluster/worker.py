"""A worker: a process of the cluster that trains the groups of a study, one at a time."""

import platform
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

import mistrnn
from mistrnn._memory import keep_freed_memory
from mistrnn.errors import UsageError
from mistrnn.tasks import Task, register_task
from mistrnn.training.cluster.shipping import Packed, unpacked
from mistrnn.training.embedded import choose_device
from mistrnn.training.memory import OutOfMemory
from mistrnn.training.provenance import code_digest
from mistrnn.training.run import (
    Checkpoint,
    ComputationFailed,
    Data,
    Results,
    Run,
    Standing,
    device_name,
    experiment_from,
    fitting_trials,
)
from mistrnn.training.study import Study
from mistrnn.training.sweep import study_task

PIECE_SECONDS = 1.0
"""How long a worker trains before it answers."""


@dataclass(frozen=True)
class Post:
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
class Desk:
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
    """Return what must be the same wherever trials of one study run."""
    return {
        "mistrnn": f"{mistrnn.__version__} (code {code_digest()})",
        "torch": torch.__version__.split("+")[0],
    }


class Worker:
    """Answers `Failure` where something is wrong with its place or its computation; dies only when it is killed."""

    def __init__(self, post: Post) -> None:
        self._post = post
        self._run: Run | None = None

    def settle(self, expected: dict[str, str], parts: Packed | None) -> Desk | Failure:
        """Make sure that everything is here as it is where the study was started."""
        differences = [
            f"{name} {here} here, {expected[name]} there" for name, here in versions().items() if here != expected[name]
        ]
        if differences:
            return self._failure("setup", f"versions differ from where the study was started: {'; '.join(differences)}")
        post = self._post
        try:
            keep_freed_memory()
            torch.set_num_threads(post.threads)
            if post.own_task is not None:
                register_task(post.own_task)
            self._study = experiment_from(post.study)
            self._device = choose_device(post.device)
            task = unpacked(parts) if parts else self._own_task()
            if task.data_identity != post.data_identity:
                return self._failure(
                    "setup", f"other data here ({task.data_identity}) than there ({post.data_identity})"
                )
            self._task: Data = task.to(self._device)
            fits = fitting_trials(self._study, self._task, self._device, 1 / post.neighbours)
        except UsageError as error:
            return self._failure("setup", str(error))
        return Desk(platform.node(), device_name(self._device), fits)

    def _own_task(self) -> Data:
        assert isinstance(self._study, Study)  # the cases of a search are always sent
        return study_task(self._study, Path(self._post.data) if self._post.data else None)

    def begin(self, trials: Sequence[int], checkpoint: Checkpoint | None) -> Standing | Failure:
        """Take up a group."""
        self._run = None  # its memory is free before the next is made
        try:
            self._run = Run(self._study, self._task, trials, self._device, checkpoint)
            return self._run.standing()
        except (OutOfMemory, ComputationFailed) as error:
            return self._broken(error)

    def advance(self, retire: Sequence[int], checkpoint: bool) -> Standing | Failure:
        """Train for a moment."""
        assert self._run is not None
        try:
            return self._run.advance(PIECE_SECONDS, retire, checkpoint=checkpoint)
        except (OutOfMemory, ComputationFailed) as error:
            return self._broken(error)

    def checkpoint(self) -> Checkpoint:
        """Return what another worker can go on from."""
        assert self._run is not None
        return self._run.checkpoint()

    def results(self) -> Results | Failure:
        """Return what a group that is done leaves."""
        assert self._run is not None
        try:
            return self._run.results()
        except (OutOfMemory, ComputationFailed) as error:
            return self._broken(error)

    def _broken(self, error: Exception) -> Failure:
        self._run = None
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
        return self._failure("memory" if isinstance(error, OutOfMemory) else "computation", str(error))

    def _failure(self, kind: str, text: str) -> Failure:
        return Failure(kind, f"{text} (worker on {platform.node()})" if kind == "setup" else text)
