"""Recordings with their labels: from a table with one for each recording, or from a column of the recordings."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mistrnn.errors import UsageError
from mistrnn.tables._whole import without_point
from mistrnn.tables.labels import LabelTable, as_classes, give_labels, read_labels
from mistrnn.tables.recordings import Reading, Recording, Say, one_label_each, read_recordings

FEWEST_ROWS = 2
"""Of a recording that is trained on: one row alone has no past."""
MOST_NAMED = 5
WRITE_WORDS = "Write words for them."


class Labelled(NamedTuple):
    """Recordings with a label."""

    recordings: list[Recording]
    reading: Reading
    """With its columns filled in."""
    table: LabelTable | None
    """The table of labels, if there is one."""


def read_labelled(
    place: Path,
    reading: Reading,
    *,
    labels: Path | None,
    per_recording: bool,
    training: bool = True,
    need_id: bool | None = None,
    skip: Sequence[Path] = (),
    say: Say,
) -> Labelled:
    """Return the recordings that have a label.

    Args:
        place: a folder, in which every file is a recording, or one long table.
        reading: which columns are what.
        labels: a table with a label for each recording; none if the labels are a column of the recordings.
        per_recording: whether that column says the same in all rows of a recording, which is then its label.
        training: whether they are trained on: then the groups are read, too, and every file must have the same columns.
        need_id: whether a long table and the table of labels must have the id column; if it is named, unless told otherwise.
        skip: files of the folder that are no recordings; the table of labels is none in any case.
        say: takes notices.
    """
    if training:
        _check_columns(reading)
    need_id = reading.id_column is not None if need_id is None else need_id
    table = None
    if labels is not None:
        table = read_labels(
            labels,
            id_column=reading.id_column,
            label_column=reading.label_column or "label",
            group_column=reading.group_column if training else None,
            need_id=need_id and place.is_dir(),
        )
    found, reading = read_recordings(
        place,
        reading,
        labels=table is None,
        groups=training and reading.group_column is not None and (table is None or table.groups is None),
        strict=training,
        need_id=need_id,
        skip=[*skip, *([] if labels is None else [labels])],
        say=say,
    )
    if table is not None:
        found = give_labels(found, table, say)
    elif per_recording:
        found = one_label_each(found, str(reading.label_column))
    found = _with_labels(place, reading, found, say)
    for one in found if training else ():
        if len(one.values) < FEWEST_ROWS:
            raise UsageError(
                f"{one.place(0)}: expected at least {FEWEST_ROWS} rows in recording {one.id!r}, because one alone has no past, "
                "got 1. Leave it out."
            )
    return Labelled(found, reading, table)


def _check_columns(reading: Reading) -> None:
    for what in ("label", "time", "group", "id"):
        name = getattr(reading, f"{what}_column")
        if name is not None and name in (reading.columns or ()):
            raise UsageError(f"expected --columns without {name!r}, because it is the {what} column, not an input.")


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


def classes_of(recordings: Sequence[Recording], label_column: str, *, advice: str = WRITE_WORDS) -> list[NDArray[Any]]:
    """Return the classes of each recording's rows, None for none, or its one class.

    `advice` is what to do about labels that are numbers.
    """
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
            f"{advice}"
        )
    return _cut(labels, pieces)


def known_classes_of(
    recordings: Sequence[Recording], classes: Sequence[Any], table: LabelTable | None
) -> list[NDArray[Any]]:
    """Return the same for recordings whose classes are all among those that a model knows."""
    pieces = [_texts(one) for one in recordings]
    texts = np.concatenate(pieces).tolist()
    names = {str(label): label for label in classes}
    meaning = _meaning(set(texts), names)
    unknown = Counter(text for text in texts if text not in meaning)
    if unknown:
        where = _place_of(next(iter(unknown)), recordings, pieces, table)
        others = ", ".join(f"{label!r} ({count:,} times)" for label, count in unknown.most_common(MOST_NAMED))
        raise UsageError(
            f"{where}: expected the classes that the model knows, {', '.join(map(repr, names))}, got {others}."
        )
    labels = np.empty(len(texts), dtype=object)
    labels[:] = [meaning[text] for text in texts]
    return _cut(labels, pieces)


def _cut(labels: NDArray[Any], pieces: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
    return np.split(labels, np.cumsum([len(piece) for piece in pieces])[:-1])


def _fractions(classes: Sequence[Any]) -> list[str]:
    """Return the classes that are fractions, if all are numbers."""
    if not isinstance(classes[0], str):
        return []
    try:
        return [label for label in classes if float(label) != round(float(label))]
    except (ValueError, OverflowError):
        return []


def _meaning(texts: set[str | None], classes: dict[str, Any]) -> dict[str | None, Any]:
    """Return the class that each text means, if there is one: as it is written, else as a whole number, 1.0 for 1."""
    alike = {without_point(name): label for name, label in classes.items()}
    found: dict[str | None, Any] = {None: None}
    for text in texts - {None}:
        assert text is not None
        if text in classes:
            found[text] = classes[text]
        elif without_point(text) in alike:
            found[text] = alike[without_point(text)]
    return found


def _place_of(
    text: str, recordings: Sequence[Recording], pieces: Sequence[NDArray[Any]], table: LabelTable | None
) -> str:
    """Return where a label stands first, in words."""
    if table is not None:
        return next(table.source.place(row) for row, label in enumerate(table.labels) if label == text)
    one, piece = next((one, piece) for one, piece in zip(recordings, pieces, strict=True) if (piece == text).any())
    return one.place(int(np.flatnonzero(piece == text)[0]))
