"""The flags of the task `recordings`, those of the tasks of installed packages, and the settings that they give."""

import json
import os
from pathlib import Path
from typing import Annotated, Any

import typer

from mistrnn.cli._flags import names
from mistrnn.errors import UsageError
from mistrnn.tasks import TASKS, task_class

PANEL = "Task"

Labels = Annotated[
    Path | None,
    typer.Option("--labels", help="recordings: a table with a label for each recording.", rich_help_panel=PANEL),
]
LabelColumn = Annotated[
    str | None,
    typer.Option(
        "--label-column",
        help="recordings: the labels, in the table (default: label) or, without one, in the recordings.",
        rich_help_panel=PANEL,
    ),
]
PerRecording = Annotated[
    bool,
    typer.Option(
        "--per-recording",
        help="recordings: the label column has one label for each recording, not one for each row.",
        rich_help_panel=PANEL,
    ),
]
Columns = Annotated[
    str | None,
    typer.Option(
        "--columns",
        help="recordings: the inputs, such as ax,ay,az (default: all other columns).",
        rich_help_panel=PANEL,
    ),
]
IdColumn = Annotated[
    str | None,
    typer.Option(
        "--id-column",
        help="recordings: names the recording, in a long table and in the table of labels.",
        rich_help_panel=PANEL,
    ),
]
TimeColumn = Annotated[
    str | None,
    typer.Option("--time-column", help="recordings: puts the rows in order; is not an input.", rich_help_panel=PANEL),
]
GroupColumn = Annotated[
    str | None,
    typer.Option(
        "--group-column",
        help="recordings: the person (or machine, or day); no group is in two splits.",
        rich_help_panel=PANEL,
    ),
]
Setting = Annotated[
    list[str] | None,
    typer.Option(
        "--setting",
        help="A setting of a task that is not built in, NAME=VALUE; may be repeated.",
        rich_help_panel=PANEL,
    ),
]


def task_settings(given: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of the task that the flags give; those of other tasks are left in, to be refused by name."""
    task_class(given["task"])  # an unknown task is refused before its settings
    known = {name for kind in TASKS.values() for name in kind.settings}
    chosen = {name: given.get(name) for name in sorted(known)}
    found = {name: value for name, value in chosen.items() if value is not None and value is not False}
    if "columns" in found:
        found["columns"] = list(names("columns", found["columns"]))
    if "labels" in found:
        found["labels"] = _beside_data(found["labels"], given.get("data"))
    for text in given.get("setting") or ():
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise UsageError(f"expected --setting NAME=VALUE, got {text!r}.")
        found[name] = _value(value)
    return found


def _beside_data(labels: Path, data: Path | None) -> str:
    """Return the path of the labels from the data on, because a study may be resumed elsewhere."""
    if data is None or labels.is_absolute():
        return str(labels)
    return os.path.relpath(labels, data.parent if data.is_file() else data)


def _value(text: str) -> Any:
    """Return a value as JSON has it, or as a word.

    >>> _value("3"), _value("[1, 2]"), _value("fast")
    (3, [1, 2], 'fast')
    """
    try:
        return json.loads(text)
    except ValueError:
        return text
