"""The name of each task, and making one by name."""

from pathlib import Path
from typing import Any

from mistrnn.errors import UsageError
from mistrnn.tasks._task import Task
from mistrnn.tasks.addition import Addition
from mistrnn.tasks.copy import Copy
from mistrnn.tasks.hapt import Hapt, HaptFrames
from mistrnn.tasks.mnist import PermutedMNIST, SequentialMNIST
from mistrnn.tasks.mobiact import MobiAct
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
)
TASKS = {kind.name: kind for kind in KINDS}


def task_class(name: str) -> type[Task]:
    """Return the task of that name.

    >>> task_class("copy").__name__
    'Copy'
    """
    if name not in TASKS:
        raise UsageError(f"expected a task among {', '.join(TASKS)}, got {name!r}.")
    return TASKS[name]


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
        raise UsageError(
            f"{name}: expected a data folder; give it with --data DIR, or get the files with: {kind.data_command}"
        )
    read: Task = kind(data=Path(data), **settings, seed=seed)
    return read
