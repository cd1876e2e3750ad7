"""The engine that computes in this process: one group after the other."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch

from mistrnn.errors import UsageError
from mistrnn.training.ledger import Assignment, Interrupted, Ledger
from mistrnn.training.memory import OutOfMemory, memory_named
from mistrnn.training.processes import ALONE, Processes, process_count
from mistrnn.training.trainer import (
    Checkpoint,
    ComputationFailed,
    Data,
    Experiment,
    Trainer,
    device_name,
    fitting_trials,
)

REFUSED = "refused"
"""The order of the first process to the others when it cannot begin."""


class Engine(Protocol):
    """Computes the groups of a study."""

    def check(self, device: str) -> None:
        """Refuse invalid settings before anything is read or written."""

    def run(self, ledger: Ledger, task: Data, *, device: str, data: Path | None, group_size: int | None) -> None:
        """Train all that waits in the ledger; `Interrupted` when the ledger's watch asks to stop."""


@dataclass(frozen=True)
class Embedded:
    """Computes here, on one device, perhaps together with other processes that hold a share of every batch."""

    processes: Processes = ALONE

    def check(self, device: str) -> None:
        """Refuse a device that is not there."""
        choose_device(device)

    def run(self, ledger: Ledger, task: Data, *, device: str, data: Path | None, group_size: int | None) -> None:
        """Train one group after the other."""
        place = choose_device(device)
        task = task.to(place)
        while ledger.waiting:
            group, checkpoint = ledger.take(self._settled_group_size(ledger, task, place, group_size))
            self.processes.broadcast((group.trials, checkpoint))
            try:
                self._train(ledger, task, place, group, checkpoint)
            except OutOfMemory as error:
                if len(group.trials) == 1 or self.processes.count > 1:
                    what = "one trial does" if len(group.trials) == 1 else f"{len(group.trials)} trials do"
                    raise UsageError(f"{what} not fit into the memory of {place}: {error}") from error
                group_size = len(group.trials) // 2
                ledger.watch.say(
                    f"{len(group.trials)} trials did not fit into the memory of {place}: "
                    f"going on with groups of {group_size}"
                )
                ledger.split(group)
                ledger.set_group_size(group_size)
            except ComputationFailed as error:
                if self.processes.count > 1:
                    raise  # the others wait for a sum that never comes: torchrun ends them
                ledger.crashed(group, str(error), device_name(place))
            if place.type == "cuda":
                torch.cuda.empty_cache()
        self.processes.broadcast(None)

    def _train(
        self,
        ledger: Ledger,
        task: Data,
        device: torch.device,
        group: Assignment,
        checkpoint: Checkpoint | None,
    ) -> None:
        """Train a group to its end, saving it now and then, and when the watch asks to stop."""
        trainer = Trainer(ledger.study, task, group.trials, device, checkpoint, self.processes)
        while not trainer.done:
            ledger.advanced(group, trainer.advance(retire=group.hopeless, checkpoint=ledger.wants_checkpoint(group)))
            if ledger.watch.stop():
                trainer.ask_to_stop()
            if trainer.stopping:
                ledger.save(group, trainer.checkpoint())
                self.processes.broadcast()  # the other processes exit only now, because torchrun ends all when one exits
                raise Interrupted
        ledger.finished(group, trainer.results())

    def follow(self, study: Experiment, task: Data, device: str, stop: Callable[[], bool]) -> None:
        """Train the groups that the first process broadcasts; only the first process writes the study's folder."""
        place = choose_device(device)
        task = task.to(place)
        while (order := self.processes.broadcast()) is not None:
            if order == REFUSED:
                raise Interrupted
            try:
                trainer = Trainer(study, task, order[0], place, order[1], self.processes)
                while not trainer.done:
                    trainer.advance()
                    if stop():
                        trainer.ask_to_stop()
                    if trainer.stopping:
                        self.processes.broadcast()
                        raise Interrupted
                trainer.results()
            except OutOfMemory as error:
                raise UsageError(
                    f"a share of {len(order[0])} trials does not fit into the memory of {place}: {error}"
                ) from error

    def _settled_group_size(self, ledger: Ledger, task: Data, device: torch.device, asked: int | None) -> int:
        """Return how many trials train at once: decided once for a study, so that a resumed one runs the same groups."""
        settled, study = ledger.group_size(), ledger.study
        if settled is None or (asked is not None and asked != settled):
            with memory_named(study.trial_name):
                neighbours = int(os.environ.get("LOCAL_WORLD_SIZE", "1")) if device.type == "cpu" else 1
                settled = asked or fitting_trials(study, task, device, 1 / neighbours)
            if settled < ledger.waiting:
                reason = "" if asked else " do not fit into memory at once: they"
                ledger.watch.say(f"{ledger.waiting} trials{reason} run in groups of {settled}")
            ledger.set_group_size(settled)
        return settled


def choose_device(device: str) -> torch.device:
    """Return the device of that name; auto is a GPU if there is one."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device.startswith("cuda:") and process_count() > 1:
        raise UsageError(f"expected device cuda under torchrun, which gives each process its own GPU, got {device!r}.")
    if device == "cuda" and process_count() > 1:
        device = f"cuda:{os.environ.get('LOCAL_RANK', '0')}"  # torchrun gives each process of a machine its own number
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
