"""The interface of all tasks: three splits of sequences, their targets, the loss and the error.

T time, B batch, I input, C outputs of the readout; leading dimensions (trials) go through.
"""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

Split = Literal["train", "val", "test"]
SPLITS: tuple[Split, ...] = ("train", "val", "test")

IGNORED = -100
"""The target of a step that has none: padding after a sequence's end, a frame without a label."""


class Task(ABC):
    """A task of the paper with its own protocol: sizes, preprocessing, validation interval, optimisation steps."""

    name: ClassVar[str]
    """The word on the command line."""
    summary: ClassVar[str]
    """One line for `mist tasks`."""
    settings: ClassVar[dict[str, str]] = {}
    """The task's settings, which are flags of the command, with their descriptions."""
    needs_data: ClassVar[bool] = False
    """Whether there are files to read."""
    data_command: ClassVar[str] = ""
    """The command that gets them."""
    every_step: ClassVar[bool]
    """Whether every step has a target, or only the last."""
    default_steps: ClassVar[int]
    """Optimisation steps in the paper."""
    validation_interval: ClassVar[int]
    """Optimisation steps between two validations in the paper."""
    error_name: ClassVar[str] = "error rate"

    input_size: int
    output_size: int
    steps: int
    """T, the length of the sequences; of the longest, where they differ."""
    sizes: dict[Split, int]
    """How many sequences each split has."""
    data_identity: str | None = None
    """A digest of the files that were read; None for data that is made from the seed."""
    data_note: str = ""
    """A note about the data for readers of results, if it is not the published set."""
    trivial_error: float
    """The test error of the best constant output."""

    @classmethod
    def from_data(cls, data: Path, **settings: Any) -> "Task":
        """Return the task with its settings and its seed, its files read from a folder, if it needs any."""
        kind: Any = cls
        task: Task = kind(data=data, **settings)
        return task

    @abstractmethod
    def trivial_output(self) -> Tensor:  # [C]
        """Return the constant output that scores `trivial_error`."""

    @abstractmethod
    def batch(self, split: Split, index: Tensor, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
        """Return the sequences at index [..., B]: inputs [..., T, B, I], targets [..., T, B] or, at the end only, [..., B].

        Sequences of unequal length are padded after their end, with targets IGNORED: nothing from there comes back to them,
        because the models read forwards. One that has a single label has it at its own last step.
        """

    @abstractmethod
    def to(self, device: torch.device | str) -> "Task":
        """Let batches be on the device from now on, with the data if there is room for it, and return the task."""

    def lengths(self, split: Split, index: Tensor) -> Tensor:
        """Return the number of steps of each sequence at index [..., B], without padding, on the index's device."""
        return torch.full_like(index, self.steps)

    def resets(self, split: Split, index: Tensor) -> Tensor | None:  # [..., T, B]
        """Return the steps at which sequences of a batch start afresh, as bools; None if only their first steps do."""
        return None

    def order(self, split: Split) -> Tensor:
        """Return the order in which a split is evaluated; neighbours of similar length need less padding."""
        return torch.arange(self.sizes[split])

    def count(self, targets: Tensor) -> Tensor:
        """Return how many targets there are."""
        return (targets != IGNORED).sum()

    def loss(
        self, scores: Tensor, targets: Tensor, count: Tensor | None = None, sequences: int | None = None
    ) -> Tensor:
        """Return the loss of a batch: the number of sequences times the mean cross entropy over all targets.

        The factor matters, because gradients are clipped afterwards (docs/explanation/protocol.md). Of a piece of a batch,
        `count` is the number of targets in the whole, and `sequences` that of its sequences, if the piece does not have all of
        them: the losses of all pieces add up to that of the batch.
        """
        total = F.cross_entropy(scores.flatten(0, -2), targets.flatten(), ignore_index=IGNORED, reduction="sum")
        factor = targets.size(-1) if sequences is None else sequences
        return factor * total / (self.count(targets) if count is None else count).clamp_min(1)

    def errors(self, scores: Tensor, targets: Tensor) -> Tensor:
        """Return the sum of errors over all targets; divided by their number it is the error."""
        return ((scores.argmax(-1) != targets) & (targets != IGNORED)).sum().double()

    def generator(self, seed: int, split: Split) -> torch.Generator:
        """Return the source of randomness for one split of made data: no two splits share one."""
        return torch.Generator().manual_seed(seed * len(SPLITS) + SPLITS.index(split))
