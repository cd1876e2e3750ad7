"""The page's charts as data: series of lines, bands and points, which `template/page.js` draws."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from mistrnn.analysis import clockwork_path_lengths, edges_of, shortest_path_lengths
from mistrnn.layers import Clockwork, layer_class
from mistrnn.report.collected import Found

MOST_POINTS = 150
"""On a line: a screen shows no more, and the page stays small."""
LONGEST_TAU = 1_000

Series = dict[str, Any]
Chart = dict[str, Any]


def chart(title: str, x: str, y: str, series: Iterable[Series], **options: Any) -> Chart:
    """Return a chart; options are xLog, yLog (where it starts), and percent (how y is written)."""
    return {"title": title, "x": x, "y": y, "series": list(series), **options}


def rounded(values: Iterable[float | int | None]) -> list[float | None]:
    """Return numbers with as many digits as a chart shows; what is not finite is left out."""
    return [None if v is None or not math.isfinite(v) else float(f"{v:.4g}") for v in values]


def thinned(count: int) -> list[int]:
    """Return which of so many points a line shows, the last among them."""
    if count <= MOST_POINTS:
        return list(range(count))
    return sorted({round(k * (count - 1) / (MOST_POINTS - 1)) for k in range(MOST_POINTS)})


def line(x: Sequence[float], y: Sequence[float], width: int = 2) -> dict[str, Any]:
    """Return a line through these points."""
    shown = thinned(len(x))
    return {"x": rounded(x[k] for k in shown), "y": rounded(y[k] for k in shown), "width": width}


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
    return chart(title, "optimisation steps", "validation error", series, percent=True) if series else None


def learning_curves(found: Found) -> Chart | None:
    """Return the spread of all trials, its median, and the top 10% one by one."""
    columns = found.curves
    if not columns or not len(columns["step"]):
        return None
    steps = sorted(set(columns["step"].tolist()))
    shares = torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64)
    errors = [columns["val_error"][columns["step"] == step].double() for step in steps]
    low, middle, high = torch.stack([torch.quantile(e[e.isfinite()], shares) for e in errors]).T.tolist()
    shown = thinned(len(steps))
    band = {name: rounded(v[k] for k in shown) for name, v in (("x", steps), ("low", low), ("high", high))}
    top = [line(*trial_curve(found, trial), width=1) for trial in found.summary.top]
    series: list[Series] = [
        {"name": "all trials: median, and 80% of them", "lines": [line(steps, middle)], "band": band},
        {"name": "top 10%, each trial", "lines": top},
    ]
    return chart("Learning curves", "optimisation steps", "validation error", series, percent=True)


def error_by_learning_rate(found: Found) -> Chart | None:
    """Return a point for every trial; those without a validation stand at the top."""
    kinds: dict[str, list[dict[str, Any]]] = {"finished": [], "diverged later": [], "diverged before a validation": []}
    worst = max((t["val_error"] for t in found.trials if t["val_error"] is not None), default=1.0)
    for trial in found.trials:
        error = trial["val_error"]
        kind = "finished" if trial["status"] == "ok" else "diverged later" if error is not None else None
        kind = kind or "diverged before a validation"
        point = {
            "x": rounded([trial["learning_rate"]])[0],
            "y": rounded([worst if error is None else error])[0],
            "label": f"trial {trial['trial']}" + ("" if trial["status"] == "ok" else f", {trial['status']}"),
        }
        kinds[kind].append(point)
    series = [{"name": name, "points": points} for name, points in kinds.items() if points]
    if not series:
        return None
    return chart(
        "Error against learning rate", "learning rate", "best validation error", series, xLog=True, percent=True
    )


def gradient_norms(found: Found) -> Chart | None:
    """Return the gradient norms by tau, the mean over trials, at every step at which they were measured."""
    if not found.gradients:
        return None
    series = []
    steps = sorted(set(found.gradients["step"].tolist()))
    for step in [steps[k] for k in thinned(min(len(steps), 6))] if len(steps) <= 6 else [steps[0], *steps[-5:]]:
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
        layer = layer_class(found.study.layer)(1, found.study.hidden, **{**found.study.layer_options, "device": "meta"})
        if isinstance(layer, Clockwork):
            periods, lengths = layer.periods, clockwork_path_lengths(layer.periods, taus[-1])
            for which, period in (("slowest", max(periods)), ("fastest", min(periods))):
                name = f"Clockwork, from its {which} group (period {period})"
                lines[name] = lengths[periods.index(period)][1:].tolist()
        else:
            edges = edges_of(layer)
            delays = f"{type(layer).__name__}, delays {', '.join(map(str, edges))}"
            name = "RNN, LSTM, GRU" if found.study.layer in ("rnn", "lstm", "gru") else delays
            reached = shortest_path_lengths(edges, taus[-1])[1:]
            lines[name] = [math.nan if length < 0 else length for length in reached.tolist()]
    series = [{"name": name, "lines": [line(taus, values)]} for name, values in lines.items()]
    return chart("Shortest paths", "steps between two states", "edges of the shortest path", series, yLog=True)
