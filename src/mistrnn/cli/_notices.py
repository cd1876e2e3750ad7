"""What `mist fit` says of data that can be read and may not be what was meant."""

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
    """Say which classes are called by a word that other programs write where nothing is; they may be real ones."""
    for label, count in counts.items():
        if str(label).lower() in MISSING:
            what = ("row" if kind == "rows" else "recording") + ("" if count == 1 else "s")
            say(
                f"{label!r} is learnt as a class ({count:,} {what}); leave the cell empty if it means that there is no label."
            )


def say_untested_classes(contents: Sequence[Counter[Any]], held: NDArray[np.bool_], group_column: str | None) -> None:
    """Say which classes are in nothing that was held out."""
    tested = {label for content, out in zip(contents, held, strict=True) for label in content if out}
    missing = sorted({label for content in contents for label in content} - tested)
    if held.any() and missing:
        why = "too few recordings have it" if group_column is None else f"no {group_column} that was held out has any"
        say(f"nothing that was held out is {', '.join(missing)}: {why}, so it is not judged.")


def say_doubtful_inputs(recordings: Sequence[Recording], reading: Reading) -> None:
    """Say which inputs tell nothing, whose a recording is, or when a row was measured."""
    names = reading.columns or ()
    lowest = np.min([one.values.min(0) for one in recordings], axis=0)
    highest = np.max([one.values.max(0) for one in recordings], axis=0)
    constant = [name for name, same in zip(names, lowest == highest, strict=True) if same]
    if constant:
        say(f"always the same in the training part, so nothing can be learnt from it: {', '.join(constant)}.")
    within = np.all([(one.values == one.values[0]).all(0) for one in recordings], axis=0)
    fixed = [name for name, same in zip(names, within, strict=True) if same and name not in constant]
    if fixed:
        say(
            f"the same throughout each recording: {', '.join(fixed)}. As an input, such a column may give away whose a "
            "recording is; choose the inputs with --columns, and say whose they are with --group-column."
        )
    rising = np.all([(np.diff(one.values, axis=0) > 0).all(0) for one in recordings], axis=0)
    clocks = [name for name, rises in zip(names, rising, strict=True) if rises]
    if clocks:
        say(
            f"rises from row to row in every recording, as a clock or a row number does: {', '.join(clocks)}. From such an "
            "input a model may learn the plan of the recordings instead; leave it out with --time-column, or choose the "
            "others with --columns."
        )
