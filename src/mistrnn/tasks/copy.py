"""The copy problem (Arjovsky et al. 2016, after Hochreiter & Schmidhuber 1997).

L symbols out of 10, D - 1 blanks, a go symbol, L blanks: T = D + 2L steps. The target is blank for L + D steps and then the
L symbols in their order. L = D / 10, so that always saying blank errs on 1 of 12 steps at every D.
Inputs are one-hot over 12 symbols (10, blank, go), targets one of 11 (10, blank). 100,000 sequences for training and 1,000
for validation as in the paper, and 1,000 more to test on.
"""

from typing import ClassVar

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from mistrnn.errors import UsageError
from mistrnn.tasks._task import SPLITS, Split, Task

SYMBOLS = 10
BLANK, GO = SYMBOLS, SYMBOLS + 1


class Copy(Task):
    """Repeat the symbols seen D steps ago."""

    name = "copy"
    summary = "repeat delay/10 symbols after a delay (100,000 / 1,000 / 1,000 sequences)"
    settings: ClassVar[dict[str, str]] = {"delay": "D, how long to remember; a multiple of 10 (default 100)"}
    every_step = True
    default_steps = 100_000
    validation_interval = 25

    def __init__(self, delay: int = 100, seed: int = 0) -> None:
        if type(delay) is not int or delay < 10 or delay % 10:
            raise UsageError(
                f"copy: expected delay to be a positive multiple of 10, because delay / 10 symbols are copied, got {delay!r}."
            )
        self.delay, self.length = delay, delay // 10
        self.steps = delay + 2 * self.length
        self.input_size, self.output_size = SYMBOLS + 2, SYMBOLS + 1
        self.sizes = {"train": 100_000, "val": 1_000, "test": 1_000}
        self.trivial_error = 1 / 12
        self._symbols = {
            split: torch.randint(
                SYMBOLS, (self.sizes[split], self.length), generator=self.generator(seed, split), dtype=torch.uint8
            )
            for split in SPLITS
        }

    def trivial_output(self) -> Tensor:
        """Return a preference for blank."""
        return F.one_hot(torch.tensor(BLANK), self.output_size).double()

    def batch(self, split: Split, index: Tensor, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
        """Return one-hot inputs [..., T, B, 12] and classes [..., T, B]."""
        symbols = self._symbols[split][index].long().transpose(-1, -2)  # [..., L, B]
        shape = (*symbols.shape[:-2], self.steps, symbols.size(-1))
        inputs = torch.full(shape, BLANK, device=symbols.device)
        inputs[..., : self.length, :] = symbols
        inputs[..., self.length + self.delay - 1, :] = GO
        targets = torch.full(shape, BLANK, device=symbols.device)
        targets[..., self.length + self.delay :, :] = symbols
        return F.one_hot(inputs, self.input_size).to(dtype), targets

    def to(self, device: torch.device | str) -> "Copy":
        """Move the symbols to the device."""
        self._symbols = {split: symbols.to(device) for split, symbols in self._symbols.items()}
        return self
