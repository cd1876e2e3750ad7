"""Columns of the tables in results/: what one study's folder says."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from mistrnn.layers import LAYERS
from mistrnn.paper.figure3 import solved_shares
from mistrnn.report.collected import Found
from mistrnn.report.texts import percent, share_text
from mistrnn.training import plus_minus


@dataclass(frozen=True)
class Column:
    """A heading and the text of a cell."""

    heading: str
    cell: Callable[[Found], str]


def _top(found: Found) -> list[dict[str, object]]:
    by_number = {trial["trial"]: trial for trial in found.trials}
    return [by_number[trial] for trial in found.summary.top]


def _percents(found: Found, name: str) -> str:
    return ", ".join(percent(trial[name]) for trial in _top(found))  # type: ignore[arg-type]


def _layer(found: Found) -> str:
    return f"{LAYERS[found.study.layer].__name__} {found.study.hidden}"


def _trials(found: Found) -> str:
    finished, asked = found.results.finished, found.study.trials
    return str(asked) if finished == asked else f"{finished} of {asked}"


def _seconds(found: Found) -> str:
    """Return the wall time of all groups; each trial stores that of its whole group, up to milliseconds."""
    times = sorted(trial["seconds"] for trial in found.trials if trial["seconds"] is not None)
    groups = [time for time, later in zip(times, [*times[1:], math.inf], strict=True) if later - time > 0.5]
    return f"{sum(groups):,.0f}"


def _rates(found: Found) -> str:
    rates = [math.log10(trial["learning_rate"]) for trial in found.trials]
    return f"{min(rates):.2f} to {max(rates):.2f}" if len(set(rates)) > 1 else f"{rates[0]:.2f}"


def _options(found: Found) -> str:
    own = found.study
    parts = [f"{name}={value}" for name, value in own.layer_options.items()]
    parts += [f"readout_dropout={own.readout_dropout}"] if own.readout_dropout else []
    return ", ".join(parts) or "none"


def _commit(found: Found) -> str:
    return str(found.about.get("commit", "not stored"))


COLUMNS = {
    "layer": Column("layer", _layer),
    "delay": Column("delay", lambda found: str(found.study.task_settings.get("delay"))),
    "user": Column("user", lambda found: str(found.study.task_settings.get("user"))),
    "seed": Column("seed", lambda found: str(found.study.seed)),
    "precision": Column("precision", lambda found: found.study.precision),
    "initialization": Column("initialization", lambda found: found.study.initialization),
    "options": Column("options", _options),
    "parameters": Column("parameters", lambda found: f"{found.trials[0]['parameters']:,}"),
    "trials": Column("trials", _trials),
    "steps": Column("steps", lambda found: f"{found.study.total_steps:,}"),
    "error": Column("test error %, top 10%", lambda found: percent(*found.summary.test_error)),
    "rate": Column("log10 learning rate", lambda found: plus_minus(*found.summary.log10_learning_rate, 2)),
    "rates": Column("log10 learning rates run", _rates),
    "top": Column("top trials", lambda found: ", ".join(map(str, found.summary.top))),
    "validation": Column("their validation errors %", lambda found: _percents(found, "val_error")),
    "test": Column("their test errors %", lambda found: _percents(found, "test_error")),
    "solved": Column("solved once", lambda found: share_text(solved_shares([found.results])[0])),
    "lasting": Column("solved at the end", lambda found: share_text(solved_shares([found.results])[1])),
    "diverged": Column("diverged", lambda found: str(found.summary.diverged)),
    "seconds": Column("seconds", _seconds),
    "commit": Column("commit", _commit),
}
