"""Tables of the page about a model, and how numbers stand in them."""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

NOTHING = "\N{EN DASH}"
WORDS = {
    "hidden": "hidden units",
    "hidden_size": "hidden units",
    "weights": "parameters",
    "num_layers": "blocks",
    "n_trials": "trials",
    "n_best": "best trials in the model",
    "stopped_by_ctrl_c": "stopped by Ctrl-C",
}


@dataclass(frozen=True)
class PageTable:
    """A table of texts; the first column names the rows."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    right: Collection[int]
    """Columns that are aligned at the right."""


def table(
    caption: str, columns: Sequence[str], rows: Sequence[Sequence[str]], right: Collection[int] = ()
) -> PageTable:
    """Return a table."""
    return PageTable(caption, columns, rows, right)


def number(value: float | None) -> str:
    """Return a number with four digits.

    >>> number(12345.678), number(0.00012), number(None)
    ('12,346', '0.00012', '–')
    """
    if value is None or not math.isfinite(value):
        return NOTHING
    return f"{value:,.0f}" if 1e4 <= abs(value) < 1e9 else f"{value:.4g}"


def words(name: str) -> str:
    """Return the name of a setting as words."""
    return WORDS.get(name, name.replace("_", " "))
