"""Recordings with what is to be learnt of them: classes, numbers, or a class for each row."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mistrnn.cli._model_folder import Kind
from mistrnn.cli._notices import say, say_words_for_nothing
from mistrnn.errors import UsageError
from mistrnn.estimators import SequenceEstimator
from mistrnn.tables import (
    LabelTable,
    Reading,
    Recording,
    as_classes,
    as_numbers,
    give_labels,
    one_label_each,
    read_labels,
    read_recordings,
    without_point,
)

FEWEST_ROWS = 2
"""Of a recording that is trained on: one row alone has no past."""


def labelled(
    place: Path,
    reading: Reading,
    kind: Kind,
    labels: Path | None,
    *,
    training: bool,
    need_id: bool,
    skip: Sequence[Path] = (),
) -> tuple[list[Recording], Reading, LabelTable | None]:
    """Return the recordings that have a label; what is in `skip`, and the table of labels, is none of them."""
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
    elif kind == "recordings":
        found = one_label_each(found, str(reading.label_column))
    without = (
        [one.id for one in found if one.label is None]
        if kind != "rows"
        else [one.id for one in found if one.row_labels is not None and all(label is None for label in one.row_labels)]
    )
    if len(without) == len(found):
        raise UsageError(f"{place}: expected labels in column {reading.label_column!r}, got only empty cells.")
    if without:
        more = f" and {len(without) - 5} more" if len(without) > 5 else ""
        say(f"{len(without)} recordings have no label and are left out: {', '.join(without[:5])}{more}.")
    gone = set(without)
    found = [one for one in found if one.id not in gone]
    if training:
        _check_long_enough(found)
    return found, reading, table


def _check_long_enough(recordings: Sequence[Recording]) -> None:
    for one in recordings:
        if len(one.values) < FEWEST_ROWS:
            raise UsageError(
                f"{one.place(0)}: expected at least {FEWEST_ROWS} rows in recording {one.id!r}, because one alone has no past, "
                "got 1. Leave it out."
            )


def targets_of(
    recordings: Sequence[Recording],
    kind: Kind,
    table: LabelTable | None,
    reading: Reading,
    known: SequenceEstimator | None = None,
) -> tuple[list[Any], Counter[Any]]:
    """Return what is to be learnt of each recording, a class, a number or classes [time], and how often each class is there.

    With `known`, a fitted model, its classes are the only ones.
    """
    if kind == "numbers":
        assert table is not None
        return list(as_numbers(recordings, table)), Counter()
    pieces = [np.array([one.label], dtype=object) if one.row_labels is None else one.row_labels for one in recordings]
    texts = np.concatenate(pieces)
    if known is not None:
        classes = {str(label): label for label in known.classes_.tolist()}
        meaning = _meaning(set(texts.tolist()), classes)
        unknown = Counter(text for text in texts.tolist() if text not in meaning)
        if unknown:
            raise UsageError(_unknown_labels(recordings, pieces, unknown, list(classes), table))
        labels = np.empty(len(texts), dtype=object)
        labels[:] = [meaning[text] for text in texts.tolist()]
    else:
        labels = as_classes(texts)
        _check_are_classes(labels, reading)
    counts = Counter(label for label in labels if label is not None)
    if known is None:
        say_words_for_nothing(counts, kind)
    if kind == "recordings":
        return labels.tolist(), counts
    edges = np.cumsum([len(one.values) for one in recordings])[:-1]
    return np.split(labels, edges), counts


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


def _check_are_classes(labels: NDArray[Any], reading: Reading) -> None:
    there = sorted({label for label in labels if label is not None})
    if len(there) < 2:
        raise UsageError(
            f"expected at least 2 classes in the label column {reading.label_column!r}, because one alone leaves nothing to "
            f"learn, got only {there[0]!r}."
        )
    if isinstance(there[0], str):
        try:
            fractions = [label for label in there if float(label) != round(float(label))]
        except (ValueError, OverflowError):
            return
        if fractions:
            raise UsageError(
                f"expected classes in the label column {reading.label_column!r}, words or whole numbers, got numbers such as "
                f"{fractions[0]}. Predict numbers with --regress, or write words for them."
            )


def _unknown_labels(
    recordings: Sequence[Recording],
    pieces: Sequence[NDArray[Any]],
    unknown: Counter[str],
    known: Sequence[str],
    table: LabelTable | None,
) -> str:
    first = next(iter(unknown))
    if table is not None:
        where = next(table.source.place(row) for row, label in enumerate(table.labels) if label == first)
    else:
        one, piece = next((one, piece) for one, piece in zip(recordings, pieces, strict=True) if (piece == first).any())
        where = one.place(int(np.flatnonzero(piece == first)[0]))
    others = ", ".join(f"{label!r} ({count:,} times)" for label, count in unknown.most_common(5))
    return f"{where}: expected the classes that the model knows, {', '.join(map(repr, known))}, got {others}."


def contents_of(recordings: Sequence[Recording], kind: Kind) -> list[Counter[Any]]:
    """Return how much of each class a recording holds."""
    if kind == "numbers":
        return [Counter({"": 1}) for _ in recordings]
    if kind == "recordings":
        return [Counter({one.label: 1}) for one in recordings]
    return [
        Counter(label for label in one.row_labels if label is not None)
        for one in recordings
        if one.row_labels is not None
    ]
