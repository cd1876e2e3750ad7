"""The form of a layer's state: what callers hold, what the loop works on, and the way between.

B batch, H hidden, M memory (the longest delay), N layers * directions.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mistrnn.layers import _checks

State = Tensor | tuple[Tensor, ...]
"""[N, B, H]; with history [N, M, B, H], oldest first; a tuple where there are more components or a clock [N, B]."""


@dataclass(frozen=True)
class StateForm:
    """The state of one layer for one batch size (None for unbatched input, whose state has no batch axis)."""

    owner: str
    components: tuple[str, ...]
    has_clock: bool
    keeps_history: bool
    count: int
    memory: int
    batch: int | None
    hidden: int

    def unpack(self, state: State | None, like: Tensor) -> list[tuple[Tensor, ...]]:
        """Return, for each layer and direction, [M, B, H] per component and the clock [B]; zeros for None."""
        rows = 1 if self.batch is None else self.batch
        if state is None:
            zeros = like.new_zeros(self.memory, rows, self.hidden)
            clock = (torch.zeros(rows, dtype=torch.int64, device=like.device),) if self.has_clock else ()
            return [(zeros,) * len(self.components) + clock] * self.count
        parts = list(self._checked(state, like))
        parts[: len(self.components)] = [part.to(like.dtype) for part in parts[: len(self.components)]]
        if self.batch is None:
            axes = [-2] * len(self.components) + [-1] * self.has_clock
            parts = [part.unsqueeze(axis) for part, axis in zip(parts, axes, strict=True)]
        if not self.keeps_history:
            parts[: len(self.components)] = [part.unsqueeze(1) for part in parts[: len(self.components)]]
        return list(zip(*(part.unbind(0) for part in parts), strict=True))

    def pack(self, parts: Sequence[tuple[Tensor, ...]]) -> State:
        """Return what `unpack` takes apart."""
        stacked = []
        for n, part in enumerate(zip(*parts, strict=True)):
            is_clock = n == len(self.components)
            # A single layer's state is new, so that it need not be copied. (A clock is small.)
            if is_clock or (self.keeps_history and self.count > 1):  # [B], or [M, B, H] each
                stacked.append(torch.stack(part))
            elif self.keeps_history:
                stacked.append(part[0].unsqueeze(0))
            else:  # [1, B, H] each
                stacked.append(torch.cat(part) if self.count > 1 else part[0])
        if self.batch is None:
            axes = [-2] * len(self.components) + [-1] * self.has_clock
            stacked = [part.squeeze(axis) for part, axis in zip(stacked, axes, strict=True)]
        return stacked[0] if len(stacked) == 1 else tuple(stacked)

    def _checked(self, state: State, like: Tensor) -> Sequence[Tensor]:
        names = self.components + (("clock",) if self.has_clock else ())
        if len(names) == 1:
            state = (state,) if not isinstance(state, tuple | list) else state
            if len(state) != 1:
                raise TypeError(f"{self.owner}: expected state to be one Tensor, got {len(state)} in a tuple.")
        elif not isinstance(state, tuple | list) or len(state) != len(names):
            got = f"{len(state)} in a tuple" if isinstance(state, tuple | list) else type(state).__name__
            raise TypeError(f"{self.owner}: expected state to be the tuple ({', '.join(names)}), got {got}.")
        batch = [] if self.batch is None else [self.batch]
        shape = [self.count, *([self.memory] if self.keeps_history else []), *batch, self.hidden]
        reasons = [f"num_layers * directions = {self.count}", f"hidden_size={self.hidden}"]
        if self.keeps_history:
            reasons.insert(1, f"the longest delay is {self.memory}")
        if self.batch is not None:
            reasons.insert(-1, f"the batch has {self.batch}")
        why = ", ".join(reasons[:-1]) + " and " + reasons[-1]
        for name, value in zip(self.components, state, strict=False):
            part = "state" if len(names) == 1 else f"state's {name}"
            _checks.check_state(self.owner, part, value, shape, why, like)
        if self.has_clock:
            why_clock = " and ".join(reasons[:-1])
            clock_like = torch.empty(0, dtype=torch.int64, device=like.device)
            _checks.check_state(self.owner, "state's clock", state[-1], [self.count, *batch], why_clock, clock_like)
        return state
