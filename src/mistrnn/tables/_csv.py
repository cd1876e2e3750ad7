"""The text of CSV files: where its records begin, what separates their cells, quotes that are not closed, numbers."""

import csv
import gzip
import io
import re
import zlib
from collections.abc import Iterator
from pathlib import Path

from mistrnn.errors import UsageError

DELIMITERS = (",", ";", "\t")
LONGEST_START = 2**20
"""Characters in which a delimiter is looked for."""
MISSING = frozenset({"", "na", "n/a", "nan", "null", "none", "-", "?"})
"""Cells that stand for a number that is not there, in small letters."""


def text_of(path: Path) -> str:
    """Return what a file of text holds, with lines that end as Python's do."""
    try:
        data = path.read_bytes()
        if path.name.lower().endswith(".gz"):
            data = gzip.decompress(data)
    except (OSError, EOFError, zlib.error) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise UsageError(f"{path}: cannot be read ({reason}): truncated, or something else?") from error
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UsageError(
            f"{path}, line {line}: expected text in UTF-8, got the byte 0x{data[error.start]:02x}. Save the file as UTF-8."
        ) from error
    if "\0" in text:
        raise UsageError(f"{path}: expected text, got a file with zero bytes: is it something else than CSV?")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def records_of(text: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the line on which each record begins, and its cells; empty lines are none."""
    reader = csv.reader(io.StringIO(text, newline="\n"), delimiter=delimiter_of(text))
    line = 1
    for cells in reader:
        if cells:
            yield line, cells
        line = reader.line_num + 1


def delimiter_of(text: str) -> str:
    r"""Return what separates the cells, outside of quotes.

    That is what gives the first two records equally many cells; if nothing does, what is most frequent in the first.

    >>> delimiter_of("t;a (m/s, calibrated)\n0;1\n"), delimiter_of("t,a\n0\n"), delimiter_of("t")
    (';', ',', ',')
    """
    lines = re.sub('"[^"]*"', "quoted", text[:LONGEST_START]).split("\n")
    first, second = (*(line for line in lines if line), "", "")[:2]

    def fitness(delimiter: str) -> tuple[bool, int]:
        count = first.count(delimiter)
        return count > 0 and count == second.count(delimiter), count

    return max(DELIMITERS, key=fitness)


def check_quotes(path: Path, text: str, columns: int) -> None:
    """Refuse a quote that was opened by mistake: it would swallow the rows that follow, to the next quote or to the end."""
    delimiter = delimiter_of(text)
    for found in re.finditer(rf'(?:\A|(?<=[\n{delimiter}]))"((?:[^"]++|"")*+)("?)', text) if '"' in text else ():
        if found[2] and "\n" not in found[1]:
            continue
        if wrong := _swallows(text, found, delimiter, columns):
            line = text.count("\n", 0, found.start()) + 1
            raise UsageError(f"{path}, line {line}: a quote begins here and {wrong}")


def _swallows(text: str, quoted: re.Match[str], delimiter: str, columns: int) -> str:
    """Return what is wrong with a quoted cell of several lines, if anything is."""
    if not quoted[2]:
        return "never ends. Is the file truncated?"
    # The quote that ends it would have begun another cell; or lines inside have numbers where the row that begins has them.
    stray = text[quoted.end() : quoted.end() + 1] not in ("", "\n", delimiter)
    before = text[text.rfind("\n", 0, quoted.start()) + 1 : quoted.start()].split(delimiter)
    places = [place for place, cell in enumerate(before) if is_number(cell)]
    for inside in quoted[1].split("\n")[1:] if len(places) > 1 else ():
        cells = inside.split(delimiter)
        stray = stray or (len(cells) == columns and all(_is_bare_number(cells[place]) for place in places))
    return "ends in a later row. Is one missing?" if stray else ""


def _is_bare_number(cell: str) -> bool:
    return is_number(cell) and cell == cell.strip()


def from_line(text: str, line: int) -> str:
    """Return the text from a line on, counted from 1."""
    place = 0
    for _ in range(line - 1):
        place = text.index("\n", place) + 1
    return text[place:]


def wrong_count(path: Path, text: str, wanted: int) -> UsageError | None:
    """Return what to say of the first record that has another number of cells than the header."""
    for line, cells in records_of(text):
        if len(cells) != wanted:
            hint = " Is the file truncated?" if len(cells) < wanted else " Put text with a comma into quotes."
            return UsageError(
                f"{path}, line {line}: expected {wanted} cells, because the first line has as many, got {len(cells)}.{hint}"
            )
    return None


def number_of(text: str) -> float:
    """Return the number that a text is; 1_000 is none, whatever Python thinks of it."""
    return float(text.replace("_", "?"))


def is_number(text: str) -> bool:
    """Whether a text is a number."""
    try:
        number_of(text)
    except ValueError:
        return False
    return True
