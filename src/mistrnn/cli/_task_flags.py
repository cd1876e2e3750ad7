"""The flags that choose a task, its data and its settings."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from mistrnn.cli._flags import Data, Delay, LastPixels, Length, Seed, TaskName, User, names
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
Wrap = Annotated[
    bool,
    typer.Option(
        "--wrap", help="surgical: repeat short recordings of a batch, as the code of 2016.", rich_help_panel=PANEL
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


@dataclass(frozen=True)
class TaskFlags:
    """A task, its data and its settings."""

    task: TaskName
    seed: Seed = 0
    data: Data = None
    delay: Delay = None
    length: Length = None
    last_pixels: LastPixels = None
    user: User = None
    labels: Labels = None
    label_column: LabelColumn = None
    per_recording: PerRecording = False
    columns: Columns = None
    id_column: IdColumn = None
    time_column: TimeColumn = None
    group_column: GroupColumn = None
    wrap: Wrap = False
    setting: Setting = None

    def settings(self) -> dict[str, Any]:
        """Return the settings that are given; those of other tasks stay in, and the study refuses them by name."""
        task_class(self.task)  # an unknown task is refused before its settings
        known = sorted({name for kind in TASKS.values() for name in kind.settings})
        chosen = {name: getattr(self, name, None) for name in known}
        found = {name: value for name, value in chosen.items() if value is not None and value is not False}
        if "columns" in found:
            found["columns"] = list(names("columns", found["columns"]))
        if "labels" in found:
            found["labels"] = _beside_data(found["labels"], self.data)
        for text in self.setting or ():
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
