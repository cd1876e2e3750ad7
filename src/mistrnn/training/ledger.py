"""The state of a running study: waiting groups, groups in training, their progress. All writing goes through here."""

import time
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field
from typing import Any

from mistrnn.training.early_stopping import judge_of
from mistrnn.training.stacked import part_of
from mistrnn.training.store import Store
from mistrnn.training.tensorboard import Log
from mistrnn.training.trainer import BEST_SHOWN, Checkpoint, Experiment, GroupProgress, Results


class Interrupted(Exception):  # noqa: N818 (nothing went wrong)
    """The study was asked to stop, and did, with a checkpoint written."""


@dataclass(frozen=True)
class Progress:
    """The progress of a running study."""

    step: int
    """Steps that a trial has taken, on average over all trials."""
    steps: int
    trials: int
    """Trials in training, in all groups that train at present."""
    running: int
    """Those of them that take steps still."""
    diverged: int
    best_errors: tuple[float, ...]
    """The lowest validation errors of the trials in training so far, best first."""
    finished_trials: int
    all_trials: int
    groups: int = 1
    """Groups that train at present."""


@dataclass(frozen=True)
class Watch:
    """How the caller follows a study."""

    report: Callable[[Progress], None]
    say: Callable[[str], None]
    stop: Callable[[], bool]
    checkpoint_seconds: float
    log: Log | None


@dataclass(eq=False)
class Assignment:
    """Trials that train as one group."""

    trials: tuple[int, ...]
    progress: GroupProgress | None = None
    """Their progress when last reported."""
    saved: float = field(default_factory=time.monotonic)
    """When their checkpoint was written last."""
    losses: int = 0
    """How many of their workers were lost since the last checkpoint."""
    hopeless: tuple[int, ...] = ()
    """Trials that had better stop before the next step."""

    def __str__(self) -> str:
        first, last = self.trials[0], self.trials[-1]
        return f"trial {first}" if first == last else f"trials {first} to {last}"


class Ledger:
    """Gives out groups to train, and keeps their results."""

    def __init__(self, study: Experiment, store: Store, wanted: Sequence[int], watch: Watch) -> None:
        self.study, self.watch = study, watch
        self._store, self._wanted = store, list(wanted)
        complete = {row["trial"] for row in store.trials() if row["status"] != "crashed"}
        self._missing = [trial for trial in self._wanted if trial not in complete]
        self._finished = len(complete)
        self._begun = self._groups_begun(complete)
        """Groups that have a checkpoint, or have been lost on the way: they go first."""
        self._training: list[Assignment] = []
        self._judge = judge_of(study)
        if self._judge is not None:
            hopeless = self._judge.recall(self._points_so_far())
            for group in self._begun:
                group.hopeless = tuple(hopeless & set(group.trials))

    @property
    def waiting(self) -> int:
        """How many trials wait to be trained."""
        return len(self._missing)

    @property
    def unfinished(self) -> bool:
        """Whether anything waits or trains."""
        return bool(self._missing or self._training)

    def take(self, limit: int, begun_limit: int | None = None) -> tuple[Assignment, Checkpoint | None]:
        """Return the next group, with the checkpoint to go on from if there is one.

        A new group has `limit` trials at most; one that has been begun goes on whole if it has no more than `begun_limit`, else
        in parts.
        """
        begun = {trial for group in self._begun for trial in group.trials}
        fresh = [trial for trial in self._missing if trial not in begun]
        fitting = [group for group in self._begun if len(group.trials) <= (begun_limit or limit)]
        if not fitting and not fresh:
            fitting = self._in_parts(self._begun.pop(0), begun_limit or limit)
            self._begun = [*fitting, *self._begun]
        checkpoint = None
        if fitting:
            group = fitting[0]
            checkpoint = self._checkpoint_of(group)
            if checkpoint is not None:
                self.watch.say(f"going on with {group} from step {checkpoint[1]['step']}")
        else:
            stack = self.study.stack_of(fresh[0])
            group = Assignment(tuple([trial for trial in fresh if self.study.stack_of(trial) == stack][:limit]))
        self._begun = [other for other in self._begun if not set(other.trials) & set(group.trials)]
        self._missing = [trial for trial in self._missing if trial not in group.trials]
        group.saved = time.monotonic()
        self._training.append(group)
        return group, checkpoint

    def wants_checkpoint(self, group: Assignment) -> bool:
        """Whether it is time to save a group."""
        return time.monotonic() - group.saved >= self.watch.checkpoint_seconds

    def save(self, group: Assignment, checkpoint: Checkpoint) -> None:
        """Write a group's checkpoint."""
        self._store.save_checkpoint(group.trials[0], *checkpoint)
        group.saved, group.losses = time.monotonic(), 0

    def advanced(self, group: Assignment, progress: GroupProgress) -> None:
        """Note where a group stands now, and which of its trials are hopeless."""
        group.progress = progress
        if progress.checkpoint is not None:
            self.save(group, progress.checkpoint)
        if self.watch.log is not None:
            for trial, step, loss, error in progress.points:
                self.watch.log.add({"train_loss": loss, "validation_error": error}, step, run=f"trial-{trial}")
        self.watch.report(self._progress())
        if self._judge is not None and progress.points:
            group.hopeless = tuple(self._judge.hopeless(progress.points))

    def finished(self, group: Assignment, results: Results) -> None:
        """Keep a group's results."""
        self._store.finish(results.rows, results.curves, results.models, results.gradients)
        self._store.drop_checkpoint(group.trials[0])
        self._training.remove(group)
        self._finished += len(group.trials)

    def crashed(self, group: Assignment, reason: str, device: str) -> None:
        """Keep that a group's computation broke; its trials are not tried again in this run."""
        self.watch.say(f"{group} crashed: {reason}. The same command tries them again.")
        unknown = ("val_error", "test_error", "best_step", "steps", "parameters", "seconds")
        rows: list[dict[str, Any]] = [
            {
                "trial": trial,
                "status": "crashed",
                **self.study.settings_of(trial),
                **dict.fromkeys(unknown),
                "group": len(group.trials),
                "device": device,
                "error": reason,
            }
            for trial in group.trials
        ]
        self._store.finish(rows, {}, {})
        self._training.remove(group)

    def lost(self, group: Assignment) -> None:
        """Let a group go on from its checkpoint elsewhere, because its worker is gone."""
        group.losses += 1
        self._put_back(group)
        self._begun.insert(0, group)

    def split(self, group: Assignment) -> None:
        """Let the trials of a group that was too large wait again, for smaller ones; from its checkpoint, if it has one."""
        self._put_back(group)
        if self._checkpoint_of(group) is not None:
            self._begun.insert(0, group)

    def _in_parts(self, group: Assignment, limit: int) -> list[Assignment]:
        """Return a group that was begun, or parts of it with so many trials at most, each with its part of the checkpoint."""
        if len(group.trials) <= limit:
            return [group]
        parts = [group.trials[begin : begin + limit] for begin in range(0, len(group.trials), limit)]
        self.watch.say(f"{group} go on in groups of {limit}")
        checkpoint = self._checkpoint_of(group)
        if checkpoint is not None:
            self._save_parts(checkpoint, parts)
        return [
            Assignment(part, losses=group.losses, hopeless=tuple(set(group.hopeless) & set(part))) for part in parts
        ]

    def _save_parts(self, checkpoint: Checkpoint, parts: Sequence[tuple[int, ...]]) -> None:
        """Write a checkpoint as several. The one that takes the place of the whole comes last: until then nothing is lost."""
        first = _trials_in(checkpoint)[0]
        for part in sorted(parts, key=lambda part: part[0] == first):
            self._store.save_checkpoint(part[0], *part_of(*checkpoint, part))
        if all(part[0] != first for part in parts):
            self._store.drop_checkpoint(first)

    def _put_back(self, group: Assignment) -> None:
        self._training.remove(group)
        group.progress = None
        self._missing = sorted({*self._missing, *group.trials})

    def group_size(self) -> int | None:
        """Return how many trials train at once in one process, if that has been decided."""
        return self._store.group_size()

    def set_group_size(self, size: int) -> None:
        """Decide how many trials train at once in one process."""
        self._store.set_group_size(size)

    def _checkpoint_of(self, group: Assignment) -> Checkpoint | None:
        """Return a group's checkpoint; a file of the same name may be that of another group with the same first trial."""
        checkpoint = self._store.load_checkpoint(group.trials[0])
        if checkpoint is None or _trials_in(checkpoint) != group.trials:
            return None
        return checkpoint

    def _groups_begun(self, complete: Container[int]) -> list[Assignment]:
        """Return the groups with a checkpoint, without trials that are complete or not wanted now, which keep their own."""
        groups: list[Assignment] = []
        for first in self._store.checkpoints():
            checkpoint = self._store.load_checkpoint(first)
            assert checkpoint is not None
            trials = _trials_in(checkpoint)
            wanted = tuple(trial for trial in trials if trial in self._missing)
            later = tuple(trial for trial in trials if trial not in complete and trial not in wanted)
            if wanted != trials and later != trials:
                self._save_parts(checkpoint, [part for part in (wanted, later) if part])
            if wanted:
                groups.append(Assignment(wanted))
        return groups

    def _points_so_far(self) -> list[tuple[int, int, float]]:
        """Return the validation errors of earlier sessions, in the order of their steps: trial, step, error."""
        columns = self._store.curves()
        found = list(
            zip(*(columns[name].tolist() for name in ("trial", "step", "val_error")), strict=True),
        )
        for group in self._begun:
            checkpoint = self._store.load_checkpoint(group.trials[0])
            assert checkpoint is not None
            curves = checkpoint[0]["curves"].tolist()  # record, step, loss, error
            found += [(group.trials[int(record)], int(step), error) for record, step, _, error in curves]
        return sorted(found, key=lambda point: (point[1], point[0]))

    def _progress(self) -> Progress:
        standings = [(group, group.progress) for group in self._training if group.progress is not None]
        taken = sum(len(group.trials) * progress.step for group, progress in standings)
        taken += self._finished * self.study.total_steps
        everything = self._finished + self.waiting + sum(len(group.trials) for group in self._training)
        return Progress(
            step=taken // max(1, everything),
            steps=self.study.total_steps,
            trials=sum(len(group.trials) for group in self._training),
            running=sum(progress.running for _, progress in standings),
            diverged=sum(progress.diverged for _, progress in standings),
            best_errors=tuple(sorted(error for _, s in standings for error in s.best_errors)[:BEST_SHOWN]),
            finished_trials=self._finished,
            all_trials=everything,
            groups=len(self._training),
        )


def _trials_in(checkpoint: Checkpoint) -> tuple[int, ...]:
    return tuple(record["trial"] for record in checkpoint[1]["records"])
