"""Giving up hopeless trials: asynchronous successive halving (Li et al. 2020).

asha     as Optuna decides it: a trial is judged when it has taken 1/16 and 1/4 of the steps, and goes on only if its validation
         error is among the best quarter of all trials that have come so far.
halving  of a search: a trial is judged once, at half of the steps, and goes on if it is in the better half.

Which trials have come so far depends on their order: in one process it follows from the seed, on a cluster from the speed of
the workers.
"""

from collections.abc import Iterable
from typing import Protocol

from mistrnn.errors import UsageError
from mistrnn.training.trainer import Experiment

REDUCTION = 4
FIRST_SHARE = REDUCTION**2
"""The first judgement comes after 1 / 16 of the steps."""


class Judge(Protocol):
    """Tells hopeless trials from others by their validation errors."""

    def recall(self, points: Iterable[tuple[int, int, float]]) -> set[int]:
        """Take in the points of earlier sessions, and return the trials that were hopeless when last seen.

        A point is (trial, step, validation error).
        """

    def hopeless(self, points: Iterable[tuple[int, int, float, float]]) -> list[int]:
        """Return which of the trials that have just been validated had better stop: trial, step, loss, error."""


def judge_of(study: Experiment) -> Judge | None:
    """Return the judge of an experiment, if hopeless trials are given up."""
    if study.early_stop is None:
        return None
    return Asha(study) if study.early_stop == "asha" else Halving(study)


class Halving:
    """Retires the worse half of the trials at half of the steps."""

    def __init__(self, study: Experiment) -> None:
        interval = study.validation_interval
        self._rung = interval * max(1, -(-study.total_steps // (2 * interval)))
        """The first validation at or after half of the steps."""
        self._last_step = study.total_steps
        self._errors: dict[int, float] = {}

    def recall(self, points: Iterable[tuple[int, int, float]]) -> set[int]:
        """Take in the points of earlier sessions, and return the worse half."""
        return set(self.hopeless([(trial, step, 0.0, error) for trial, step, error in points]))

    def hopeless(self, points: Iterable[tuple[int, int, float, float]]) -> list[int]:
        """Return the trials that have just reached the half of the steps and are in the worse half of all that have."""
        new = {trial: error for trial, step, _, error in points if step == self._rung < self._last_step}
        self._errors |= new
        ranked = sorted(self._errors, key=lambda trial: (self._errors[trial], trial))
        return sorted(set(ranked[(len(ranked) + 1) // 2 :]) & set(new))


class Asha:
    """Judges the trials of a study by their validation errors."""

    def __init__(self, study: Experiment) -> None:
        try:
            import optuna
        except ModuleNotFoundError as error:
            raise UsageError(
                "early stopping needs Optuna; install it with: pip install 'mistrnn[early-stopping]'"
            ) from error
        first = max(study.validation_interval, -(-study.total_steps // FIRST_SHARE))
        verbosity = optuna.logging.get_verbosity()
        optuna.logging.set_verbosity(optuna.logging.WARNING)  # it announces every study
        self._study = optuna.create_study(
            pruner=optuna.pruners.SuccessiveHalvingPruner(min_resource=first, reduction_factor=REDUCTION)
        )
        optuna.logging.set_verbosity(verbosity)
        self._trials: dict[int, optuna.Trial] = {}
        self._verdicts: dict[tuple[int, int], bool] = {}
        """The verdict on a trial at a step: a group that resumes from a checkpoint arrives there again."""
        self._last_step = study.total_steps

    def recall(self, points: Iterable[tuple[int, int, float]]) -> set[int]:
        """Take in the points of earlier sessions in their order, and return the trials that were hopeless at their last point.

        A point is (trial, step, validation error).
        """
        verdicts = {trial: self._is_hopeless(trial, step, error) for trial, step, error in points}
        return {trial for trial, hopeless in verdicts.items() if hopeless}

    def hopeless(self, points: Iterable[tuple[int, int, float, float]]) -> list[int]:
        """Return which of the trials that have just been validated had better stop: trial, step, loss, error."""
        return [trial for trial, step, _, error in points if self._is_hopeless(trial, step, error)]

    def _is_hopeless(self, trial: int, step: int, error: float) -> bool:
        if (trial, step) not in self._verdicts:
            if trial not in self._trials:
                self._trials[trial] = self._study.ask()
            own = self._trials[trial]
            own.report(error, step)
            self._verdicts[trial, step] = own.should_prune() and step < self._last_step
        return self._verdicts[trial, step]
