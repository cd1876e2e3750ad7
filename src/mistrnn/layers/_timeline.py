"""Where each sequence of a batch begins and ends: lengths and resets, for both directions.

T time, B batch, H hidden, M memory.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class Timeline:
    """The steps of a batch: all sequences end at `steps`, or each at its own length; resets begin a sequence afresh."""

    steps: int
    batch: int
    device: torch.device
    lengths: Tensor | None = None
    """[B] how many steps of each sequence are real."""
    reset: Tensor | None = None
    """[T, B] bool, true where a sequence starts afresh."""

    def clear_padding(self, x: Tensor) -> Tensor:  # [T, B, ...]
        """Put zeros at the steps past each sequence's length, whatever stands there (even NaN)."""
        if self.lengths is None:
            return x
        return x.masked_fill((self._index() >= self.lengths).unsqueeze(-1), 0.0)

    def flip(self, x: Tensor) -> Tensor:  # [T, B, F]
        """Turn each sequence backwards within its own length; padding stays where it is."""
        if self.lengths is None:
            return x.flip(0)
        source = torch.where(self._index() < self.lengths, self.lengths - 1 - self._index(), self._index())
        return x.gather(0, source.unsqueeze(-1).expand(x.shape))

    def reversed(self) -> "Timeline":
        """Return the timeline of the flipped sequences.

        A reset at t cuts the sequence between t - 1 and t, so the reversed run starts afresh when it comes to t - 1.
        """
        if self.reset is None or self.steps == 0:
            return self
        starts = self.flip(self.reset.unsqueeze(-1)).squeeze(-1).roll(1, 0)
        starts = starts & (self._index() > 0)
        return replace(self, reset=starts)

    def ages(self, start: Tensor) -> Tensor:  # [T, B]
        """Count the steps since each sequence began, at every step, where `start` [B] steps lie before the first."""
        index = self._index()
        if self.reset is None:
            return start + index
        newest = torch.where(self.reset, index, -1).cummax(0).values
        return torch.where(newest >= 0, index - newest, start + index)

    def elapsed(self, start: Tensor) -> Tensor:  # [B]
        """Count the steps since each sequence began, after its last step."""
        counts = torch.cat([start.unsqueeze(0), self.ages(start) + 1])  # [T + 1, B]
        if self.lengths is None:
            return counts[-1]
        return counts.gather(0, self.lengths.unsqueeze(0)).squeeze(0)

    def last(self, initial: Tensor, states: Tensor) -> Tensor:  # [M, B, H]
        """Return the last M states of each sequence, oldest first, from before the run [M, B, H] and in it [T, B, H].

        States from before a sequence's newest reset are zeros: what is handed on must not leak them either.
        """
        memory = initial.size(0)
        if self.lengths is None:
            kept = torch.cat([initial[self.steps :], states[max(0, self.steps - memory) :]])
        else:
            rows = self.lengths + torch.arange(memory, device=self.device).unsqueeze(1)  # [M, B]
            everything = torch.cat([initial, states])
            kept = everything.gather(0, rows.unsqueeze(-1).expand(-1, -1, initial.size(-1)))
        if self.reset is None:
            return kept
        steps_back = torch.arange(memory, 0, -1, device=self.device).unsqueeze(1)  # [M, 1]
        elapsed = self.elapsed(self.full(memory))
        return kept.masked_fill((elapsed < steps_back).unsqueeze(-1), 0.0)

    def full(self, value: int) -> Tensor:  # [B]
        """Return the same count for every sequence."""
        return torch.full((self.batch,), value, device=self.device)

    def _index(self) -> Tensor:  # [T, 1]
        return torch.arange(self.steps, device=self.device).unsqueeze(1)
