"""Save a figure as SVG and PNG, with its data as CSV."""

import csv
import io
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from mistrnn.errors import UsageError
from mistrnn.files import write_whole

SVG: Any = {"svg.hashsalt": "mistrnn", "svg.fonttype": "none"}
"""The same figure is the same file, and its text stays text."""

# Okabe and Ito's palette, with different line styles as well.
STYLES = (
    ("#0072B2", "-"),
    ("#D55E00", "--"),
    ("#009E73", "-."),
    ("#CC79A7", ":"),
    ("#000000", (0, (5, 1))),
    ("#E69F00", (0, (1, 1))),
)


def save_figure(figure: Figure, folder: Path, name: str, rows: Sequence[Mapping[str, object]]) -> list[Path]:
    """Write name.svg, name.png and name.csv into a folder, over an earlier figure and nothing else, and return the paths.

    Figures are made without pyplot, which would keep them, need a window system, or change a notebook's settings.
    """
    svg, png, table = (folder / f"{name}.{kind}" for kind in ("svg", "png", "csv"))
    for path in (svg, png):
        if path.exists() and not table.exists():
            raise refused(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        save_rows(table, rows)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Glyph .* missing from")  # class names in scripts that the font lacks
            with matplotlib.rc_context(SVG):
                figure.savefig(svg, metadata={"Date": None})
            figure.savefig(png, dpi=150)
    except OSError as error:
        raise UsageError(f"cannot write to the folder {folder}: {error.strerror}.") from error
    return [svg, png, table]


def refused(path: Path) -> UsageError:
    """Return the error about something in the way that is not ours."""
    return UsageError(f"{path}: there is a file already that `mist` has not written. Choose another place.")


def save_rows(path: Path, rows: Sequence[Mapping[str, object]]) -> None:
    """Write rows as CSV, the whole file or nothing, over an earlier one that begins with the same column and nothing else."""
    names = list(rows[0])
    if path.exists():
        try:
            with open(path, "rb") as file:
                earlier = file.readline(2**16)
        except OSError as error:
            raise UsageError(f"cannot write {path}: {error.strerror}.") from error
        if not earlier.startswith(f"{names[0]},".encode()):
            raise refused(path)
    save_table(path, names, ([row[name] for name in names] for row in rows))


def save_table(path: Path, names: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write the names of columns and then rows as CSV, the whole file or nothing."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    writer.writerows(rows)
    try:
        write_whole(path, text.getvalue().encode())
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}.") from error
