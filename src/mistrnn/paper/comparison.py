"""Ours beside published: the rows of a table, their studies, seeds that are pooled, and a verdict in words.

The verdict of a row is one of three:

    inside           our error lies within 2 published standard deviations of the published one
    outside          it does not
    not comparable   the run is not the paper's (shortened, unfinished, other data, …), or nothing is published; it says why
"""

import math
import random
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mistrnn.errors import UsageError
from mistrnn.tasks import Task
from mistrnn.training import Progress, Recorded, Study, Summary, run_study, summarise

DEVIATIONS = 2.0
"""How many published standard deviations count as inside."""
RESAMPLES = 1_000
MAY_DIFFER = ("seed", "trials", "steps", "validate_every", "gradients_every", "precision", "checkpoint_segments")
"""Settings in which a study may differ from a row's and still belong to it; the verdict names what matters among them."""

INSIDE, OUTSIDE, NOT_COMPARABLE = "inside", "outside", "not comparable"


@dataclass(frozen=True)
class Published:
    """What the paper prints in a row: mean and standard deviation over the top 5 of 50 trials."""

    error: float
    deviation: float | None
    log10_learning_rate: tuple[float, float] | None = None


@dataclass(frozen=True)
class Row:
    """A row of a table: the paper's exact study and what the paper says came out."""

    key: str
    label: str
    study: Study
    published: Published

    def with_settings(self, seed: int, trials: int | None, steps: int | None) -> Study:
        """Return the row's study with another seed, and shortened if that is asked for."""
        changed: dict[str, Any] = {"seed": seed}
        if trials is not None:
            changed["trials"] = trials
        if steps is not None:
            changed |= {"steps": steps, "validate_every": min(steps, self.study.validation_interval)}
        return replace(self.study, **changed)

    def owns(self, study: Study) -> bool:
        """Whether a study is one of this row, whatever its seed and length."""
        mine, other = self.study.as_dict(), study.as_dict()
        return all(mine[name] == other[name] for name in mine if name not in MAY_DIFFER)


@dataclass(frozen=True)
class SeedRun:
    """One study of a row."""

    study: Study
    trials: tuple[dict[str, Any], ...]
    data: str | None = None
    """The digest of the data files that it read."""

    @property
    def summary(self) -> Summary:
        """Its top 10%."""
        return summarise(self.trials, of=self.study.trials)

    @property
    def finished(self) -> int:
        """How many trials have come to an end, diverged ones among them."""
        return sum(trial["status"] != "crashed" for trial in self.trials)


@dataclass(frozen=True)
class Comparison:
    """A row with all its seeds."""

    row: Row
    seeds: tuple[SeedRun, ...]
    ours: tuple[float, float] | None
    """Mean and deviation of the error: over the top 10% of the one seed, or of the mean under resampling of several."""
    log10_learning_rate: tuple[float, float] | None
    kind: str
    reasons: tuple[str, ...]
    """Why it is not comparable."""

    @property
    def difference(self) -> float | None:
        """Ours less published."""
        return None if self.ours is None else self.ours[0] - self.row.published.error

    @property
    def verdict(self) -> str:
        """The verdict in words."""
        if self.kind == NOT_COMPARABLE:
            return f"{NOT_COMPARABLE}: {', '.join(self.reasons)}"
        assert self.difference is not None
        return words_of(self.kind, self.difference)


def compare(row: Row, seeds: Iterable[SeedRun], published_data: str | None = None) -> Comparison:
    """Return a row with its seeds pooled and its verdict; published_data is how the paper's data identifies itself."""
    kept, reasons = one_of_each_seed(row.study, seeds)
    if not any(seed.summary.top for seed in kept):
        return Comparison(row, kept, None, None, NOT_COMPARABLE, ("no trial has been validated",))
    for seed in kept:
        reasons += differences(row.study, seed)
        if published_data is not None and not (seed.data or "").startswith(published_data):
            reasons.append("on files that are not the published ones")
    longest = max(seed.study.total_steps for seed in kept)
    alike = [seed for seed in kept if seed.study.total_steps == longest]  # runs of other lengths are not one population
    if len(alike) == 1:
        summary = alike[0].summary
        ours, rate = summary.test_error, summary.log10_learning_rate
    else:
        size = min(row.study.trials, max(seed.finished for seed in alike))
        whole = max(seed.study.trials for seed in alike)
        ours, rate = resampled([trial for seed in alike for trial in seed.trials], size, of=whole)
    if row.published.deviation is None:
        reasons.append("published without a spread")
    if reasons:
        return Comparison(row, kept, ours, rate, NOT_COMPARABLE, tuple(dict.fromkeys(reasons)))
    return Comparison(row, kept, ours, rate, kind_of(ours[0] - row.published.error, row.published), ())


def kind_of(difference: float, published: Published) -> str:
    """Return whether a difference lies inside the published spread or outside."""
    assert published.deviation is not None
    return INSIDE if abs(difference) <= DEVIATIONS * published.deviation else OUTSIDE


def words_of(kind: str, difference: float) -> str:
    """Return a verdict in words."""
    return f"{kind} the published spread, {100 * abs(difference):.2f} points {'lower' if difference < 0 else 'higher'}"


def one_of_each_seed(paper: Study, seeds: Iterable[SeedRun]) -> tuple[tuple[SeedRun, ...], list[str]]:
    """Return one run of each seed, the one with most trials, and a word about the others: they are no new evidence."""
    by_seed: dict[int, list[SeedRun]] = {}
    for run in seeds:
        by_seed.setdefault(run.study.seed, []).append(run)

    def rank(run: SeedRun) -> tuple[int, int, bool]:
        return run.finished, run.study.total_steps, run.study.precision == paper.precision

    kept = {seed: max(by_seed[seed], key=rank) for seed in sorted(by_seed)}
    words = []
    for seed, runs in by_seed.items():
        if len(runs) > 1:
            precisions = {run.study.precision for run in runs}
            which = f"the one in {kept[seed].study.precision}" if len(precisions) > 1 else "one"
            words.append(f"seed {seed} is there {len(runs)} times, and {which} is counted")
    return tuple(kept.values()), words


def differences(paper: Study, run: SeedRun) -> list[str]:
    """Return in which ways a study is not the paper's."""
    own, found = run.study, []
    if own.trials != paper.trials:
        found.append(f"{own.trials} trials instead of {paper.trials}")
    if own.total_steps != paper.total_steps:
        found.append(f"{own.total_steps:,} steps instead of {paper.total_steps:,}")
    elif own.validation_interval != paper.validation_interval:
        found.append(f"validation every {own.validation_interval:,} steps instead of {paper.validation_interval:,}")
    if own.precision == "bf16":
        found.append("products in bfloat16")
    if run.finished < own.trials:
        found.append(f"seed {own.seed} has finished {run.finished} of {own.trials} trials")
    elif not run.summary.top:
        found.append(f"all trials of seed {own.seed} diverged")
    return found


def resampled(
    trials: Sequence[dict[str, Any]], size: int, resamples: int = RESAMPLES, of: int | None = None
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return mean and spread of the top 10%'s error, and of its log10 learning rate, over random samples of so many trials.

    One sweep's top 5 of 50 scatter: this says around what, and how much. The mean is over samples without replacement: with
    it a sample has fewer different trials than a sweep, and worse best ones. The spread is over samples with replacement:
    without it they would be more alike than sweeps are. They are the same each time. `of` is how many trials a whole sweep
    has, if these samples are smaller (`summarise`).

    >>> ok = {"status": "ok", "learning_rate": 0.1}
    >>> trials = [{"trial": k, "val_error": k / 20, "test_error": k / 20, **ok} for k in range(20)]
    >>> (error, spread), _ = resampled(trials, 10)
    >>> 0.03 < error < 0.07, spread > 0
    (True, True)
    """
    draw, pool = random.Random(0), list(trials)
    different = [summarise(draw.sample(pool, size), of) for _ in range(resamples)]
    repeated = [summarise(draw.choices(pool, k=size), of) for _ in range(resamples)]
    return (
        _mean_and_spread([one.test_error[0] for one in different], [one.test_error[0] for one in repeated]),
        _mean_and_spread(
            [one.log10_learning_rate[0] for one in different], [one.log10_learning_rate[0] for one in repeated]
        ),
    )


def _mean_and_spread(different: Sequence[float], repeated: Sequence[float]) -> tuple[float, float]:
    known = [[value for value in values if not math.isnan(value)] for values in (different, repeated)]
    return (statistics.fmean(known[0]), statistics.pstdev(known[1])) if all(known) else (math.nan, math.nan)


def chosen_rows(rows: Sequence[Row], keys: Sequence[str] | None) -> list[Row]:
    """Return the rows with these keys, or all."""
    known = {row.key: row for row in rows}
    for key in keys or []:
        if key not in known:
            raise UsageError(f"expected rows among {', '.join(known)}, got {key!r}.")
    return [known[key] for key in keys] if keys else list(rows)


def place_of(row: Row, seed: int) -> str:
    """Return the name of the folder that holds a row's study of this seed."""
    return f"{row.key}-seed-{seed}"


def run_rows(
    rows: Sequence[Row],
    folder: Path,
    seeds: Sequence[int],
    task_of: Callable[[Study], Task],
    *,
    trials: int | None = None,
    steps: int | None = None,
    device: str = "auto",
    group_size: int | None = None,
    only: Sequence[int] | None = None,
    fresh: bool = False,
    say: Callable[[str], None] = lambda line: None,
    report: Callable[[Progress], None] = lambda progress: None,
    stop: Callable[[], bool] = lambda: False,
) -> list[tuple[Row, list[SeedRun]]]:
    """Run what is missing of the rows' studies, or `only` these trials of each, seed after seed, and return them all."""
    found: list[tuple[Row, list[SeedRun]]] = [(row, []) for row in rows]
    studies = {
        (row.key, seed): row.with_settings(seed, trials, steps) for row in rows for seed in seeds
    }  # all, or none
    for seed in dict.fromkeys(seeds):
        for row, own in found:
            study = studies[row.key, seed]
            place = folder / place_of(row, seed)
            say(f"{row.label}, seed {seed}: {study.trials} trials, {study.total_steps:,} steps")
            task = task_of(study)
            done = run_study(
                study,
                place,
                device=device,
                fresh=fresh,
                group_size=group_size,
                only=only,
                task=task,
                say=say,
                report=report,
                stop=stop,
            )
            own.append(SeedRun(study, tuple(done), Recorded(place).settings().get("data")))
    return found
