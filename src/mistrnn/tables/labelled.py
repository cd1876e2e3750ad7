"""Recordings with their labels: from a table with one for each recording, or from a column of the recordings."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mistrnn.errors import UsageError
from mistrnn.tables.labels import as_classes, give_labels, read_labels
from mistrnn.tables.recordings import Reading, Recording, Say, one_label_each, read_recordings

FEWEST_ROWS = 2
"""Of a recording that is trained on: one row alone has no past."""
MOST_NAMED = 5


def read_labelled(
    place: Path, reading: Reading, *, labels: Path | None, per_recording: bool, say: Say
) -> tuple[list[Recording], Reading]:
    """Return the recordings that have a label, to be trained on, and the reading with its columns filled in.

    Args:
        place: a folder, in which every file is a recording, or one long table.
        reading: which columns are what.
        labels: a table with a label for each recording; none if the labels are a column of the recordings.
        per_recording: whether that column says the same in all rows of a recording, which is then its label.
        say: takes notices.
    """
    for what in ("label", "time", "group", "id"):
        name = getattr(reading, f"{what}_column")
        if name is not None and name in (reading.columns or ()):
            raise UsageError(f"expected --columns without {name!r}, because it is the {what} column, not an input.")
    need_id = reading.id_column is not None
    table = None
    if labels is not None:
        table = read_labels(
            labels,
            id_column=reading.id_column,
            label_column=reading.label_column or "label",
            group_column=reading.group_column,
            need_id=need_id and place.is_dir(),
        )
    found, reading = read_recordings(
        place,
        reading,
        labels=table is None,
        groups=reading.group_column is not None and (table is None or table.groups is None),
        strict=True,
        need_id=need_id,
        skip=[] if labels is None else [labels],
        say=say,
    )
    if table is not None:
        found = give_labels(found, table, say)
    elif per_recording:
        found = one_label_each(found, str(reading.label_column))
    found = _with_labels(place, reading, found, say)
    for one in found:
        if len(one.values) < FEWEST_ROWS:
            raise UsageError(
                f"{one.place(0)}: expected at least {FEWEST_ROWS} rows in recording {one.id!r}, because one alone has no past, "
                "got 1. Leave it out."
            )
    return found, reading


def _with_labels(place: Path, reading: Reading, recordings: Sequence[Recording], say: Say) -> list[Recording]:
    without = [one.id for one in recordings if all(label is None for label in _texts(one).tolist())]
    if len(without) == len(recordings):
        raise UsageError(f"{place}: expected labels in column {reading.label_column!r}, got only empty cells.")
    if without:
        more = f" and {len(without) - MOST_NAMED} more" if len(without) > MOST_NAMED else ""
        say(f"{len(without)} recordings have no label and are left out: {', '.join(without[:MOST_NAMED])}{more}.")
    gone = set(without)
    return [one for one in recordings if one.id not in gone]


def _texts(recording: Recording) -> NDArray[Any]:
    """Return the labels of a recording's rows, or its one label."""
    return np.array([recording.label], dtype=object) if recording.row_labels is None else recording.row_labels


def classes_of(recordings: Sequence[Recording], label_column: str) -> list[NDArray[Any]]:
    """Return the classes of each recording's rows, None for none, or its one class."""
    pieces = [_texts(one) for one in recordings]
    labels = as_classes(np.concatenate(pieces))
    there = sorted({label for label in labels if label is not None})
    if len(there) < 2:
        raise UsageError(
            f"expected at least 2 classes in the label column {label_column!r}, because one alone leaves nothing to learn, got "
            f"only {there[0]!r}."
        )
    if fraction := next(iter(_fractions(there)), None):
        raise UsageError(
            f"expected classes in the label column {label_column!r}, words or whole numbers, got numbers such as {fraction}. "
            "Write words for them."
        )
    return np.split(labels, np.cumsum([len(piece) for piece in pieces])[:-1])


def _fractions(classes: Sequence[Any]) -> list[str]:
    """Return the classes that are fractions, if all are numbers."""
    if not isinstance(classes[0], str):
        return []
    try:
        return [label for label in classes if float(label) != round(float(label))]
    except (ValueError, OverflowError):
        return []
