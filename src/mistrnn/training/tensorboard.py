"""Scalars for TensorBoard, on request."""

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from mistrnn.errors import UsageError


class Log:
    """A folder of TensorBoard's; a context manager.

    Runs inside it, such as the trials of a study, are folders of their own: TensorBoard draws them into one picture.
    """

    def __init__(self, folder: str | PathLike[str]) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise UsageError("logging needs TensorBoard: pip install 'mistrnn[tensorboard]'.") from error
        self._new_writer: Any = SummaryWriter
        self._folder, self._writers = Path(folder), dict[str, Any]()
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"cannot write TensorBoard's files to {folder}: {error.strerror}.") from error

    def add(self, values: Mapping[str, float], step: int, run: str = "") -> None:
        """Write some numbers of one step, by name.

        Points of this and later steps that an interrupted process wrote before are no longer shown.
        """
        if run not in self._writers:
            try:
                self._writers[run] = self._new_writer(str(self._folder / run), purge_step=step)
            except OSError as error:
                raise UsageError(
                    f"cannot write TensorBoard's files to {self._folder / run}: {error.strerror}."
                ) from error
        for name, value in values.items():
            self._writers[run].add_scalar(name, value, step)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for writer in self._writers.values():
            writer.close()
