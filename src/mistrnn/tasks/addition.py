"""The addition problem (Hochreiter & Schmidhuber 1997), as in the code that the paper's authors published.

Two inputs at each step: a value from U(0, 1), and a marker that is 1 at two steps, one in each half of the sequence, and 0
elsewhere. The target at the last step is the sum of the two marked values; the error is the squared one. Always saying 1
errs by 1/6. The paper reports no result on it; sizes are those of the copy problem.
"""

from typing import ClassVar

import torch
from torch import Tensor

from mistrnn.errors import UsageError
from mistrnn.tasks._task import SPLITS, Split, Task


class Addition(Task):
    """Add two marked values."""

    name = "addition"
    summary = "add two marked values of a long sequence (100,000 / 1,000 / 1,000 sequences)"
    settings: ClassVar[dict[str, str]] = {"length": "T, the length of the sequences; an even number (default 200)"}
    every_step = False
    default_steps = 15_000
    validation_interval = 150
    error_name = "squared error"

    def __init__(self, length: int = 200, seed: int = 0) -> None:
        if type(length) is not int or length < 2 or length % 2:
            raise UsageError(
                f"addition: expected length to be a positive even number, because each half has a marked value, got {length!r}."
            )
        self.steps = length
        self.input_size, self.output_size = 2, 1
        self.sizes = {"train": 100_000, "val": 1_000, "test": 1_000}
        self.trivial_error = 1 / 6
        self._values: dict[Split, Tensor] = {}  # [N, T]
        self._marked: dict[Split, Tensor] = {}  # [N, 2]
        for split in SPLITS:
            generator = self.generator(seed, split)
            count = self.sizes[split]
            self._values[split] = torch.rand(count, length, generator=generator)
            half = torch.randint(length // 2, (count, 2), generator=generator)
            self._marked[split] = half + torch.tensor([0, length // 2])

    def trivial_output(self) -> Tensor:
        """Return the mean of the targets."""
        return torch.ones(1, dtype=torch.float64)

    def batch(self, split: Split, index: Tensor, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
        """Return values and markers [..., T, B, 2] and sums [..., B]."""
        values, marked = self._values[split][index].to(dtype), self._marked[split][index]  # [..., B, T], [..., B, 2]
        markers = torch.zeros_like(values).scatter(-1, marked, 1.0)
        targets = values.gather(-1, marked).sum(-1)
        return torch.stack([values, markers], dim=-1).transpose(-2, -3), targets

    def loss(
        self, scores: Tensor, targets: Tensor, count: Tensor | None = None, sequences: int | None = None
    ) -> Tensor:
        """Return the number of sequences times the mean squared error: a sum, for a piece of a batch as for the whole."""
        return (scores.squeeze(-1) - targets).square().sum()

    def errors(self, scores: Tensor, targets: Tensor) -> Tensor:
        """Return the sum of squared errors."""
        return (scores.squeeze(-1) - targets).double().square().sum()

    def to(self, device: torch.device | str) -> "Addition":
        """Move values and markers to the device."""
        self._values = {split: values.to(device) for split, values in self._values.items()}
        self._marked = {split: marked.to(device) for split, marked in self._marked.items()}
        return self
