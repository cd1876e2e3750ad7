"""The engine that computes in this process: one group after the other."""

from pathlib import Path
from typing import Protocol

import torch

from mistrnn.errors import UsageError
from mistrnn.tasks import Task
from mistrnn.training.ledger import Assignment, Interrupted, Ledger
from mistrnn.training.memory import OutOfMemory, memory_named, trials_that_fit
from mistrnn.training.run import Checkpoint, ComputationFailed, Run, device_name


class Engine(Protocol):
    """Who computes a study's groups."""

    def check(self, device: str) -> None:
        """Refuse what cannot work, before anything is read or written."""

    def run(self, ledger: Ledger, task: Task, *, device: str, data: Path | None, group_size: int | None) -> None:
        """Train all that waits in the ledger; `Interrupted` when the ledger's watch asks to stop."""


class Embedded:
    """Computes here, on one device."""

    def check(self, device: str) -> None:
        """Refuse a device that is not there."""
        choose_device(device)

    def run(self, ledger: Ledger, task: Task, *, device: str, data: Path | None, group_size: int | None) -> None:
        """Train one group after the other."""
        place = choose_device(device)
        task = task.to(place)
        while ledger.waiting:
            taken = ledger.take(self._settled_group_size(ledger, task, place, group_size))
            assert taken is not None
            group, checkpoint = taken
            try:
                _train(ledger, task, place, group, checkpoint)
            except OutOfMemory as error:
                if len(group.trials) == 1:
                    raise UsageError(f"one trial does not fit into the memory of {place}: {error}") from error
                group_size = len(group.trials) // 2
                ledger.watch.say(
                    f"{len(group.trials)} trials did not fit into the memory of {place}: "
                    f"going on with groups of {group_size}"
                )
                ledger.split(group)
                ledger.set_group_size(group_size)
            except ComputationFailed as error:
                ledger.crashed(group, str(error), device_name(place))
            if place.type == "cuda":
                torch.cuda.empty_cache()

    def _settled_group_size(self, ledger: Ledger, task: Task, device: torch.device, asked: int | None) -> int:
        """Return how many trials train at once: decided once for a study, so that a resumed one runs the same groups."""
        settled, study = ledger.group_size(), ledger.study
        if settled is None or (asked is not None and asked != settled):
            with memory_named(f"a trial of {study.layer} with {study.hidden} units"):
                settled = asked or trials_that_fit(study, task, device)
            if settled < ledger.waiting:
                reason = "" if asked else " do not fit into memory at once: they"
                ledger.watch.say(f"{ledger.waiting} trials{reason} run in groups of {settled}")
            ledger.set_group_size(settled)
        return settled


def _train(ledger: Ledger, task: Task, device: torch.device, group: Assignment, checkpoint: Checkpoint | None) -> None:
    """Train a group to its end, saving it now and then, and when the watch asks to stop."""
    run = Run(ledger.study, task, group.trials, device, checkpoint)
    while not run.done:
        ledger.advanced(group, run.advance(retire=group.hopeless, checkpoint=ledger.wants_checkpoint(group)))
        if ledger.watch.stop():
            ledger.save(group, run.checkpoint())
            raise Interrupted
    ledger.finished(group, run.results())


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
