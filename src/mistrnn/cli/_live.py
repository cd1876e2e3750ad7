"""`mist stream`: a line in, a line out, in constant time and memory."""

import csv
import io
import math
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from mistrnn.cli._app import write_every_letter
from mistrnn.cli._model_folder import load_model
from mistrnn.errors import UsageError
from mistrnn.tables._csv import DELIMITERS, MISSING, delimiter_of, is_number, number_of
from mistrnn.tables.recordings import LARGEST

LONGEST_LINE = 2**20
"""Bytes; what is longer is no row of measurements."""


class BadLineError(UsageError):
    """A line that cannot be read as a row."""


class Rows:
    """Makes rows of numbers from lines of CSV.

    The first line of a recording may name its columns, in any order and with others among them; without that, a line holds
    the model's columns in their order. Names that are all numbers cannot be told from a row, so then every line is one.

    >>> rows = Rows(["x", "y"])
    >>> rows.row("y,note,x"), rows.row("2,walking,1")
    (None, [1.0, 2.0])
    >>> rows.restart()
    >>> rows.row("x,y"), rows.row("3,4")
    (None, [3.0, 4.0])
    """

    def __init__(self, columns: list[str]) -> None:
        self._columns = columns
        self.names_are_numbers = all(is_number(name) for name in columns)
        self._places, self._cells = list(range(len(columns))), len(columns)
        self._delimiter = ","
        self._first = True

    def restart(self) -> None:
        """Let a new recording begin: the columns may be named again; if they are not, they stay as they were named before."""
        self._first = True

    def row(self, line: str) -> list[float] | None:
        """Return the numbers of a line, None if it names the columns."""
        try:
            delimiter = self._delimiter_of_first(line) if self._first else self._delimiter
            cells = _cells(line, delimiter)
        except csv.Error as error:
            raise BadLineError(f"not readable as CSV ({error}).") from None
        named = not self.names_are_numbers and not all(is_number(cell) for cell in cells)
        if self._first and named and self._take_names(cells):
            self._first, self._delimiter = False, delimiter
            return None
        if len(cells) != self._cells:
            raise BadLineError(f"expected {self._cells} cells, got {len(cells)}: {_short(line)}.")
        numbers = [self._number(place, cells[place]) for place in self._places]
        self._first, self._delimiter = False, delimiter
        return numbers

    def _delimiter_of_first(self, line: str) -> str:
        """Return what separates the cells of a first line: what finds most of the model's columns, whose names may have commas.

        A file is judged by its second line, too, but that has not come yet.
        """

        def named(delimiter: str) -> int:
            cells = _cells(line, delimiter)
            return sum(name in cells for name in self._columns)

        return max((delimiter_of(line), *DELIMITERS), key=named)

    def _take_names(self, cells: list[str]) -> bool:
        """Take the names of the columns from a line; return whether it holds them."""
        if not any(cell in self._columns for cell in cells):
            if any(is_number(cell) for cell in cells):
                return False  # a row with something else in it
            # Names of other columns; a greeting of the device has fewer cells.
            looks_like_names = len(cells) == self._cells > 1 and all(cell[:1].isalpha() for cell in cells)
            looks_like_names = looks_like_names and not any(cell.lower() in MISSING for cell in cells)
            raise (UsageError if looks_like_names else BadLineError)(
                f"expected the columns {', '.join(self._columns)}, or numbers, got {_short(','.join(cells))}."
            )
        missing = [name for name in self._columns if name not in cells]
        if missing:
            raise UsageError(f"expected the columns {', '.join(missing)}, too; there are {', '.join(cells)}.")
        twice = [name for name in self._columns if cells.count(name) > 1]
        if twice:
            raise UsageError(f"expected every column once, got {twice[0]!r} {cells.count(twice[0])} times.")
        self._places, self._cells = [cells.index(name) for name in self._columns], len(cells)
        return True

    def _number(self, place: int, cell: str) -> float:
        try:
            value = number_of(cell)
        except ValueError:
            value = math.nan
        if not abs(value) < LARGEST:  # nan too
            name = self._columns[self._places.index(place)]
            too_large = ", which is too large" if math.isfinite(value) else ""
            raise BadLineError(f"column {name!r}: expected a number, got {cell!r}{too_large}.")
        return value


def answer_lines(model: Path, *, skip_bad: bool) -> int:
    """Answer every line of standard input on standard output until either ends; return the exit status."""
    if sys.stdin is None or sys.stdout is None:
        raise UsageError("expected open standard input and output: rows come from the one, answers go to the other.")
    write_every_letter(sys.stdout, encoding="utf-8")  # as what is read, wherever this runs
    estimator, kept = load_model(model)
    try:
        live = estimator.stream()
    except ValueError as error:  # a layer that reads in both directions
        raise UsageError(f"{model}: cannot be streamed. {error}") from error
    columns = list(kept.reading.columns or ())
    rows = Rows(columns)
    has_classes = kept.kind != "numbers"
    outputs = estimator.network_.output_size
    values_named: list[object] = ["value"] if outputs == 1 else [f"value{k}" for k in range(outputs)]
    header: list[object] = ["label", "probability"] if has_classes else values_named
    bad, first_bad = 0, ""
    try:
        _write(header)
        number = 0
        # Bytes, line by line: nothing is read ahead of what has come.
        while data := sys.stdin.buffer.readline(LONGEST_LINE):
            number += 1
            try:
                line = _decoded(data)
                if not line.strip():
                    live.reset()
                    rows.restart()
                    _write([])
                    continue
                values = rows.row(line)
                said: Any = None if values is None else _answer(live, values)
            except BadLineError as error:
                if not skip_bad:
                    raise UsageError(f"line {number}: {error} Skip such lines with --skip-bad.") from None
                bad, first_bad = bad + 1, first_bad or f"line {number}: {error}"
                _write([""] * len(header))
                continue
            except UsageError as error:
                raise UsageError(f"line {number}: {error}") from None
            if values is None:
                continue
            if number == 1 and rows.names_are_numbers and values == [number_of(name) for name in columns]:
                print(
                    "note: line 1 is read as a row: the names of the model's columns are numbers, so no line is a header.",
                    file=sys.stderr,
                    flush=True,
                )
            _write(
                [said.label, f"{said.probability:.6f}"]
                if has_classes
                else [f"{value:.9g}" for value in np.atleast_1d(said)]
            )
    except BrokenPipeError:
        # The reader has left. What is left in the buffer must not be flushed at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return 130
    if bad:
        print(f"note: {bad:,} lines were skipped; the first was {first_bad}", file=sys.stderr)
    return 0


def _answer(live: Callable[[list[float]], Any], values: list[float]) -> Any:
    try:
        return live(values)
    except UsageError as error:  # numbers too far from what was learnt; the state is as it was
        raise BadLineError(str(error)) from None


def _decoded(data: bytes) -> str:
    if not data.endswith(b"\n") and len(data) >= LONGEST_LINE:
        while data and not data.endswith(b"\n"):  # the rest of it is part of the same line
            data = sys.stdin.buffer.readline(LONGEST_LINE)
        raise BadLineError(f"expected a line of at most {LONGEST_LINE:,} bytes.")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadLineError(f"expected text in UTF-8, got the byte 0x{data[error.start]:02x}.") from None


def _write(cells: list[object]) -> None:
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow(cells)
    sys.stdout.write(text.getvalue() + "\n")
    sys.stdout.flush()


def _cells(line: str, delimiter: str) -> list[str]:
    return [cell.strip() for cell in next(csv.reader([line], delimiter=delimiter))]


def _short(text: str, most: int = 60) -> str:
    text = text.strip()
    return repr(text if len(text) <= most else text[:most] + "…")
