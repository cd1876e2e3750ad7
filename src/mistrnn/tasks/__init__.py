"""The tasks, by class and by name."""

from mistrnn.tasks._names import TASKS, find_installed_tasks, make_task, register_task, task_class
from mistrnn.tasks._task import IGNORED, SPLITS, Split, Task
from mistrnn.tasks.recordings import Recordings

__all__ = [
    "IGNORED",
    "SPLITS",
    "TASKS",
    "Recordings",
    "Split",
    "Task",
    "find_installed_tasks",
    "make_task",
    "register_task",
    "task_class",
]
