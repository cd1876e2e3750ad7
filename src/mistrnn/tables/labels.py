"""A table of labels, one row for each recording, and how labels become classes or numbers."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mistrnn.errors import UsageError
from mistrnn.tables._csv import number_of
from mistrnn.tables._read import SourceTable, id_of, read_table
from mistrnn.tables._whole import Texts, without_point, written_alike
from mistrnn.tables.recordings import Recording, Say, _some

ID_NAMES = ("id", "recording", "file")

_WHOLE = re.compile(r"-?[1-9][0-9]{0,17}|0")
"""A whole number that is written as Python writes it: 01 is a word."""


@dataclass(frozen=True)
class LabelTable:
    """A label, and perhaps a group, for each recording by its id."""

    source: SourceTable
    label_column: str
    row_of: dict[str, int]
    labels: Texts
    groups: Texts | None


def read_labels(
    path: Path, *, id_column: str | None, label_column: str, group_column: str | None, need_id: bool = False
) -> LabelTable:
    """Return the labels of a table, the groups too where it has that column.

    Unless `need_id` is true, the id column of the recordings may have another name here.
    """
    table = read_table(path)
    names = ", ".join(map(repr, table.names))
    if id_column is None or id_column not in table.names:
        found = next((name for name in table.names if name.lower() in ID_NAMES), None)
        if found is None or need_id:
            wanted = repr(id_column) if id_column else f"called {', '.join(ID_NAMES)} (or choose it with --id-column)"
            raise UsageError(f"{path}: expected a column {wanted} with the recordings' ids; there are {names}.")
        id_column = found
    if label_column not in table.names:
        raise UsageError(
            f"{path}: expected the labels in a column {label_column!r} (or choose it with --label-column); there are {names}."
        )
    row_of: dict[str, int] = {}
    for row, name in enumerate(table.texts(id_column)):
        if name is None:
            raise UsageError(f"{table.place(row)}: expected an id in column {id_column!r}, got an empty cell.")
        if name in row_of:
            raise UsageError(
                f"{table.place(row)}: expected every recording once, got {name!r} again; it was in {table.place(row_of[name])}."
            )
        row_of[name] = row
    (labels,) = written_alike([table.texts(label_column)])
    groups: Texts | None = None
    if group_column is not None and group_column in table.names:
        (groups,) = written_alike([table.texts(group_column)])
    return LabelTable(table, label_column, row_of, labels, groups)


def give_labels(recordings: Sequence[Recording], table: LabelTable, say: Say) -> list[Recording]:
    """Return the recordings with their labels. An empty label leaves a recording out; none at all is an error."""
    known = {one.id for one in recordings}
    row_of = _rows_by_id(recordings, table)
    path = table.source.path
    without = [one.id for one in recordings if one.id not in row_of]
    if len(without) == len(recordings):
        raise UsageError(
            f"{path}: expected the recordings' ids, got none of them. Ids here: {_some(list(table.row_of), 3)}; recordings: "
            f"{_some(without, 3)}."
        )
    if without:
        raise UsageError(
            f"{path}: expected a row for every recording, got none for {len(without)} of {len(recordings)}: {_some(without)}. "
            "Add them; with an empty label they are left out."
        )
    spare = [name for name in row_of if name not in known]
    if spare:
        say(f"{path}: {len(spare)} of {len(row_of)} rows belong to no recording that was read: {_some(spare)}.")
    found = []
    for one in recordings:
        row = row_of[one.id]
        group = one.group
        if table.groups is not None:
            group = table.groups[row]
            if group is None:
                raise UsageError(f"{table.source.place(row)}: expected the group of {one.id!r}, got an empty cell.")
        found.append(replace(one, label=table.labels[row], group=group))
    return found


def _rows_by_id(recordings: Sequence[Recording], table: LabelTable) -> dict[str, int]:
    """Return the row of each recording by its id, for which file names and 7.0 instead of 7 are taken, too."""
    known = {one.id for one in recordings}
    alike = {without_point(own): own for own in known}
    row_of: dict[str, int] = {}
    for name, row in table.row_of.items():
        own = next((own for own in (name, id_of(name)) if own in known), None)
        own = own or alike.get(without_point(name), id_of(name))
        if own in row_of:
            raise UsageError(
                f"{table.source.place(row)}: expected every recording once, got {own!r} again; it was in "
                f"{table.source.place(row_of[own])}."
            )
        row_of[own] = row
    return row_of


def as_classes(texts: Texts) -> NDArray[Any]:
    """Return labels as classes: whole numbers if all are written as such, else the words as they are; None stays None.

    >>> as_classes(np.array(["2", "10", None], dtype=object))
    array([2, 10, None], dtype=object)
    >>> as_classes(np.array(["01", "2"], dtype=object))
    array(['01', '2'], dtype=object)
    """
    words = {text for text in texts.tolist() if text is not None}
    whole = all(_WHOLE.fullmatch(word) for word in words)
    meaning: dict[str | None, Any] = {word: int(word) if whole else word for word in words}
    meaning[None] = None
    found = np.empty(len(texts), dtype=object)
    found[:] = [meaning[text] for text in texts.tolist()]
    return found


def as_numbers(recordings: Sequence[Recording], table: LabelTable) -> NDArray[np.float64]:
    """Return the labels of recordings as numbers."""
    found = []
    for one in recordings:
        try:
            value = number_of(str(one.label))
        except ValueError:
            value = np.nan
        if not np.isfinite(value):
            row = _rows_by_id(recordings, table)[one.id]
            raise UsageError(
                f"{table.source.place(row)}, column {table.label_column!r}: expected a number, because of --regress, got "
                f"{one.label!r}."
            )
        found.append(value)
    return np.array(found)
