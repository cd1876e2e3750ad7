"""Scalars for TensorBoard, where somebody asks for them."""

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Self

from mistrnn.errors import UsageError


class Log:
    """A folder of TensorBoard's; a context manager."""

    def __init__(self, folder: str | PathLike[str]) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise UsageError("logging needs TensorBoard: pip install 'mistrnn[tensorboard]'.") from error
        try:
            Path(folder).mkdir(parents=True, exist_ok=True)
            self._writer = SummaryWriter(str(folder))
        except OSError as error:
            raise UsageError(f"cannot write TensorBoard's files to {folder}: {error.strerror}.") from error

    def add(self, values: Mapping[str, float], step: int) -> None:
        """Write some numbers of one step, by name."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._writer.close()
