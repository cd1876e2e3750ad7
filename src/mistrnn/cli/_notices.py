"""Notices of `mist fit` and `mist tune` about data that can be read and may not be as intended."""

import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mistrnn.cli._model_folder import Kind
from mistrnn.tables import Reading, Recording
from mistrnn.tables._csv import MISSING


def say(text: str) -> None:
    """Write a notice to standard error."""
    print(f"note: {text}", file=sys.stderr, flush=True)


def say_words_for_nothing(counts: Counter[Any], kind: Kind) -> None:
    """Say which classes have the name of a missing value in other programs."""
    for label, count in counts.items():
        if str(label).lower() in MISSING:
            what = ("row" if kind == "rows" else "recording") + ("" if count == 1 else "s")
            say(
                f"{label!r} is learnt as a class ({count:,} {what}); leave the cell empty if it means that there is no label."
            )


def say_untested_classes(contents: Sequence[Counter[Any]], held: NDArray[np.bool_], group_column: str | None) -> None:
    """Say which classes the held-out recordings lack."""
    tested = {label for content, out in zip(contents, held, strict=True) for label in content if out}
    missing = sorted({label for content in contents for label in content} - tested)
    if held.any() and missing:
        why = "too few recordings have them" if group_column is None else f"no held-out {group_column} has them"
        say(f"classes that are not evaluated, because {why}: {', '.join(map(str, missing))}.")


def say_doubtful_inputs(recordings: Sequence[Recording], reading: Reading) -> None:
    """Say which inputs are constant, or may give away the person or the time."""
    names = reading.columns or ()
    lowest = np.min([one.values.min(0) for one in recordings], axis=0)
    highest = np.max([one.values.max(0) for one in recordings], axis=0)
    constant = [name for name, same in zip(names, lowest == highest, strict=True) if same]
    if constant:
        say(f"constant in the training set, so nothing can be learnt from it: {', '.join(constant)}.")
    within = np.all([(one.values == one.values[0]).all(0) for one in recordings], axis=0)
    fixed = [name for name, same in zip(names, within, strict=True) if same and name not in constant]
    if fixed:
        say(
            f"constant within each recording: {', '.join(fixed)}. Such an input may identify the person; choose the inputs "
            "with --columns, and name the column of the person with --group-column."
        )
    rising = np.all([(np.diff(one.values, axis=0) > 0).all(0) for one in recordings], axis=0)
    clocks = [name for name, rises in zip(names, rising, strict=True) if rises]
    if clocks:
        say(
            f"rises from row to row in every recording, as a clock or a row number does: {', '.join(clocks)}. A model may "
            "learn the order of the recordings from such an input; leave it out with --time-column, or choose the others "
            "with --columns."
        )
