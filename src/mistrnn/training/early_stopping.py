"""Giving up hopeless trials: asynchronous successive halving (Li et al. 2020), as Optuna decides it.

A trial is judged when it has taken 1/16 and 1/4 of the steps: it goes on only if its validation error is among the best
quarter of all trials that have come so far. Which trials those are depends on the order in which they arrive: in one
process it follows from the seed, on a cluster from who is faster.
"""

from collections.abc import Iterable

from mistrnn.errors import UsageError
from mistrnn.training.study import Study

REDUCTION = 4
FIRST_SHARE = REDUCTION**2
"""The first judgement comes after 1 / 16 of the steps."""


class Asha:
    """Judges the trials of a study by their validation errors."""

    def __init__(self, study: Study) -> None:
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
        """What was said about a trial at a step: a group that went on from a checkpoint arrives there again."""
        self._last_step = study.total_steps

    def recall(self, points: Iterable[tuple[int, int, float]]) -> set[int]:
        """Take in what was measured in earlier sessions, in its order, and return who was hopeless when last seen.

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
