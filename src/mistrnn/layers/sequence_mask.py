"""Masks of a batch of sequences: lengths and resets, for both directions.

T time, B batch, H hidden, M memory.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class SequenceMask:
    """The valid steps of a batch: all, or those within each sequence's length; a reset clears the state of its sequence."""

    steps: int
    batch: int
    device: torch.device
    lengths: Tensor | None = None
    """[B] valid steps of each sequence."""
    reset: Tensor | None = None
    """[T, B] bool, true where the state of a sequence is cleared before the step."""

    def clear_padding(self, x: Tensor) -> Tensor:  # [T, B, ...]
        """Set the steps past each sequence's length to zero, even where they are NaN."""
        if self.lengths is None:
            return x
        return x.masked_fill((self._index() >= self.lengths).unsqueeze(-1), 0.0)

    def flip(self, x: Tensor) -> Tensor:  # [T, B, F]
        """Reverse each sequence within its length; padding stays in place."""
        if self.lengths is None:
            return x.flip(0)
        source = torch.where(self._index() < self.lengths, self.lengths - 1 - self._index(), self._index())
        return x.gather(0, source.unsqueeze(-1).expand(x.shape))

    def first_step(self, reverse: bool) -> Tensor:  # [T, B] bool
        """Return where a run in a direction reads its initial state: at its first step, unless that is a reset."""
        index, end = self._index(), self.full(self.steps) if self.lengths is None else self.lengths
        first = index == (end - 1 if reverse else torch.zeros_like(end))
        if self.reset is None or reverse:  # a reverse run is reset after a step, never before its first one
            return first
        return first & ~self.reset

    def reversed(self) -> "SequenceMask":
        """Return the sequence mask of the flipped sequences.

        A reset at t separates t - 1 from t, so the reversed run is reset at t - 1.
        """
        if self.reset is None or self.steps == 0:
            return self
        starts = self.flip(self.reset.unsqueeze(-1)).squeeze(-1).roll(1, 0)
        starts = starts & (self._index() > 0)
        return replace(self, reset=starts)

    def ages(self, start: Tensor) -> Tensor:  # [T, B]
        """Return the steps since each sequence began, at every step, with `start` [B] steps before the first."""
        index = self._index()
        if self.reset is None:
            return start + index
        newest = torch.where(self.reset, index, -1).cummax(0).values
        return torch.where(newest >= 0, index - newest, start + index)

    def elapsed(self, start: Tensor) -> Tensor:  # [B]
        """Return the steps since each sequence began, after its last step."""
        counts = torch.cat([start.unsqueeze(0), self.ages(start) + 1])  # [T + 1, B]
        if self.lengths is None:
            return counts[-1]
        return counts.gather(0, self.lengths.unsqueeze(0)).squeeze(0)

    def last(self, initial: Tensor, states: Tensor) -> Tensor:  # [M, B, H]
        """Return the last M states of each sequence, oldest first, from before the run [M, B, H] and in it [T, B, H].

        States from before a sequence's newest reset are zeros, so that the next chunk cannot read them.
        """
        memory = initial.size(0)
        if self.lengths is None:
            kept = torch.cat([initial[self.steps :], states[max(0, self.steps - memory) :]])
        else:
            rows = self.lengths + torch.arange(memory, device=self.device).unsqueeze(1)  # [M, B]
            all_states = torch.cat([initial, states])
            kept = all_states.gather(0, rows.unsqueeze(-1).expand(-1, -1, initial.size(-1)))
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
