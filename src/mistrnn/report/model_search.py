"""The search for settings on the page about a model: the best trials, and their error against the learning rate."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from mistrnn.report import model_charts as charts
from mistrnn.report.model_tables import NOTHING, number, table, words

MOST_TRIALS = 10
"""Trials in the table."""
MEASURES = {"val_error": "validation error", "val_loss": "validation loss"}
OTHER_COLUMNS = ("trial", "status", "curve", *MEASURES)
"""Keys of a trial that are no settings."""


def search_section(trials: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return what the page shows of a search; None without trials.

    Trials are ranked by val_error, or by val_loss if none has a val_error. Those without a finite value come last.
    """
    if not trials:
        return None
    key = next((name for name in MEASURES if any(_finite(one.get(name)) for one in trials)), "val_error")
    ranked = sorted(trials, key=lambda one: one[key] if _finite(one.get(key)) else math.inf)
    measured = sum(_finite(one.get(key)) for one in trials)
    best = ranked[:MOST_TRIALS]
    measures = [name for name in MEASURES if any(one.get(name) is not None for one in trials)]
    settings = list(dict.fromkeys(name for one in trials for name in one if name not in OTHER_COLUMNS))
    rows = [
        [str(one["trial"]), *(number(one.get(name)) for name in measures)]
        + [_setting(one.get(name)) for name in settings]
        + [str(one.get("status", NOTHING))]
        for one in best
    ]
    columns = ["trial", *(MEASURES[name] for name in measures), *map(words, settings), "status"]
    note = f"{len(trials):,} trials, {measured:,} with a {MEASURES[key]}."
    if measured:
        note += f" Trial {ranked[0]['trial']} is the best, with {number(ranked[0][key])}."
    return {
        "note": note,
        "chart": _by_learning_rate(ranked, key),
        "table": table(f"The best {len(best)} trials.", columns, rows, right=range(1, 1 + len(measures))),
    }


def _by_learning_rate(ranked: Sequence[Mapping[str, Any]], key: str) -> charts.Chart | None:
    """Return a point for each trial that has a learning rate and a finite value, the best one last, on top."""
    shown = [one for one in ranked if _finite(one.get(key)) and _finite(one.get("learning_rate"))]
    shown = [one for one in shown if one["learning_rate"] > 0]
    if not shown:
        return None
    rates, values = [float(one["learning_rate"]) for one in shown], [float(one[key]) for one in shown]
    x = charts.Axis("learning rate (log scale)", min(rates) / 1.5, max(rates) * 1.5, log=True)
    title = f"{MEASURES[key].capitalize()} against learning rate"
    alt = f"{len(shown)} trials. The lowest {MEASURES[key]}, {number(values[0])}, has learning rate {rates[0]:.3g}."
    chart = charts.Chart(title, alt, x, charts.fitted_axis(MEASURES[key], values, may_be_log=True))
    for one in reversed(shown):
        finished = one.get("status", "ok") == "ok"
        text = f"trial {one['trial']}: {number(one[key])} with {one['learning_rate']:.3g}"
        text += "" if finished else f", {one['status']}"
        chart.add_dot(one["learning_rate"], one[key], text, style=int(one is shown[0]), hollow=not finished)
    return chart


def _finite(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _setting(value: Any) -> str:
    if value is None:
        return NOTHING
    return f"{value:.4g}" if isinstance(value, float) else str(value)
