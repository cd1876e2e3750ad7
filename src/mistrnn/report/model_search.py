"""The search for settings on the page about a model: the best trials, and their error against the learning rate."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from mistrnn.report import model_charts as charts
from mistrnn.report.model_tables import NOTHING, number, table, words

MOST_TRIALS = 10
"""Trials in the table."""
MEASURE = "validation loss"
NOT_SETTINGS = (
    "trial", "status", "curve", "val_error", "test_error", "best_step", "steps", "seconds", "group", "device", "parameters",
    "chosen",
)  # fmt: skip
"""Keys of a trial that are no settings."""


def search_section(trials: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return the page's data about a search; None without trials.

    Trials are ranked by val_error, their validation loss. Those without a finite one come last.
    """
    if not trials:
        return None
    ranked = sorted(trials, key=lambda one: one["val_error"] if _finite(one.get("val_error")) else math.inf)
    measured = sum(_finite(one.get("val_error")) for one in trials)
    best = ranked[:MOST_TRIALS]
    settings = list(dict.fromkeys(name for one in trials for name in one if name not in NOT_SETTINGS))
    rows = [
        [str(one["trial"]), number(one.get("val_error")), _status(one), *(_setting(one.get(name)) for name in settings)]
        for one in best
    ]
    note = f"{len(trials):,} trials, {measured:,} with a {MEASURE}."
    if measured:
        note += f" Trial {ranked[0]['trial']} is the best, with {number(ranked[0]['val_error'])}."
    if chosen := sum(bool(one.get("chosen")) for one in trials):
        note += f" The model is the mean of the {chosen} chosen trials." if chosen > 1 else ""
    if any(one.get("status") == "stopped" for one in trials):
        note += " Trials that were stopped early have hollow dots."
    caption = f"The best {len(best)} trials. {NOTHING}: as without a search."
    return {
        "note": note,
        "chart": _by_learning_rate(ranked),
        "table": table(caption, ["trial", MEASURE, "status", *map(words, settings)], rows, right=(1,)),
    }


def _status(trial: Mapping[str, Any]) -> str:
    return "chosen" if trial.get("chosen") else str(trial.get("status", NOTHING))


def _by_learning_rate(ranked: Sequence[Mapping[str, Any]]) -> charts.Chart | None:
    """Return a dot for each trial that has a learning rate and a finite value, the best ones on top.

    The chosen trials, or without a choice the best one, have a colour of their own.
    """
    shown = [one for one in ranked if _finite(one.get("val_error")) and _finite(one.get("learning_rate"))]
    shown = [one for one in shown if one["learning_rate"] > 0]
    if not shown:
        return None
    rates, values = [float(one["learning_rate"]) for one in shown], [float(one["val_error"]) for one in shown]
    x = charts.Axis("learning rate (log scale)", min(rates) / 1.5, max(rates) * 1.5, log=True)
    title = f"{MEASURE.capitalize()} against learning rate"
    alt = f"{len(shown)} trials. The lowest {MEASURE}, {number(values[0])}, has learning rate {rates[0]:.3g}."
    chart = charts.Chart(title, alt, x, charts.fitted_axis(MEASURE, values, may_be_log=True))
    marked = [one for one in shown if one.get("chosen")] or shown[:1]
    for one in reversed(shown):
        finished = one.get("status", "ok") == "ok"
        text = f"trial {one['trial']}: {number(one['val_error'])} with {one['learning_rate']:.3g}"
        text += "" if finished else f", {one['status']}"
        chart.add_dot(
            one["learning_rate"],
            one["val_error"],
            text,
            style=int(any(one is other for other in marked)),
            hollow=not finished,
        )
    return chart


def _finite(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _setting(value: Any) -> str:
    if value is None:
        return NOTHING
    return f"{value:.4g}" if isinstance(value, float) else str(value)
