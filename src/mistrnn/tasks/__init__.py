"""The tasks, by class and by name."""

from mistrnn.tasks._cases import is_missing
from mistrnn.tasks._mnist_files import PUBLISHED as PUBLISHED_MNIST
from mistrnn.tasks._names import TASKS, find_installed_tasks, make_task, register_task, task_class
from mistrnn.tasks._recordings import RecordingTask
from mistrnn.tasks._task import IGNORED, SPLITS, Split, Task
from mistrnn.tasks.recordings import Recordings

__all__ = [
    "IGNORED",
    "PUBLISHED_MNIST",
    "SPLITS",
    "TASKS",
    "RecordingTask",
    "Recordings",
    "Split",
    "Task",
    "find_installed_tasks",
    "is_missing",
    "make_task",
    "register_task",
    "task_class",
]
