"""Writing the report page at the end of a command."""

from collections.abc import Sequence
from pathlib import Path

from mistrnn.report import build_page


def write_page(folders: Sequence[Path | str], out: Path) -> None:
    """Write the report page, and say where it is and what it could not show."""
    built = build_page(folders, out)
    for problem in built.problems:
        print(f"not shown: {problem}")
    for note in built.notes:
        print(note)
    print(f"report: {built.path}")
