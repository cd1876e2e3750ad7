"""A search for settings, as the estimators run it: many networks of random settings, the best of which answer together."""

import contextlib
import math
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from mistrnn.estimators._fitting import Epoch, Report
from mistrnn.models import Standardisation
from mistrnn.training.examples import Examples
from mistrnn.training.fitting import Course, Recipe, schedule
from mistrnn.training.ledger import Progress
from mistrnn.training.search import RACE_SHARE, Search, SearchData
from mistrnn.training.tuning import RACE, REFIT, Follow, Tuned, tune


@dataclass(frozen=True)
class Trials:
    """The settings of the trials, and what their networks share.

    Args:
        count: how many there are.
        best: how many of them are trained on all cases in the end, and answer together.
        recipe: the settings of the first trial, around which those of the others are drawn.
        shapes: arguments of `SequenceNetwork` by which the networks of the trials differ.
        arguments: those that all networks share.
        standardisation: of the inputs.
    """

    count: int
    best: int
    recipe: Recipe
    shapes: Sequence[dict[str, Any]]
    arguments: dict[str, Any]
    standardisation: Standardisation

    def stage(self, name: str, cases: Examples, held: Examples | None, course: Course) -> tuple[Search, SearchData]:
        """Return the settings and the cases of the race or the refit; `course` is that of a single fit on these cases."""
        every = course.validate_every
        steps = max(every, round(RACE_SHARE * course.steps)) if name == RACE else course.steps
        settings = Search(
            trials=self.count,
            stage=name,  # type: ignore[arg-type]
            steps=steps,
            validate_every=every,
            batch_size=course.batch_size,
            seed=course.seed,
            recipe=self.recipe,
            shapes=list(self.shapes),
            loss=course.loss,
            piece_length=course.piece_length,
        )
        return settings, SearchData(cases, held, self.standardisation, dict(self.arguments))


def search(
    trials: Trials,
    parts: tuple[Examples, Examples, Examples],
    course: Callable[[Examples], Course],
    folder: str | PathLike[str] | None,
    *,
    device: str,
    engine: Any,
    report: Report,
    stop: Callable[[], bool],
) -> tuple[Tuned, list[Epoch]]:
    """Race the trials on a part of the cases and train the best of them on all; return them and their learning curve.

    Args:
        trials: their settings.
        parts: the cases that the race trains on, those that it compares trials on, and all cases.
        course: the course of a single fit on some cases.
        folder: where the search is kept; it is forgotten at the end if None.
        device: cpu, cuda or auto.
        engine: where to compute; this process if None.
        report: called with an `Epoch` whenever the trials of a stage have gone through its cases once more.
        stop: asked after each step; if it returns True, the search is saved and `Interrupted` raised.
    """
    race_on, compare_on, everything = parts
    race = trials.stage(RACE, race_on, compare_on, course(race_on))
    refit = trials.stage(REFIT, everything, None, course(everything))
    with _kept(folder) as place:
        reporter = _Reporter(report, stop, trials.recipe, {RACE: race[0], REFIT: refit[0]})
        follow = Follow(report=reporter.report, stop=reporter.stop)
        found = tune(race, refit, trials.best, place, device=device, engine=engine, follow=follow)
    return found, _history(found, trials.recipe)


def _history(found: Tuned, recipe: Recipe) -> list[Epoch]:
    """Return the mean training loss of the chosen networks after each epoch."""
    count, last = len(found.losses[0]), found.losses[0][-1][0]
    epochs = []
    for number, points in enumerate(zip(*found.losses, strict=True), 1):
        loss = math.fsum(loss for _, loss in points) / len(points)
        rate = recipe.learning_rate * schedule(points[0][0], last)
        epochs.append(Epoch(number, count, rate, loss, None, count, REFIT))
    return epochs


class _Reporter:
    """Turns the progress of a search into epochs, and remembers that it was asked to stop."""

    def __init__(self, report: Report, stop: Callable[[], bool], recipe: Recipe, stages: dict[str, Search]) -> None:
        self._report, self._stop, self._recipe, self._stages = report, stop, recipe, stages
        self._newest = ("", 0)
        self._lowest: float | None = None
        self._asked = False

    def stop(self) -> bool:
        return self._asked or self._stop()

    def report(self, stage: str, progress: Progress) -> None:
        if stage == RACE and progress.best_errors:  # of the trials in training alone
            self._lowest = min(progress.best_errors[0], math.inf if self._lowest is None else self._lowest)
        every = self._stages[stage].validate_every
        count = math.ceil(progress.steps / every)
        epoch = count if progress.step >= progress.steps else progress.step // every
        if epoch == 0 or (stage, epoch) == self._newest:
            return
        self._newest = (stage, epoch)
        lowest = self._lowest if stage == RACE else None
        rate = self._recipe.learning_rate * schedule(progress.step, progress.steps)
        if self._report(Epoch(epoch, count, rate, None, lowest, epoch, stage)):
            self._asked = True


@contextlib.contextmanager
def _kept(folder: str | PathLike[str] | None) -> Iterator[Path]:
    if folder is not None:
        yield Path(folder)
        return
    with tempfile.TemporaryDirectory() as place:
        yield Path(place)
