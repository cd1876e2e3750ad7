"""The name of each task, and making one by name."""

import inspect
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, TypeVar

from mistrnn.errors import UsageError
from mistrnn.tasks._task import Task
from mistrnn.tasks.addition import Addition
from mistrnn.tasks.copy import Copy
from mistrnn.tasks.hapt import Hapt, HaptFrames
from mistrnn.tasks.mnist import PermutedMNIST, SequentialMNIST
from mistrnn.tasks.mobiact import MobiAct
from mistrnn.tasks.recordings import Recordings
from mistrnn.tasks.surgical import Surgical
from mistrnn.tasks.timit import Timit

KINDS: tuple[type[Task], ...] = (
    Copy,
    Addition,
    SequentialMNIST,
    PermutedMNIST,
    Timit,
    MobiAct,
    Surgical,
    Hapt,
    HaptFrames,
    Recordings,
)
TASKS = {kind.name: kind for kind in KINDS}
"""The tasks that are known so far; `task_class` finds those of installed packages, too."""
ENTRY_POINTS = "mistrnn.tasks"
"""The group of entry points by which installed packages name their tasks."""
REQUIRED = {"name": str, "summary": str, "every_step": bool, "default_steps": int, "validation_interval": int}
"""Class attributes of every task."""

Kind = TypeVar("Kind", bound=type[Task])


def register_task(kind: Kind) -> Kind:
    """Let a task of one's own be found by its name, in this process; a decorator of its class, too.

    A class that is defined again, as in a notebook, takes the place of the one before.
    """
    if not isinstance(kind, type) or not issubclass(kind, Task):
        raise TypeError(f"register_task: expected a class derived from Task, got {kind!r}.")
    if inspect.isabstract(kind):
        missing = ", ".join(sorted(kind.__abstractmethods__))
        raise TypeError(f"{kind.__name__}: expected a task with all its methods, and there is no {missing}.")
    for attribute, wanted in REQUIRED.items():
        value = getattr(kind, attribute, None)
        if not isinstance(value, wanted) or value == "":
            got = "none" if value is None else repr(value)
            raise UsageError(
                f"{kind.__name__}: expected the class attribute {attribute} ({wanted.__name__}), which every task has, got "
                f"{got}."
            )
    known = TASKS.get(kind.name)
    again = known is not None and (known.__module__, known.__qualname__) == (kind.__module__, kind.__qualname__)
    if known is not None and not again:
        raise UsageError(
            f"{kind.__name__}: expected a name of its own, got {kind.name!r}, which is taken by {known.__module__}."
            f"{known.__qualname__}."
        )
    TASKS[kind.name] = kind
    return kind


def task_class(name: str) -> type[Task]:
    """Return the task of that name.

    >>> task_class("copy").__name__
    'Copy'
    """
    if name not in TASKS:
        find_installed_tasks(name)
    if name not in TASKS:
        raise UsageError(
            f"expected a task among {', '.join(TASKS)}, got {name!r}. One's own are made known by register_task, or by an "
            f"installed package with an entry point in {ENTRY_POINTS!r}."
        )
    return TASKS[name]


def find_installed_tasks(name: str | None = None) -> None:
    """Register the tasks of installed packages: all of them, or that of one name."""
    for entry in entry_points(group=ENTRY_POINTS):
        if entry.name in TASKS or name not in (None, entry.name):
            continue
        try:
            kind = entry.load()
        except (ImportError, AttributeError) as error:
            raise UsageError(f"cannot load the task {entry.name!r} from {entry.value}: {error}.") from error
        register_task(kind)
        if kind.name != entry.name:
            raise UsageError(
                f"expected the entry point of {entry.value} to be called {kind.name!r}, as the task is, got {entry.name!r}."
            )


def make_task(
    name: str, settings: dict[str, Any] | None = None, *, seed: int = 0, data: Path | str | None = None
) -> Task:
    """Return a task with its settings; made data follows from the seed, other data is read from the folder `data`.

    >>> make_task("copy", {"delay": 50}).steps
    60
    """
    kind: Any = task_class(name)
    settings = settings or {}
    for setting in settings:
        if setting not in kind.settings:
            own = ", ".join(kind.settings) or "none"
            raise UsageError(f"{name}: expected no setting {setting}, because the task's own are: {own}.")
    if not kind.needs_data:
        if data is not None:
            raise UsageError(f"{name}: expected no data folder, because the task makes its own data, got {data}.")
        made: Task = kind(**settings, seed=seed)
        return made
    if data is None:
        files = f", or get the files with: {kind.data_command}" if kind.data_command else "."
        raise UsageError(f"{name}: expected a data folder; give it with --data DIR{files}")
    read: Task = kind.from_data(Path(data), **settings, seed=seed)
    return read
