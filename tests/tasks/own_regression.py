"""A user's own task, written as docs/how-to/adding-a-task.md says: a number to tell at every step."""

from typing import Any

import torch
from torch import Tensor

from mistrnn.tasks import IGNORED, SPLITS, Split, Task


class Sums(Task):
    """The sum of the inputs so far. Every step has a target: nothing is marked, and the loss looks for no mark."""

    name, summary = "sums", "sums of numbers"
    every_step, default_steps, validation_interval = True, 10, 5
    error_name = "squared error"

    def __init__(self, seed: int = 0) -> None:
        self.input_size, self.output_size, self.steps = 1, 1, 12
        self.sizes = {"train": 40, "val": 20, "test": 20}
        self._values = {s: torch.randn(self.sizes[s], 12, generator=self.generator(seed, s)) for s in SPLITS}
        _, targets = self.batch("test", torch.arange(20), torch.float64)
        self.trivial_error = targets[targets != IGNORED].var(correction=0).item()

    def trivial_output(self) -> Tensor:
        _, targets = self.batch("test", torch.arange(20), torch.float64)
        return targets[targets != IGNORED].mean().view(1)

    def batch(self, split: Split, index: Tensor, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
        values = self._values[split].to(dtype)[index].transpose(-1, -2)  # [..., T, B]
        return values.unsqueeze(-1), values.cumsum(-2)

    def to(self, device: torch.device | str) -> Task:
        self._values = {split: values.to(device) for split, values in self._values.items()}
        return self

    def loss(
        self, scores: Tensor, targets: Tensor, count: Tensor | None = None, sequences: int | None = None
    ) -> Tensor:
        factor = targets.size(-1) if sequences is None else sequences
        return factor * self._squares(scores, targets).sum() / (self.count(targets) if count is None else count)

    def errors(self, scores: Tensor, targets: Tensor) -> Tensor:
        return self._squares(scores, targets).double().sum()

    def _squares(self, scores: Tensor, targets: Tensor) -> Tensor:
        return (scores.squeeze(-1) - targets).square()


class UnequalSums(Sums):
    """The same, of sequences with 8 to 12 steps."""

    name = "unequal-sums"

    def batch(self, split: Split, index: Tensor, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
        inputs, targets = super().batch(split, index, dtype)
        steps = torch.arange(self.steps, device=index.device).unsqueeze(-1)
        padding = steps >= self.lengths(split, index).unsqueeze(-2)
        return inputs.masked_fill(padding.unsqueeze(-1), 0.0), targets.masked_fill(padding, IGNORED)

    def lengths(self, split: Split, index: Tensor) -> Tensor:
        return self.steps - index % 5

    def _squares(self, scores: Tensor, targets: Tensor) -> Tensor:
        return super()._squares(scores, targets).masked_fill(targets == IGNORED, 0.0)


OWN: list[Any] = [Sums, UnequalSums]
