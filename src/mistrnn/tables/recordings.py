"""Recordings from a folder, one in each file, or from one long table with an id in each row."""

import os
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mistrnn.errors import UsageError
from mistrnn.tables._read import SUFFIXES, SourceTable, id_of, place_of, read_table
from mistrnn.tables._whole import Texts, without_point, written_alike

TIME_NAME = re.compile(
    r"(time|timestamp|seconds|datetime|date)(?![^\W\d_])|t([\W_]+(s|ms|us|ns))?[\W_]*$", re.IGNORECASE
)
"""What the name of a time column begins with: such a word, as in `Time (s)` but not `timer`, or t alone or with a unit, as in
`t_ms`. With anything else behind it, as in t1 or t_room, a t may well be a temperature."""
ROW_NUMBERS = re.compile(r"Unnamed: [0-9.]+")
"""What pandas calls a column without a name, such as the row numbers that it writes, after reading it."""
CHOOSE_COLUMNS = "Choose the columns to read with --columns."
LARGEST = 1e30
"""What is larger is no measurement, and overflows in the network."""
UNEVEN, UNEVEN_SHARE = 0.5, 0.01
"""Sampling is called irregular where more than 1% of the steps are half as long again as the median, or half as short."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class Reading:
    """Which columns are what; kept with a model, so that new data is read like the data it was trained on."""

    columns: tuple[str, ...] | None = None
    """The inputs, in their order; None for all that are nothing else."""
    id_column: str | None = None
    time_column: str | None = None
    label_column: str | None = None
    group_column: str | None = None


@dataclass(frozen=True)
class Recording:
    """One recording: what was measured in each row, in the order of time."""

    id: str
    path: Path
    values: NDArray[np.float64]
    """[time, channels]"""
    rows: NDArray[np.int64]
    """[time] The row of the file, from 0, that each of them is."""
    times: Texts | None = None
    """[time] As they are written."""
    seconds: NDArray[np.float64] | None = None
    """[time] The same as numbers, in whatever unit."""
    row_labels: Texts | None = None
    """[time] None where a row has no label."""
    label: str | None = None
    """Of the whole recording."""
    group: str | None = None

    def place(self, step: int) -> str:
        """Return where a step stands, in words."""
        return place_of(self.path, int(self.rows[step]))


def read_recordings(
    place: Path,
    reading: Reading,
    *,
    labels: bool,
    groups: bool,
    strict: bool,
    need_id: bool = False,
    skip: Sequence[Path] = (),
    say: Say,
) -> tuple[list[Recording], Reading]:
    """Return the recordings of a folder or a long table, and the reading with its columns filled in.

    Args:
        place: a folder, in which every file is a recording, or one file.
        reading: which columns are what.
        labels: whether to read a label for each row.
        groups: whether to read the group that each recording belongs to.
        strict: whether all files must have the same columns, where these were not chosen.
        need_id: whether a single file must have the id column; without, one that has none is a single recording.
        skip: files of the folder that are no recordings.
        say: takes notices.
    """
    found: list[Recording] = []
    origin: Path | None = None
    chosen = reading.columns is not None  # or a model's
    advice = "" if chosen else CHOOSE_COLUMNS
    if advice and place.is_file() and not need_id:
        advice += " If one of them names the recording of each row, say so with --id-column."
    files: dict[str, Path] = {}
    unnamed: list[Path] = []
    for name, path in _files(place, skip, say):
        if name in files:
            raise UsageError(f"expected one file for each recording, got two of {name!r}: {files[name]} and {path}.")
        files[name] = path
        table = read_table(path)
        if table.unnamed or (not chosen and any(map(ROW_NUMBERS.fullmatch, _others(table, reading)))):
            unnamed.append(path)
        if reading.columns is None:
            reading = replace(reading, columns=_inputs(table, reading))
            origin = path if strict else None
        elif origin is not None:
            _check_same_columns(table, origin, reading)
        if need_id and place.is_file() and reading.id_column not in table.names:
            raise UsageError(
                f"{path}: expected the id column {reading.id_column!r}; there are {', '.join(map(repr, table.names))}."
            )
        found += _recordings_of(table, name if place.is_dir() else None, reading, labels, groups, advice, say)
    found = _named_alike(found)
    if unnamed:
        say(f"left out columns without a name (row numbers?) in {_some([str(path) for path in unnamed])}.")
    if reading.time_column is not None:
        _say_if_uneven(found, reading.time_column, say)
    return found, reading


def one_label_each(recordings: Sequence[Recording], column: str) -> list[Recording]:
    """Return recordings whose rows all have the same label, as recordings with one label."""
    return [replace(one, label=_constant(one, one.row_labels, column, "label"), row_labels=None) for one in recordings]


def _files(place: Path, skip: Sequence[Path], say: Say) -> Iterator[tuple[str, Path]]:
    """Yield the id and the path of every file with recordings."""
    if not place.exists():
        raise UsageError(f"{place}: there is no such folder or file.")
    if place.is_file():
        yield id_of(place.name), place
        return
    skipped = {path.resolve() for path in skip}
    others, count = [], 0
    entered: set[str] = set()
    for folder, folders, names in os.walk(place, followlinks=True):
        real = os.path.realpath(folder)
        if real in entered:  # a link to a folder that holds it
            folders.clear()
            continue
        entered.add(real)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            path = Path(folder) / name
            if name.startswith(".") or path.resolve() in skipped:
                continue
            inside = path.relative_to(place).as_posix()
            if any("\ud800" <= letter <= "\udfff" for letter in inside):  # a byte that is no text
                raise UsageError(f"{place}: expected names of files in UTF-8, got {inside!a}. Rename it.")
            if not name.lower().endswith(SUFFIXES):
                others.append(inside)
                continue
            count += 1
            yield id_of(inside), path
    if others:
        say(f"{place}: left out what is no recording ({', '.join(SUFFIXES)}): {_some(others)}.")
    if not count:
        raise UsageError(f"{place}: expected recordings, files that end in {', '.join(SUFFIXES)}, got none.")


def _inputs(table: SourceTable, reading: Reading) -> tuple[str, ...]:
    """Return the columns that are nothing else."""
    names = tuple(name for name in _others(table, reading) if not ROW_NUMBERS.fullmatch(name))
    if not names:
        raise UsageError(f"{table.path}: expected columns to read, got only {', '.join(table.names)}.")
    times = [name for name in names if TIME_NAME.match(name)]
    if times:
        raise UsageError(
            f"{table.path}: expected to be told whether the column {times[0]!r} is the time of each row, because a model that "
            f"reads the time may learn the plan of the recordings instead: --time-column {shlex.quote(times[0])}, or "
            "choose --columns."
        )
    return names


def _others(table: SourceTable, reading: Reading) -> list[str]:
    """Return the columns that are not id, time, label or group."""
    spoken_of = {reading.id_column, reading.time_column, reading.label_column, reading.group_column}
    return [name for name in table.names if name not in spoken_of]


def _check_same_columns(table: SourceTable, origin: Path, reading: Reading) -> None:
    known = reading.columns or ()
    more = [name for name in _others(table, reading) if name not in known and not ROW_NUMBERS.fullmatch(name)]
    if more:
        raise UsageError(
            f"{table.path}: expected the columns of {origin}, which are {', '.join(known)}, got {_some(more)} "
            f"as well. {CHOOSE_COLUMNS}"
        )


def _recordings_of(
    table: SourceTable, name: str | None, reading: Reading, labels: bool, groups: bool, advice: str, say: Say
) -> list[Recording]:
    """Return the recordings of one file; `name` is the id of the only one, None if the rows have ids.

    `advice` is what to do about a column that holds something else than numbers.
    """
    if not len(table):
        raise UsageError(f"{table.path}: expected rows below the names of the columns, got none.")
    columns = reading.columns or ()
    others = {"time": reading.time_column, "label": reading.label_column if labels else None}
    others["group"] = reading.group_column if groups else None
    wanted = [*columns, *(column for column in others.values() if column is not None)]
    missing = [column for column in wanted if column not in table.names]
    if missing:
        raise UsageError(
            f"{table.path}: expected the columns {', '.join(map(repr, missing))}, which are missing; there are "
            f"{', '.join(map(repr, table.names))}."
        )
    values = np.stack([table.numbers(column, advice) for column in columns], axis=1)
    bad = ~(np.abs(values) < LARGEST)  # nan too
    if bad.any():
        row, channel = (int(index) for index in np.argwhere(bad)[0])
        count = int(bad.sum())
        value = values[row, channel]
        too_large = ", which is too large" if np.isfinite(value) else ""
        what = "an empty cell" if table.is_empty(columns[channel], row) else f"{value}{too_large}"
        cells = "1 such cell" if count == 1 else f"{count:,} such cells"
        raise UsageError(
            f"{table.place(row)}, column {columns[channel]!r}: expected a number, got {what} ({cells} in this file). "
            "Fill gaps with the last value or an interpolation, or leave these rows out."
        )
    seconds = None if reading.time_column is None else table.times(reading.time_column)
    texts = {kind: None if column is None else table.texts(column) for kind, column in others.items()}
    found = []
    for own, rows in _grouped(table, name, reading, say):
        one = Recording(own, table.path, values[rows], rows)
        if seconds is not None:
            rows = _in_time(table, rows, seconds[rows], str(reading.time_column))
            one = Recording(own, table.path, values[rows], rows, seconds=seconds[rows])
        if (times := texts["time"]) is not None:
            one = replace(one, times=times[rows])
        if (row_labels := texts["label"]) is not None:
            one = replace(one, row_labels=row_labels[rows])
        if (whose := texts["group"]) is not None:
            group = _constant(one, whose[rows], str(reading.group_column), "group")
            if group is None:
                raise UsageError(f"{one.place(0)}: expected a group in column {reading.group_column!r}, got none.")
            one = replace(one, group=group)
        found.append(one)
    return found


def _named_alike(recordings: list[Recording]) -> list[Recording]:
    """Return recordings whose labels and groups are written alike in all files: only the files with a gap may say 1.0."""
    if all(one.row_labels is not None for one in recordings):
        labels = written_alike([one.row_labels for one in recordings if one.row_labels is not None])
        recordings = [replace(one, row_labels=own) for one, own in zip(recordings, labels, strict=True)]
    (groups,) = written_alike([np.array([one.group for one in recordings], dtype=object)])
    return [replace(one, group=group) for one, group in zip(recordings, groups.tolist(), strict=True)]


def _grouped(
    table: SourceTable, name: str | None, reading: Reading, say: Say
) -> Iterator[tuple[str, NDArray[np.int64]]]:
    """Yield the id of each recording in a file, and its rows."""
    column = reading.id_column
    if name is None and column is not None and column not in table.names:
        say(f"{table.path}: there is no column {column!r}, so this is read as one recording.")
        column = None
    if column is None or column not in table.names:
        yield name or id_of(table.path.name), np.arange(len(table))
        return
    (ids,) = written_alike([table.texts(column)])
    empty = np.flatnonzero(ids == None)  # noqa: E711  (compared cell by cell)
    if name is not None:  # a file of a folder
        if len(set(ids.tolist())) > 1:
            raise UsageError(
                f"{table.path}: expected one recording, because each file of a folder is one, got several in column "
                f"{column!r}. Give one long table instead of a folder."
            )
        yield name, np.arange(len(table))
        return
    if len(empty):
        raise UsageError(
            f"{table.place(int(empty[0]))}: expected an id in column {column!r}, got an empty cell ({len(empty):,} such rows)."
        )
    number = {own: place for place, own in enumerate(dict.fromkeys(ids.tolist()))}  # as they come in the file
    codes = np.array([number[own] for own in ids.tolist()])
    order = np.argsort(codes, kind="stable")
    yield from zip(number, np.split(order, np.flatnonzero(np.diff(codes[order])) + 1), strict=True)


def _in_time(table: SourceTable, rows: NDArray[np.int64], times: NDArray[np.float64], column: str) -> NDArray[np.int64]:
    """Return the rows in the order of their times."""
    if np.isnan(times).any():
        row = int(rows[np.isnan(times)][0])
        raise UsageError(f"{table.place(row)}: expected a time in column {column!r}, got an empty cell.")
    if np.isinf(times).any():
        row = int(rows[np.isinf(times)][0])
        raise UsageError(f"{table.place(row)}: expected a time in column {column!r}, got an infinite one.")
    order = np.argsort(times, kind="stable")
    same = np.flatnonzero(np.diff(times[order]) == 0)
    if len(same):
        one, other = (int(rows[order[same[0] + k]]) for k in (0, 1))
        coarse = " In float64, such large numbers are the same: count from a later time." if times.max() > 2**53 else ""
        raise UsageError(
            f"{table.place(other)}: expected every time once in a recording, got that of {table.place(one)} again in column "
            f"{column!r} ({len(same):,} such rows).{coarse}"
        )
    return rows[order]


def _say_if_uneven(recordings: Sequence[Recording], column: str, say: Say) -> None:
    uneven = []
    for one in recordings:
        assert one.seconds is not None
        steps = np.diff(one.seconds)
        if len(steps) > 1 and (np.abs(steps / np.median(steps) - 1) > UNEVEN).mean() > UNEVEN_SHARE:
            uneven.append(one.id)
    if uneven:
        say(
            f"the rows of {len(uneven)} of {len(recordings)} recordings are far from evenly spaced in {column!r} "
            f"({_some(uneven)}); the model reads them as if they were. Resample them if that matters."
        )


def _constant(recording: Recording, values: Any, column: str, what: str) -> str | None:
    """Return the one value that a column has within a recording, None if it is empty."""
    there = np.flatnonzero(values != None)  # noqa: E711  (compared cell by cell)
    if not len(there):
        return None
    first = without_point(values[there[0]])  # files are written alike only when all have been read
    others = {value for value in values[there].tolist() if without_point(value) != first}
    if others:
        step = next(int(k) for k in there if values[k] in others)
        raise UsageError(
            f"{recording.place(step)}, column {column!r}: expected one {what} in recording {recording.id!r}, got "
            f"{values[there[0]]!r} and {values[step]!r}."
        )
    return str(values[there[0]])


def _some(names: Sequence[str], most: int = 5) -> str:
    """Return names, not too many of them."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
