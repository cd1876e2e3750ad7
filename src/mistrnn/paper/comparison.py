"""Rows of the paper's tables: their studies, the pooled estimate of all seeds, and a verdict.

The published band is the published mean ± 2 published standard deviations. Our estimate has a 95% interval (`estimates`). The
verdict of a row is one of four:

    inside           the estimate lies in the band, and there are at least as many trials as in the paper
    outside          the whole interval lies outside the band
    undecided        neither: the interval reaches into the band, or the trials are too few to confirm the value
    not comparable   the settings are not the paper's (steps, precision, data, …), the trials are no random sample or too few
                     for an interval, or nothing is published; the verdict names the reason
"""

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mistrnn.errors import UsageError
from mistrnn.paper.estimates import FEWEST_TRIALS, Estimate, top_tenth
from mistrnn.tasks import Task
from mistrnn.training import Progress, Recorded, Study, Summary, run_study, summarise

DEVIATIONS = 2.0
"""Half the width of the published band, in published standard deviations."""
MAY_DIFFER = ("seed", "trials", "steps", "validate_every", "gradients_every", "precision", "checkpoint_segments")
"""Settings in which a study may differ from its row's study; the verdict names those that matter."""

INSIDE, OUTSIDE, UNDECIDED, NOT_COMPARABLE = "inside", "outside", "undecided", "not comparable"


@dataclass(frozen=True)
class Published:
    """The published values of a row: mean and standard deviation over the top 5 of 50 trials."""

    error: float
    deviation: float | None
    log10_learning_rate: tuple[float, float] | None = None


@dataclass(frozen=True)
class Row:
    """A row of a table: the paper's exact study, and the published result."""

    table: str
    """Such as table1; with -stand-in for rows on other data."""
    key: str
    """Its name within the table, such as mist-139."""
    label: str
    study: Study
    published: Published

    @property
    def name(self) -> str:
        """The name that its studies store, such as table1/mist-139."""
        return f"{self.table}/{self.key}"

    def with_settings(self, seed: int, trials: int | None, steps: int | None) -> Study:
        """Return the row's study with another seed, and shortened if that is asked for."""
        changed: dict[str, Any] = {"seed": seed}
        if trials is not None:
            changed["trials"] = trials
        if steps is not None:
            changed |= {"steps": steps, "validate_every": min(steps, self.study.validation_interval)}
        return replace(self.study, **changed)

    def owns(self, study: Study, name: str | None) -> bool:
        """Whether a study belongs to this row, with any seed and length.

        The name of its row is stored in a study's folder. A study without a name, from `mist sweep` or an earlier version,
        belongs to the row with the same settings.
        """
        if name is not None:
            return name == self.name
        mine, other = self.study.as_dict(), study.as_dict()
        return all(mine[name] == other[name] for name in mine if name not in MAY_DIFFER)


@dataclass(frozen=True)
class StudyResults:
    """The results of one study of a row."""

    study: Study
    trials: tuple[dict[str, Any], ...]
    data: str | None = None
    """The digest of the data files that it read."""
    last_errors: Mapping[int, float] = field(default_factory=dict)
    """By trial, the error of its last validation."""

    @classmethod
    def read(cls, recorded: Recorded) -> "StudyResults":
        """Return the results in a study's folder."""
        trials, data = tuple(recorded.trials()), recorded.settings().get("data")
        return cls(recorded.study(), trials, data, last_errors(recorded.curves()))

    @property
    def summary(self) -> Summary:
        """Its top 10%."""
        return summarise(self.trials, of=self.study.trials)

    @property
    def finished_trials(self) -> list[dict[str, Any]]:
        """The trials that have ended, diverged ones included."""
        return [trial for trial in self.trials if trial["status"] != "crashed"]

    @property
    def finished(self) -> int:
        """The number of trials that have ended, diverged ones included."""
        return len(self.finished_trials)

    @property
    def is_random_sample(self) -> bool:
        """Whether the finished trials are all, or the first ones: others were chosen, perhaps by their learning rate."""
        return [trial["trial"] for trial in self.finished_trials] == list(range(self.finished))


def last_errors(curves: Mapping[str, Any]) -> dict[int, float]:
    """Return the error of each trial's last validation, from the columns of the learning curves."""
    if not curves:
        return {}
    return dict(zip(curves["trial"].tolist(), curves["val_error"].tolist(), strict=True))  # in the order of steps


@dataclass(frozen=True)
class Comparison:
    """A row with all its seeds."""

    row: Row
    seeds: tuple[StudyResults, ...]
    ours: Estimate | None
    """The mean test error of the top tenth."""
    log10_learning_rate: tuple[float, float] | None
    """Mean and deviation over the top trials of all seeds."""
    kind: str
    reasons: tuple[str, ...]
    """Reasons why it is not comparable or undecided."""

    @property
    def difference(self) -> float | None:
        """Ours less published."""
        return None if self.ours is None else self.ours.value - self.row.published.error

    @property
    def verdict(self) -> str:
        """The verdict in words."""
        if self.kind == NOT_COMPARABLE:
            return f"{NOT_COMPARABLE}: {', '.join(self.reasons)}"
        assert self.difference is not None
        if self.kind == UNDECIDED:
            return f"{UNDECIDED}, {points(self.difference)}: {', '.join(self.reasons)}"
        return words_of(self.kind, self.difference)


def compare(row: Row, seeds: Iterable[StudyResults], published_data: str | None = None) -> Comparison:
    """Return a row with its seeds pooled and its verdict; published_data is the digest of the paper's data."""
    kept, reasons = one_of_each_seed(row.study, seeds)
    if not any(seed.summary.top for seed in kept):
        return Comparison(row, kept, None, None, NOT_COMPARABLE, ("no trial has been validated",))
    for seed in kept:
        reasons += differences(row.study, seed)
        if published_data is not None and not (seed.data or "").startswith(published_data):
            reasons.append("on files that are not the published ones")
    longest = max(seed.study.total_steps for seed in kept)
    alike = [seed for seed in kept if seed.study.total_steps == longest]  # studies of other lengths differ in error
    ours, count = _pooled(row, alike), sum(seed.finished for seed in alike)
    rate = _top_learning_rates(alike)
    if row.published.deviation is None:
        reasons.append("published without a spread")
    elif not reasons and count < FEWEST_TRIALS:
        reasons.append(f"{count} trials, and an interval needs {FEWEST_TRIALS}")
    if reasons or ours is None:
        return Comparison(row, kept, ours, rate, NOT_COMPARABLE, tuple(dict.fromkeys(reasons)))
    kind, doubts = judge(ours, row.published, count, row.study.trials)
    return Comparison(row, kept, ours, rate, kind, doubts)


def _pooled(row: Row, seeds: Sequence[StudyResults]) -> Estimate | None:
    """Return the estimate from the trials of all seeds; of chosen trials, the top of the largest study without interval."""
    if all(seed.is_random_sample for seed in seeds):
        return top_tenth([trial for seed in seeds for trial in seed.finished_trials], row.study.trials)
    largest = max(seeds, key=lambda seed: seed.finished)
    return Estimate(largest.summary.test_error[0]) if largest.summary.top else None


def _top_learning_rates(seeds: Sequence[StudyResults]) -> tuple[float, float]:
    """Return mean and deviation of the log10 learning rate over the top trials of all seeds."""
    rates = [
        math.log10(trial["learning_rate"])
        for seed in seeds
        for trial in seed.trials
        if trial["trial"] in seed.summary.top
    ]
    if not rates:
        return math.nan, math.nan
    return statistics.fmean(rates), statistics.stdev(rates) if len(rates) > 1 else math.nan


def judge(ours: Estimate, published: Published, count: int, needed: int) -> tuple[str, tuple[str, ...]]:
    """Return the verdict on an estimate from `count` trials, where the paper has `needed`, and the doubts if undecided."""
    assert published.deviation is not None
    assert ours.low is not None
    assert ours.high is not None
    half = DEVIATIONS * published.deviation
    low, high = published.error - half, published.error + half
    if ours.high < low or ours.low > high:
        return OUTSIDE, ()
    if not low <= ours.value <= high:
        return UNDECIDED, ("the 95% interval reaches into the published spread",)
    return (INSIDE, ()) if count >= needed else (UNDECIDED, (f"{count} trials instead of {needed}",))


def kind_of(difference: float, published: Published) -> str:
    """Return whether a difference lies inside the published spread or outside."""
    assert published.deviation is not None
    return INSIDE if abs(difference) <= DEVIATIONS * published.deviation else OUTSIDE


def words_of(kind: str, difference: float) -> str:
    """Return a verdict in words."""
    return f"{kind} the published spread, {points(difference)}"


def points(difference: float) -> str:
    """Return a difference of error rates in percentage points.

    >>> points(-0.0035)
    '0.35 points lower'
    """
    return f"{100 * abs(difference):.2f} points {'lower' if difference < 0 else 'higher'}"


def one_of_each_seed(paper: Study, seeds: Iterable[StudyResults]) -> tuple[tuple[StudyResults, ...], list[str]]:
    """Return one study of each seed, the one with the most trials, and a reason for each study left out."""
    by_seed: dict[int, list[StudyResults]] = {}
    for results in seeds:
        by_seed.setdefault(results.study.seed, []).append(results)

    def rank(results: StudyResults) -> tuple[int, int, bool]:
        return results.finished, results.study.total_steps, results.study.precision == paper.precision

    kept = {seed: max(by_seed[seed], key=rank) for seed in sorted(by_seed)}
    words = []
    for seed, runs in by_seed.items():
        if len(runs) > 1:
            precisions = {results.study.precision for results in runs}
            which = f"the one in {kept[seed].study.precision}" if len(precisions) > 1 else "one"
            words.append(f"seed {seed} is there {len(runs)} times, and {which} is counted")
    return tuple(kept.values()), words


def differences(paper: Study, results: StudyResults) -> list[str]:
    """Return in which ways a study is not the paper's."""
    own, found = results.study, []
    if own.total_steps != paper.total_steps:
        found.append(f"{own.total_steps:,} steps instead of {paper.total_steps:,}")
    elif own.validation_interval != paper.validation_interval:
        found.append(f"validation every {own.validation_interval:,} steps instead of {paper.validation_interval:,}")
    if own.precision == "bf16":
        found.append("products in bfloat16")
    if not results.is_random_sample:
        found.append(f"seed {own.seed} has finished {results.finished} chosen trials of {own.trials}")
    elif results.finished and not results.summary.top:
        found.append(f"all trials of seed {own.seed} diverged")
    return found


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
) -> list[tuple[Row, list[StudyResults]]]:
    """Run the missing trials of the rows' studies, or `only` these of each, seed by seed, and return all results."""
    found: list[tuple[Row, list[StudyResults]]] = [(row, []) for row in rows]
    studies = {
        (row.key, seed): row.with_settings(seed, trials, steps) for row in rows for seed in seeds
    }  # all, or none
    for seed in dict.fromkeys(seeds):
        for row, own in found:
            study = studies[row.key, seed]
            place = folder / place_of(row, seed)
            say(f"{row.label}, seed {seed}: {study.trials} trials, {study.total_steps:,} steps")
            task = task_of(study)
            run_study(
                study,
                place,
                row=row.name,
                device=device,
                fresh=fresh,
                group_size=group_size,
                only=only,
                task=task,
                say=say,
                report=report,
                stop=stop,
            )
            own.append(StudyResults.read(Recorded(place)))
    return found
