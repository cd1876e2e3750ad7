"""One group of trials from its start, or a checkpoint, to its results. It reads and writes no files."""

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mistrnn.errors import UsageError
from mistrnn.tasks import Task
from mistrnn.training.group import Group
from mistrnn.training.memory import OutOfMemory, out_of_memory, trials_that_fit
from mistrnn.training.processes import ALONE, Processes
from mistrnn.training.search import Search, SearchData
from mistrnn.training.stacked import StackedTrials
from mistrnn.training.study import Study

Checkpoint = tuple[dict[str, Tensor], dict[str, Any]]
"""All that changes in a group, as tensors and as JSON."""

Experiment = Study | Search
"""The settings of trials: under the paper's protocol, or of a search on the caller's own cases."""
Data = Task | SearchData
"""The data that they train on."""

BEST_SHOWN = 3


class ComputationFailed(Exception):  # noqa: N818 (it carries the error)
    """Something broke inside the computation of a group: other groups may still succeed."""


@dataclass(frozen=True)
class GroupProgress:
    """The progress of a group."""

    step: int
    running: int
    diverged: int
    best_errors: tuple[float, ...]
    """The lowest validation errors so far, best first."""
    done: bool
    points: tuple[tuple[int, int, float, float], ...] = ()
    """New points of the learning curves: trial, step, training loss, validation error."""
    checkpoint: Checkpoint | None = None


@dataclass(frozen=True)
class Results:
    """The results of a finished group: the line, the curve, the parameters and the gradient norms of each trial."""

    rows: list[dict[str, Any]]
    curves: dict[int, list[tuple[int, float, float]]]
    models: dict[int, dict[str, Tensor]]
    gradients: dict[int, list[tuple[int, Tensor]]]


class Trainer:
    """A group in training."""

    def __init__(
        self,
        study: Experiment,
        task: Data,
        trials: Sequence[int],
        device: torch.device,
        checkpoint: Checkpoint | None = None,
        processes: Processes = ALONE,
    ) -> None:
        self._began = time.monotonic()
        self._seconds_before = 0.0
        self._study, self._device, self._processes = study, device, processes
        with _failures_named():
            self._group = _stacked(study, task, trials, device, processes)
            if checkpoint is not None:
                self._group.restore(*checkpoint)
        if checkpoint is not None:
            self._seconds_before = checkpoint[1]["seconds"]

    @property
    def done(self) -> bool:
        """Whether all steps are taken, or no trial is left to take them."""
        return self._group.done

    def ask_to_stop(self) -> None:
        """Ask all processes that train this group to stop."""
        self._group.stop_wanted = True

    @property
    def stopping(self) -> bool:
        """Whether all of them know that they stop now."""
        return self._group.stop_agreed or (self._processes.count == 1 and self._group.stop_wanted)

    def advance(self, seconds: float = 0.0, retire: Sequence[int] = (), *, checkpoint: bool = False) -> GroupProgress:
        """Give up the trials to retire, then train: for a step at least, to the next validation or for so long at most."""
        until = time.monotonic() + seconds
        with _failures_named():
            self._group.retire(retire)
            validated = False
            while not (self.done or validated):
                validated = self._group.advance()
                if time.monotonic() >= until:
                    break
        return self.progress(validated=validated, checkpoint=checkpoint)

    def progress(self, *, validated: bool = False, checkpoint: bool = False) -> GroupProgress:
        """Return where the group stands, with the newest points of its curves if it has just been validated."""
        records = self._group.records
        errors = sorted(record.best_error for record in records if record.best_step is not None)
        new = [(r.trial, *r.curve[-1]) for r in records if r.curve and r.curve[-1][0] == self._group.step]
        return GroupProgress(
            step=self._group.step,
            running=len(self._group.running),
            diverged=sum(record.diverged_step is not None for record in records),
            best_errors=tuple(errors[:BEST_SHOWN]),
            done=self.done,
            points=tuple(new) if validated else (),
            checkpoint=self.checkpoint() if checkpoint else None,
        )

    def checkpoint(self) -> Checkpoint:
        """Return the tensors and the JSON from which another trainer resumes."""
        tensors, rest = self._group.snapshot()
        return tensors, {**rest, "seconds": self._seconds()}

    def results(self) -> Results:
        """Measure every trial at its best validation."""
        group = self._group
        with _failures_named():
            measured = group.measured()
        rows = []
        for record, own in zip(group.records, measured, strict=True):
            rows.append(
                {
                    "trial": record.trial,
                    "status": record.status,
                    **self._study.settings_of(record.trial),
                    **own,
                    "steps": record.diverged_step or record.stopped_step or group.step,
                    "seconds": round(self._seconds(), 3),
                    "group": len(group.records),
                    "device": device_name(self._device),
                }
            )
        best = {name: value.cpu() for name, value in group.best.items()}
        return Results(
            rows,
            curves={record.trial: record.curve for record in group.records},
            models={
                record.trial: {name: value[k].contiguous() for name, value in best.items()}
                for k, record in enumerate(group.records)
                if record.best_step is not None
            },
            gradients={record.trial: record.gradients for record in group.records},
        )

    def _seconds(self) -> float:
        return self._seconds_before + time.monotonic() - self._began


def _stacked(
    study: Experiment, data: Data, trials: Sequence[int], device: torch.device, processes: Processes
) -> StackedTrials:
    """Return trials before their first step."""
    if isinstance(study, Search):
        assert isinstance(data, SearchData)
        return study.start(data, trials, device)
    assert isinstance(data, Task)
    return Group(study, data, trials, device, processes)


def fitting_trials(study: Experiment, data: Data, device: torch.device, share: float = 1.0) -> int:
    """Return how many trials can be expected to train at once in a share of the device's free memory; at least one."""
    if isinstance(study, Search):
        assert isinstance(data, SearchData)
        return study.trials_that_fit(data, device, share)
    assert isinstance(data, Task)
    return trials_that_fit(study, data, device, share)


def experiment_from(settings: dict[str, Any]) -> Experiment:
    """Return the experiment that `as_dict` described."""
    return Search.from_dict(settings) if "search" in settings else Study(**settings)


def device_name(device: torch.device) -> str:
    """Return how a device is called in a study's results."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


@contextlib.contextmanager
def _failures_named() -> Iterator[None]:
    """Raise `OutOfMemory` or `ComputationFailed` for errors of the computation."""
    try:
        yield
    except UsageError:  # another process was lost, for example
        raise
    except Exception as error:
        if out_of_memory(error):
            raise OutOfMemory(str(error)) from error
        raise ComputationFailed(f"{type(error).__name__}: {error}") from error
