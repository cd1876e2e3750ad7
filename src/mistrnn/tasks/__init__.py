"""The tasks, by class and by name."""

from mistrnn.tasks._names import TASKS, make_task, task_class
from mistrnn.tasks._task import IGNORED, SPLITS, Split, Task

__all__ = ["IGNORED", "SPLITS", "TASKS", "Split", "Task", "make_task", "task_class"]
