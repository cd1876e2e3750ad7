"""The page's charts as data: series of lines, bands and points, which `template/page.js` draws."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from mistrnn.analysis import clockwork_path_lengths, edges_of, shortest_path_lengths
from mistrnn.layers import Clockwork, layer_class
from mistrnn.report._thinning import thinned
from mistrnn.report.collected import Found
from mistrnn.tasks import TASKS

MOST_POINTS = 150
"""Points of a line: a screen shows no more, and the page stays small."""
MOST_TRIALS = 20
"""Trials of the top 10% that are drawn one by one."""
LONGEST_TAU = 1_000

Series = dict[str, Any]
Chart = dict[str, Any]


def chart(title: str, x: str, y: str, series: Iterable[Series], **options: Any) -> Chart:
    """Return a chart; options are xLog, yLog (its lower end), percent (y in percent) and yTop (its upper end).

    A series may name its `style`, a number; or else it is its place.
    """
    return {"title": title, "x": x, "y": y, "series": list(series), **options}


def rounded(values: Iterable[float | int | None]) -> list[float | None]:
    """Return numbers rounded to the digits of a chart; infinities and NaN become None."""
    return [None if v is None or not math.isfinite(v) else float(f"{v:.4g}") for v in values]


def line(x: Sequence[float], y: Sequence[float], width: int = 2) -> dict[str, Any]:
    """Return a line through these points."""
    shown = thinned(y, MOST_POINTS)
    return {"x": rounded(x[k] for k in shown), "y": rounded(y[k] for k in shown), "width": width}


def trial_lines(found: Found, trials: Iterable[int]) -> list[dict[str, Any]]:
    """Return a thin line for each of these trials that has a curve."""
    lines = [{**line(*trial_curve(found, trial), width=1), "label": f"trial {trial}"} for trial in trials]
    return [one for one in lines if one["x"]]


def error_axis(found: Found) -> tuple[str, bool]:
    """Return the name of the study's error measure, and whether it is a rate, shown in percent."""
    name = TASKS[found.study.task].error_name
    return name, name == "error rate"


def trial_curve(found: Found, trial: int) -> tuple[list[int], list[float]]:
    """Return the steps and validation errors of one trial."""
    if not found.curves:
        return [], []
    mine = found.curves["trial"] == trial
    return found.curves["step"][mine].tolist(), found.curves["val_error"][mine].tolist()


def mean_curve(found: Found) -> tuple[list[int], list[float]]:
    """Return the mean validation error of the top 10% over the steps at which all of them were validated."""
    curves = [dict(zip(*trial_curve(found, trial), strict=True)) for trial in found.summary.top]
    steps = sorted(set.intersection(*(set(curve) for curve in curves))) if curves else []
    return steps, [sum(curve[step] for curve in curves) / len(curves) for step in steps]


def overview(title: str, studies: Sequence[tuple[str, Found]]) -> Chart | None:
    """Return the mean curves of several studies' top 10% in one chart."""
    series = []
    for label, found in studies:
        steps, errors = mean_curve(found)
        if steps:
            series.append({"name": label, "lines": [line(steps, errors)]})
    if not series:
        return None
    name, percent = error_axis(studies[0][1])
    return chart(title, "optimisation steps", f"validation {name}", series, percent=percent)


def learning_curves(found: Found) -> Chart | None:
    """Return the spread of the trials that still run, its median, and the top 10% one by one."""
    columns = found.curves
    if not columns or not len(columns["step"]):
        return None
    order = columns["step"].argsort(stable=True)
    steps, counts = torch.unique_consecutive(columns["step"][order], return_counts=True)
    pieces = torch.split(columns["val_error"][order].double(), counts.tolist())
    shares = torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64)
    band: dict[str, list[float | None]] = {"x": [], "low": [], "high": []}
    middle = []
    for k in thinned(range(len(steps)), MOST_POINTS):
        errors = pieces[k][pieces[k].isfinite()]
        if len(errors):
            low, median, high = torch.quantile(errors, shares).tolist()
            middle.append(median)
            for name, value in (("x", float(steps[k])), ("low", low), ("high", high)):
                band[name] += rounded([value])
    drawn = {"x": band["x"], "y": rounded(middle), "width": 2}
    series: list[Series] = [{"name": "trials still running: median, and 80% of them", "lines": [drawn], "band": band}]
    if top := trial_lines(found, found.summary.top[:MOST_TRIALS]):
        series.append({"name": "top 10%, each trial", "lines": top})
    error, percent = error_axis(found)
    return chart("Learning curves", "optimisation steps", f"validation {error}", series, percent=percent)


def error_by_learning_rate(found: Found) -> Chart | None:
    """Return a point for every trial; trials without a validation are at the top, with a note."""
    kinds: dict[str, list[dict[str, Any]]] = {}
    worst = max((t["val_error"] for t in found.trials if t["val_error"] is not None), default=1.0)
    for trial in found.trials:
        error, status = trial["val_error"], trial["status"]
        kind = {"ok": "finished", "crashed": "crashed", "stopped": "stopped early"}.get(status)
        kind = kind or ("diverged later" if error is not None else "diverged before a validation")
        point = {
            "x": rounded([trial["learning_rate"]])[0],
            "y": rounded([worst if error is None else error])[0],
            "label": f"trial {trial['trial']}" + ("" if status == "ok" else f", {status}"),
        }
        kinds.setdefault(kind, []).append(point if error is not None else {**point, "without": "no validation"})
    series = [{"name": name, "points": points} for name, points in sorted(kinds.items(), reverse=True)]
    if not series:
        return None
    error, percent = error_axis(found)
    return chart(
        "Error against learning rate", "learning rate", f"best validation {error}", series, xLog=True, percent=percent
    )


def gradient_norms(found: Found) -> Chart | None:
    """Return the gradient norms by tau, the mean over trials, at every step at which they were measured."""
    if not found.gradients:
        return None
    series = []
    steps = sorted(set(found.gradients["step"].tolist()))
    shown = sorted({round(k * (len(steps) - 1) / 5) for k in range(6)})  # six of them, spread out
    for step in [steps[k] for k in shown]:
        norms: Tensor = found.gradients["norms"][found.gradients["step"] == step]
        mean = norms[norms.isfinite().all(1)].mean(0)
        if len(mean) and mean.isfinite().all():
            name = "untrained" if step == 0 else f"after {step} steps"
            series.append({"name": name, "lines": [line(list(range(len(mean))), mean.tolist())]})
    if not series:
        return None
    return chart("Gradient norms", "steps before the loss", "norm by the hidden state", series, yLog=True)


def shortest_paths(studies: Sequence[Found], steps: int) -> Chart | None:
    """Return how many edges the shortest paths have in the layers of these studies."""
    taus = list(range(1, min(steps, LONGEST_TAU)))
    if not taus:
        return None
    lines: dict[str, list[float]] = {}
    for found in studies:
        kind, options = layer_class(found.study.layer), found.study.layer_options
        if issubclass(kind, Clockwork):
            periods = kind(1, found.study.hidden, **{**options, "device": "meta"}).periods
            lengths = clockwork_path_lengths(periods, taus[-1])
            for which, period in (("slowest", max(periods)), ("fastest", min(periods))):
                name = f"Clockwork, from its {which} group (period {period})"
                lines[name] = lengths[periods.index(period)][1:].tolist()
        else:
            edges = edges_of(kind(1, 2, **options))  # as many units as are needed: paths are the same with any number
            delays = f"{kind.__name__}, delays {', '.join(map(str, edges))}"
            name = "RNN, LSTM, GRU" if found.study.layer in ("rnn", "lstm", "peephole_lstm", "gru") else delays
            reached = shortest_path_lengths(edges, taus[-1])[1:]
            lines[name] = [math.nan if length < 0 else length for length in reached.tolist()]
    series = [{"name": name, "lines": [line(taus, values)]} for name, values in lines.items()]
    return chart("Shortest paths", "steps between two states", "edges of the shortest path", series, yLog=True)
