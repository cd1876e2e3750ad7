"""Figure 3: validation curves on the copy problem, the top 5 of 50 trials, with delays of 50, 100, 200 and 400.

The paper shows curves and says who learns a solution: with a delay of 50 all but Clockwork; with longer delays simple RNN and
LSTM become unable to, and MIST stays able; Clockwork fails at all of them, and with 1024 units solves a delay of 50 only.

A trial has solved the problem once if its parameters of the best validation have an error below 0.001 on the validation set and
on the test set; it has solved it at the end if its last validation error is below 0.001, too. Always answering blank has an
error of 0.0833. Both counts carry a 95% interval (Wilson) of the share of solving trials, and the verdict is computed from the
interval of the first: a row is solved if the whole interval lies above 1 in 50 trials, the least that a sweep of the paper can
show; it is not solved if the whole interval lies below 5 in 50, the trials that the paper draws; else it is undecided.

Hardware and time: 50 trials of 10,000 steps take half a minute to 6 minutes on an NVIDIA H200, the paper's 100,000 steps ten
times as long; on 2 CPU cores shorten it: `--delays 50 --trials 4 --steps 200`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from mistrnn.layers import LAYERS, count_parameters, match_parameters
from mistrnn.paper.comparison import (
    NOT_COMPARABLE,
    UNDECIDED,
    Published,
    Row,
    StudyResults,
    differences,
    one_of_each_seed,
)
from mistrnn.paper.estimates import Share
from mistrnn.tasks import make_task
from mistrnn.training import Recorded, Study, summarise

TITLE = "Figure 3: the copy problem"
DELAYS = (50, 100, 200, 400)
LSTM_UNITS = 100
CLOCKWORK_UNITS = 256
"""The paper's own number; with the parameters of that LSTM there could be 264."""
CONTROL_UNITS = 1024
LAYERS_COMPARED = ("rnn", "lstm", "clockwork", "mist")
SOLVED = 0.001
LEAST_SOLVED, MOST_UNSOLVED = 1 / 50, 5 / 50
"""Bounds of the share of solving trials: above the first a row is solved, below the second it is not."""
TOP = 5

SOLVES: dict[str, dict[int, bool | None]] = {
    "rnn": {50: True, 100: None, 200: False, 400: False},
    "lstm": {50: True, 100: None, 200: False, 400: False},
    "clockwork": dict.fromkeys(DELAYS, False),
    "mist": dict.fromkeys(DELAYS, True),
    "clockwork-1024": {50: True, 100: False, 200: False, 400: False},
}
"""The paper's statements; for RNN and LSTM at a delay of 100 it only says that the task becomes harder."""

STYLED = ("mist", "lstm", "clockwork", "rnn", "control")

NOT_TOLD = Published(float("nan"), None)


def rows(delays: Sequence[int] = DELAYS, *, control: bool = False) -> list[Row]:
    """Return a row for each delay and layer, with about the parameters of an LSTM with 100 units; or the larger Clockwork."""
    task = make_task("copy", {"delay": 10})  # inputs and outputs are the same for every delay
    budget = count_parameters("lstm", LSTM_UNITS, task.input_size, task.output_size)
    found = []
    for delay in delays:
        for layer in ("clockwork",) if control else LAYERS_COMPARED:
            hidden = match_parameters(layer, budget, task.input_size, task.output_size)
            if layer == "clockwork":
                hidden = CONTROL_UNITS if control else CLOCKWORK_UNITS
            study = Study(task="copy", layer=layer, hidden=hidden, task_settings={"delay": delay})
            label = f"{LAYERS[layer].__name__}, {hidden} units, delay {delay}"
            key = f"copy-{delay}-{layer}{'-1024' if control else ''}"
            found.append(Row("figure3", key, label, study, NOT_TOLD))
    return found


def style_of(study: Study) -> int:
    """Return which of the styles of lines a row has in pictures: the same with each delay."""
    return STYLED.index("control" if study.hidden == CONTROL_UNITS else study.layer)


@cache
def trivial_error() -> float:
    """Return the error of always answering blank."""
    return make_task("copy", {"delay": 10}).trivial_error


def most_shown() -> float:
    """Return the error at which pictures end: a trial that jumps higher is cut there."""
    return 1.2 * trivial_error()


@dataclass(frozen=True)
class Outcome:
    """The number of a row's trials that solved the problem, and the paper's statement."""

    row: Row
    seeds: tuple[StudyResults, ...]
    once: Share
    """Trials whose best parameters solve the problem."""
    at_the_end: Share
    """Trials that still solve it at the last validation."""
    best_error: float | None
    verdict: str


def has_solved(trial: dict[str, Any]) -> bool:
    """Whether a trial's parameters of the best validation solve the problem, on the test set, too."""
    errors = (trial["val_error"], trial["test_error"])
    return all(error is not None and error < SOLVED for error in errors)


def solved_shares(seeds: Sequence[StudyResults]) -> tuple[Share, Share]:
    """Return the shares of finished trials that have solved the problem: once, and at the end."""
    trials = [(results, trial) for results in seeds for trial in results.finished_trials]
    solving = [(results, trial) for results, trial in trials if has_solved(trial)]
    lasting = [
        trial
        for results, trial in solving
        if trial["status"] == "ok" and results.last_errors.get(trial["trial"], 1.0) < SOLVED
    ]
    return Share.of(len(solving), len(trials)), Share.of(len(lasting), len(trials))


def is_solved(share: Share) -> bool | None:
    """Return whether a row is solved; None if its interval leaves that undecided."""
    if share.low > LEAST_SOLVED:
        return True
    return False if share.high < MOST_UNSOLVED else None


def outcome(row: Row, seeds: Sequence[StudyResults]) -> Outcome:
    """Return the solving trials of a row, and whether that agrees with the paper.

    Shortened studies can show that a problem is solved, and not that it is not.
    """
    kept, reasons = one_of_each_seed(row.study, seeds)
    for results in kept:
        reasons += differences(row.study, results)
    errors = [trial["val_error"] for results in kept for trial in results.trials if trial["val_error"] is not None]
    once, at_the_end = solved_shares(kept)
    return Outcome(row, kept, once, at_the_end, min(errors, default=None), _verdict(row, kept, once, reasons))


def _verdict(row: Row, seeds: Sequence[StudyResults], once: Share, reasons: Sequence[str]) -> str:
    """Return whether a share of solving trials agrees with the paper."""
    study, solved = row.study, is_solved(once)
    layer = "clockwork-1024" if study.hidden == CONTROL_UNITS else study.layer
    expected = SOLVES[layer].get(study.task_settings["delay"])
    note = f" ({', '.join(dict.fromkeys(reasons))})" if reasons else ""
    longer = any(results.study.total_steps > study.total_steps for results in seeds)
    words = {True: "solved", False: "not solved", None: f"{once.count} of {once.trials} trials solve it"}[solved]
    if not any(trial["val_error"] is not None for results in seeds for trial in results.trials):
        return f"{NOT_COMPARABLE}: no trial has been validated"
    if expected is None:
        return f"{NOT_COMPARABLE}: the paper does not say{note}"
    if longer or (not solved and reasons):
        return f"{NOT_COMPARABLE}: {words}{note}"
    if solved is None:
        return f"{UNDECIDED}: {words}, and the paper says {'solved' if expected else 'not solved'}"
    if solved == expected:
        return f"as published: {words}{note}"
    if solved:
        return f"other than published: solved, and the paper says not{note}"
    return "other than published: not solved, and the paper says it is"


@dataclass(frozen=True)
class Curve:
    """The validation errors of one trial."""

    seed: int
    trial: int
    points: tuple[tuple[int, float], ...]
    """(step, validation error)"""


@dataclass(frozen=True)
class BestCurves:
    """The curves of a row's best trials by seed, and the number of trials that solved the problem."""

    study: Study
    curves: tuple[Curve, ...]
    once: Share
    """Trials whose best parameters solve the problem."""
    at_the_end: Share
    """Trials that still solve it at the last validation."""

    @property
    def delay(self) -> int:
        """The copy delay."""
        return int(self.study.task_settings["delay"])

    @property
    def label(self) -> str:
        """The layer's name and units."""
        return f"{LAYERS[self.study.layer].__name__} {self.study.hidden}"


def best_curves(folder: Path) -> list[BestCurves]:
    """Return the best curves of every row in a folder, controls included, that has a finished trial."""
    studies: dict[tuple[int, int, int], list[Recorded]] = {}
    for place in sorted(folder.glob("copy-*-seed-*")):
        recorded = Recorded(place)
        study = recorded.study()
        if study.task == "copy" and study.layer in LAYERS_COMPARED and recorded.trials():
            key = study.task_settings["delay"], LAYERS_COMPARED.index(study.layer), study.hidden
            studies.setdefault(key, []).append(recorded)
    return [_best_curves(studies[key]) for key in sorted(studies)]


def _best_curves(seeds: Sequence[Recorded]) -> BestCurves:
    curves = []
    for recorded in seeds:
        trials, columns = recorded.trials(), recorded.curves()
        for best in summarise(trials, of=recorded.study().trials).top[:TOP]:
            own = columns["trial"] == best
            points = zip(columns["step"][own].tolist(), columns["val_error"][own].tolist(), strict=True)
            curves.append(Curve(recorded.study().seed, best, tuple(points)))
    shares = solved_shares([StudyResults.read(recorded) for recorded in seeds])
    return BestCurves(seeds[0].study(), tuple(curves), *shares)
