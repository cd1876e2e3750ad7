"""One table from one file: CSV, Parquet or NPZ. What cannot be read is named by file, line and column.

Every cell of a CSV file is kept as text until somebody asks for numbers: a label 01 stays 01, an id 007 stays 007, and a
cell that is no number can be named.
"""

import csv
import re
import zipfile
import zlib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet
from numpy.typing import NDArray

from mistrnn.errors import UsageError
from mistrnn.tables._csv import (
    MISSING,
    check_quotes,
    delimiter_of,
    from_line,
    is_number,
    number_of,
    records_of,
    text_of,
    wrong_count,
)
from mistrnn.tables._whole import Texts

SUFFIXES = (".csv", ".csv.gz", ".parquet", ".npz")
INDEX = "__index_level_0__"
"""What pandas calls the row numbers that it writes into Parquet files."""


@dataclass(frozen=True)
class SourceTable:
    """A table, and where it came from."""

    path: Path
    data: Any  # a pyarrow.Table
    unnamed: int
    """Columns without a name, which are left out: row numbers, as pandas writes them."""

    @property
    def names(self) -> list[str]:
        """The columns."""
        return list(self.data.column_names)

    def __len__(self) -> int:
        return int(self.data.num_rows)

    def place(self, row: int) -> str:
        """Return where a row stands, in words."""
        return place_of(self.path, row)

    def texts(self, name: str) -> Texts:
        """Return a column as text, cell by cell."""
        column = _whole(self.data, name)
        if pa.types.is_floating(column.type):
            column = pc.if_else(pc.is_nan(column), None, column)
            values = column.drop_null().to_numpy(zero_copy_only=False).astype(np.float64)
            if np.isfinite(values).all() and (values == np.round(values)).all() and (np.abs(values) < 2**53).all():
                column = column.cast(pa.int64())  # whole numbers, which a gap had made floating
        if pa.types.is_boolean(column.type):
            column = pc.if_else(column, "True", "False")
        try:
            column = pc.utf8_trim_whitespace(column.cast(pa.string()))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise UsageError(
                f"{self.path}: expected words or whole numbers in column {name!r}, got {column.type}."
            ) from error
        column = pc.if_else(pc.equal(column, ""), None, column).dictionary_encode()
        words: Texts = np.array([*column.dictionary.to_pylist(), None], dtype=object)
        found: Texts = words[column.indices.fill_null(len(words) - 1).to_numpy(zero_copy_only=False)]
        return found

    def is_empty(self, name: str, row: int) -> bool:
        """Whether a cell holds nothing, which `numbers` does not tell from the word nan."""
        value = _whole(self.data, name)[row].as_py()
        return value is None or (isinstance(value, str) and not value.strip())

    def numbers(self, name: str, advice: str = "") -> NDArray[np.float64]:
        """Return a column as numbers, NaN where a cell is empty; `advice` is what to do if there is something else."""
        column = _whole(self.data, name)
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            column = pc.utf8_trim_whitespace(column)
            column = pc.if_else(pc.equal(column, ""), None, column)
            try:
                column = column.cast(pa.float64())
            except pa.ArrowInvalid:
                column = self._numbers_one_by_one(name, column, advice)
        elif not _is_numeric(column.type):
            raise UsageError(f"{self.path}: expected numbers in column {name!r}, got {column.type}. {advice}".rstrip())
        if pa.types.is_decimal(column.type) or not pa.types.is_floating(column.type):
            column = column.cast(pa.float64(), safe=False)
        found: NDArray[np.float64] = column.to_numpy(zero_copy_only=False).astype(np.float64)
        return found

    def _numbers_one_by_one(self, name: str, column: Any, advice: str) -> Any:
        """Return numbers from text in which arrow found something else: a word for a missing number, or an error."""
        values: list[float | None] = []
        for row, text in enumerate(column.to_pylist()):
            if text is None or text.lower() in MISSING:
                values.append(None)
                continue
            try:
                values.append(number_of(text))
            except ValueError:
                hint = _decimal_comma(text) or advice
                raise UsageError(
                    f"{self.place(row)}, column {name!r}: expected a number, got {text!r}. {hint}".rstrip()
                ) from None
        return pa.array(values, pa.float64())

    def times(self, name: str) -> NDArray[np.float64]:
        """Return a column of times as numbers: numbers as they are, dates in seconds, NaN where a cell is empty."""
        column = _whole(self.data, name)
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            try:
                return self.numbers(name)
            except UsageError:
                column = pc.utf8_trim_whitespace(column)
                if _begins_with_a_number(column):
                    raise  # of numbers with something else among them, that is what to name
                column = self._dates(name, column)
        if pa.types.is_temporal(column.type):
            ticks = column
            if pa.types.is_time(column.type):
                ticks = column.cast(pa.time64("ns"))
            elif not pa.types.is_duration(column.type):
                ticks = column.cast(pa.timestamp("ns"), safe=False)
            whole = ticks.cast(pa.int64()).to_numpy(zero_copy_only=False).astype(np.float64)
            per_second = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}[ticks.type.unit]
            return np.asarray(whole / per_second)
        return self.numbers(name)

    def _dates(self, name: str, column: Any) -> Any:
        """Return dates from text, all with a time zone or all without."""
        column = pc.if_else(pc.equal(column, ""), None, column)
        zone = "UTC" if column.null_count < len(column) and _ZONE.search(column.drop_null()[0].as_py()) else None
        try:
            return column.cast(pa.timestamp("ns", zone))
        except pa.ArrowInvalid:
            cells = enumerate(column.to_pylist())
            row, text = next((row, text) for row, text in cells if text is not None and not _is_date(text, zone))
            hint = _decimal_comma(text)
            if _is_date(text, None if zone else "UTC"):
                hint = "Write all dates with a time zone, or all without."
            raise UsageError(
                f"{self.place(row)}, column {name!r}: expected a time, a number or a date such as 2026-01-31 12:00:00.5, got "
                f"{text!r}. {hint}".rstrip()
            ) from None


_ZONE = re.compile(r":[0-9.]+(Z|[+-][0-9:]+)$")
"""A time of the day with a zone behind it."""


def read_table(path: Path) -> SourceTable:
    """Return the table that a file holds."""
    name = path.name.lower()
    if not path.is_file():
        raise UsageError(f"{path}: there is no such file.")
    if is_csv(path):
        return _read_csv(path)
    if name.endswith(".parquet"):
        return _read_parquet(path)
    if name.endswith(".npz"):
        return _read_npz(path)
    raise UsageError(f"{path}: expected a file that ends in {', '.join(SUFFIXES)}.")


def place_of(path: Path, row: int) -> str:
    """Return where a row of a file stands, in words: the line, as an editor counts it, or the row from 1."""
    if is_csv(path):
        for number, (line, _) in enumerate(records_of(text_of(path))):
            if number == row + 1:  # the header is a record, too
                return f"{path}, line {line}"
    return f"{path}, row {row + 1}"


def is_csv(path: Path) -> bool:
    """Whether a file is read as CSV."""
    return path.name.lower().endswith((".csv", ".csv.gz"))


def id_of(name: str) -> str:
    """Return a file's name without the ending.

    >>> id_of("users/007.csv.gz")
    'users/007'
    """
    for suffix in sorted(SUFFIXES, key=len, reverse=True):
        if name.lower().endswith(suffix):
            return name[: -len(suffix)]
    return name


def _read_csv(path: Path) -> SourceTable:
    text = text_of(path)
    if found := re.match('"?sep=.?"?\n', text, re.IGNORECASE):
        raise UsageError(
            f"{path}, line 1: expected the names of the columns, got {found[0].strip()!r}, which is for Excel alone: remove "
            "the first line."
        )
    try:
        records = records_of(text)
        line, cells = next(records, (0, []))
        if not cells:
            raise UsageError(f"{path}: expected a line with the names of the columns, got an empty file.")
        names = [cell.strip() for cell in cells]
        if all(is_number(name) for name in names) and not _counts_up(names):
            raise UsageError(
                f"{path}, line {line}: expected the names of the columns in the first line, got numbers: {cells[0]}, …"
            )
        _check_names(path, names)
        check_quotes(path, text, len(names))
        second = next(records, None)
    except csv.Error as error:
        raise UsageError(f"{path}: not readable as CSV ({error}).") from error
    # Columns without a name get one for now: arrow wants each to have its own.
    keys = [name or f"\0{number}" for number, name in enumerate(names)]
    if second is None:
        data = pa.table({key: pa.array([], pa.string()) for key in keys})
    else:
        try:
            data = pyarrow.csv.read_csv(
                pa.BufferReader(from_line(text, second[0]).encode()),
                read_options=pyarrow.csv.ReadOptions(column_names=keys, use_threads=False),
                parse_options=pyarrow.csv.ParseOptions(delimiter=delimiter_of(text), newlines_in_values=True),
                convert_options=pyarrow.csv.ConvertOptions(
                    column_types={key: pa.string() for key in keys}, null_values=[""], strings_can_be_null=True
                ),
            )
        except pa.ArrowInvalid as error:
            raise wrong_count(path, text, len(names)) or UsageError(
                f"{path}: not readable as CSV ({error})."
            ) from error
    return SourceTable(path, data.select([name for name in names if name]), names.count(""))


def _read_parquet(path: Path) -> SourceTable:
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            data = file.read()
    except (pa.ArrowException, OSError, EOFError) as error:
        reason = str(error).split("\n")[0].rstrip(".")
        raise UsageError(f"{path}: not readable as Parquet ({reason}): truncated, or something else?") from error
    names = [str(name) for name in data.column_names]
    _check_names(path, names)
    kept = [name for name in names if name and name != INDEX]
    return SourceTable(path, data.select(kept), names.count(""))


def _read_npz(path: Path) -> SourceTable:
    """Return the arrays of a file as columns: [time], or [time, channels] as name0, name1, …; a single value is repeated."""
    try:
        with open(path, "rb") as file:
            archive = np.load(file, allow_pickle=False)
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise UsageError(
                    f"{path}: expected an archive of arrays, as numpy.savez writes it, got a single array."
                )
            arrays = {name: archive[name] for name in archive.files}
    except (OSError, EOFError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        if isinstance(error, UsageError):
            raise
        if "allow_pickle" in str(error) or "Object arrays" in str(error):
            raise UsageError(
                f"{path}: expected arrays of numbers or text, got Python objects, which are never loaded: they could run "
                "code. Save the arrays with a dtype of their own."
            ) from error
        raise UsageError(f"{path}: not readable as NPZ ({error}): truncated, or something else?") from error
    lengths = {name: len(values) for name, values in arrays.items() if values.ndim > 0}
    if not lengths:
        raise UsageError(f"{path}: expected arrays [time] or [time, channels], got none.")
    rows = next(iter(lengths.values()))
    columns: list[tuple[str, Any]] = []
    for name, values in arrays.items():
        if values.ndim > 2 or lengths.get(name, rows) != rows:
            shapes = ", ".join(f"{key} {list(one.shape)}" for key, one in arrays.items())
            raise UsageError(
                f"{path}: expected arrays [time] or [time, channels], all with the same time, got {shapes}."
            )
        if values.ndim == 2:
            columns += [(f"{name}{number}", values[:, number]) for number in range(values.shape[1])]
        else:
            columns.append((name, np.broadcast_to(values, rows)))
    _check_names(path, [name for name, _ in columns])
    data = {}
    for name, values in columns:
        if values.dtype.kind not in "biufUS":
            raise UsageError(f"{path}: expected numbers or text in the array {name!r}, got {values.dtype}.")
        if values.dtype.kind == "S":
            values = np.char.decode(values, "utf-8", "replace")
        if values.dtype.kind == "f":
            values = values.astype(np.float64)
        data[name] = pa.array(np.ascontiguousarray(values.astype(values.dtype.newbyteorder("="))))
    return SourceTable(path, pa.table(data), 0)


def _check_names(path: Path, names: list[str]) -> None:
    twice = [name for name, count in Counter(names).items() if count > 1 and name]
    if twice:
        places = [number + 1 for number, name in enumerate(names) if name == twice[0]]
        raise UsageError(
            f"{path}: expected every column to have its own name, got {twice[0]!r} {len(places)} times (columns "
            f"{', '.join(map(str, places))})."
        )


def _counts_up(names: list[str]) -> bool:
    """Whether these are the names that pandas gives to columns that have none."""
    return names == [str(number) for number in range(len(names))]


def _begins_with_a_number(column: Any) -> bool:
    """Whether the first text that does not stand for a missing number is a number."""
    texts = (cell.as_py() for cell in column)
    return is_number(next((text for text in texts if text is not None and text.lower() not in MISSING), ""))


def _decimal_comma(text: str) -> str:
    """Return what to do about a number, or the seconds of a date, with a comma in it; nothing if there is none."""
    meant = text.replace(",", ".")
    comma = "," in text and (is_number(meant) or _is_date(meant, None) or _is_date(meant, "UTC"))
    return "Write decimals with a point." if comma else ""


def _is_date(text: str, zone: str | None) -> bool:
    try:
        pa.array([text]).cast(pa.timestamp("ns", zone))
    except pa.ArrowInvalid:
        return False
    return True


def _is_numeric(kind: Any) -> bool:
    types = pa.types
    return bool(
        types.is_integer(kind)
        or types.is_floating(kind)
        or types.is_boolean(kind)
        or types.is_decimal(kind)
        or types.is_null(kind)
    )


def _whole(data: Any, name: str) -> Any:
    """Return a column in one piece, categories written out."""
    column = data.column(name).combine_chunks()
    if isinstance(column, pa.ChunkedArray):
        column = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pa.types.is_large_string(column.type) or pa.types.is_string_view(column.type):
        column = column.cast(pa.string())
    return column
