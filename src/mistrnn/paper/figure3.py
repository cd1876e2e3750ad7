"""Figure 3: validation curves on the copy problem, the top 5 of 50 trials, with delays of 50, 100, 200 and 400.

The paper shows curves and says who learns a solution: with a delay of 50 all but Clockwork; with longer delays simple RNN and
LSTM become unable to, and MIST stays able; Clockwork fails at all of them, and with 1024 units solves a delay of 50 only.
Here a trial has solved it when its validation error comes below 0.001; always answering blank has 0.0833.

Hardware and time: 50 trials of 10,000 steps take half a minute to 6 minutes on an NVIDIA H200, the paper's 100,000 steps ten
times as long; on 2 CPU cores shorten it: `--delays 50 --trials 4 --steps 200`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from mistrnn.layers import LAYERS, count_parameters, match_parameters
from mistrnn.paper.comparison import NOT_COMPARABLE, Published, Row, SeedRun, differences, one_of_each_seed
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
TOP = 5

SOLVES: dict[str, dict[int, bool | None]] = {
    "rnn": {50: True, 100: None, 200: False, 400: False},
    "lstm": {50: True, 100: None, 200: False, 400: False},
    "clockwork": dict.fromkeys(DELAYS, False),
    "mist": dict.fromkeys(DELAYS, True),
    "clockwork-1024": {50: True, 100: False, 200: False, 400: False},
}
"""What the paper says in words; of 100 steps with RNN and LSTM only that it becomes harder."""

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
            found.append(Row(f"copy-{delay}-{layer}{'-1024' if control else ''}", label, study, NOT_TOLD))
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
    """Whether a row's trials have solved the problem, beside what the paper says."""

    row: Row
    seeds: tuple[SeedRun, ...]
    solved: int
    trials: int
    best_error: float | None
    verdict: str


def outcome(row: Row, seeds: Sequence[SeedRun]) -> Outcome:
    """Return how many trials solved the problem, and whether that is what the paper says.

    That nobody solves it is a verdict only of whole runs; that somebody does, of shortened ones, too, which it then says.
    """
    kept, reasons = one_of_each_seed(row.study, seeds)
    for run in kept:
        reasons += differences(row.study, run)
    errors = [trial["val_error"] for run in kept for trial in run.trials if trial["val_error"] is not None]
    solved, study = sum(error < SOLVED for error in errors), row.study
    layer = "clockwork-1024" if study.hidden == CONTROL_UNITS else study.layer
    expected = SOLVES[layer].get(study.task_settings["delay"])
    note = f" ({', '.join(dict.fromkeys(reasons))})" if reasons else ""
    longer = any(run.study.total_steps > study.total_steps for run in kept)
    if not errors:
        verdict = f"{NOT_COMPARABLE}: no trial has been validated"
    elif expected is None:
        verdict = f"{NOT_COMPARABLE}: the paper does not say{note}"
    elif longer or (not solved and reasons):
        verdict = f"{NOT_COMPARABLE}: {'solved' if solved else 'not solved'}{note}"
    elif bool(solved) == expected:
        verdict = f"as published: {'solved' if expected else 'not solved'}{note}"
    elif solved:
        verdict = f"other than published: solved, and the paper says not{note}"
    else:
        verdict = "other than published: not solved, and the paper says it is"
    trials = sum(len(run.trials) for run in kept)
    return Outcome(row, kept, solved, trials, min(errors, default=None), verdict)


@dataclass(frozen=True)
class Curve:
    """The validation errors of one trial."""

    seed: int
    trial: int
    points: tuple[tuple[int, float], ...]
    """(step, validation error)"""


@dataclass(frozen=True)
class BestCurves:
    """What the figure shows of a row: the curves of each seed's best trials, and how many trials have solved the problem."""

    study: Study
    curves: tuple[Curve, ...]
    solved: int
    """At any validation: a trial's parameters are those of its best one."""
    solved_to_the_end: int
    """At the last validation, too."""
    trials: int

    @property
    def delay(self) -> int:
        """The copy delay."""
        return int(self.study.task_settings["delay"])

    @property
    def label(self) -> str:
        """The layer's name and units."""
        return f"{LAYERS[self.study.layer].__name__} {self.study.hidden}"


def best_curves(folder: Path) -> list[BestCurves]:
    """Return what the figure shows of all rows, the control's too, that are in a folder with some finished trials."""
    studies: dict[tuple[int, int, int], list[Recorded]] = {}
    for place in sorted(folder.glob("copy-*-seed-*")):
        recorded = Recorded(place)
        study = recorded.study()
        if study.task == "copy" and study.layer in LAYERS_COMPARED and recorded.trials():
            key = study.task_settings["delay"], LAYERS_COMPARED.index(study.layer), study.hidden
            studies.setdefault(key, []).append(recorded)
    return [_best_curves(studies[key]) for key in sorted(studies)]


def _best_curves(seeds: Sequence[Recorded]) -> BestCurves:
    curves, errors, last = [], [], []
    for recorded in seeds:
        trials, columns = recorded.trials(), recorded.curves()
        errors += [trial["val_error"] for trial in trials]
        by_trial = dict(zip(columns["trial"].tolist(), columns["val_error"].tolist(), strict=True))  # in order of steps
        last += [by_trial[trial["trial"]] for trial in trials if trial["status"] == "ok" and trial["trial"] in by_trial]
        for best in summarise(trials, of=recorded.study().trials).top[:TOP]:
            own = columns["trial"] == best
            points = zip(columns["step"][own].tolist(), columns["val_error"][own].tolist(), strict=True)
            curves.append(Curve(recorded.study().seed, best, tuple(points)))
    solved = sum(error is not None and error < SOLVED for error in errors)
    return BestCurves(seeds[0].study(), tuple(curves), solved, sum(error < SOLVED for error in last), len(errors))
