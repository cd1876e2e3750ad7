"""Numbers of the report as text: error rates, estimates with intervals, shares of trials."""

import math

from mistrnn.paper.beyond import Outcome
from mistrnn.paper.estimates import Estimate, Share
from mistrnn.report import charts
from mistrnn.report.collected import Found
from mistrnn.training import plus_minus

NOTHING = "\N{EN DASH}"


def percent(value: float | None, spread: float | None = None) -> str:
    """Return an error rate in percent."""
    if value is None:
        return NOTHING
    return plus_minus(100 * value, None if spread is None else 100 * spread, 2)


def estimate_text(estimate: Estimate | None) -> str:
    """Return an estimated error rate and its interval in percent.

    >>> estimate_text(Estimate(0.0555, 0.0512, 0.0601))
    '5.55 [5.12, 6.01]'
    """
    if estimate is None:
        return NOTHING
    known = estimate.low is not None and estimate.high is not None
    return percent(estimate.value) + (f" [{percent(estimate.low)}, {percent(estimate.high)}]" if known else "")


def points_text(estimate: Estimate | None) -> str:
    """Return a difference of error rates and its interval in percentage points.

    >>> points_text(Estimate(-0.012, -0.02, 0.001))
    '-1.20 [-2.00, +0.10]'
    """
    if estimate is None:
        return NOTHING
    values = [value for value in (estimate.value, estimate.low, estimate.high) if value is not None]
    own, *interval = [f"{100 * value:+.2f}" for value in values]
    return own + (f" [{', '.join(interval)}]" if interval else "")


def beyond_cells(outcome: Outcome) -> list[str]:
    """Return a row of a table of variants: label, error, difference to the plain layer, solving trials, verdict."""
    solved = NOTHING if outcome.solved is None else share_text(outcome.solved)
    return [outcome.row.label, estimate_text(outcome.ours), points_text(outcome.difference), solved, outcome.verdict]


def share_text(share: Share) -> str:
    """Return a count of trials and the interval of its share.

    >>> share_text(Share.of(3, 50))
    '3 of 50 [2%, 16%]'
    """
    return f"{share.count} of {share.trials} [{share.low:.0%}, {share.high:.0%}]"


def error_text(found: Found, value: float | None, spread: float | None = None) -> str:
    """Return an error in the unit of the study's task."""
    if charts.error_axis(found)[1]:
        return percent(value, spread)
    if value is None:
        return NOTHING
    return f"{value:.4g}" + ("" if spread is None or math.isnan(spread) else f" ± {spread:.2g}")
