"""The state of a layer: the form that callers hold, the form that the loop works on, and conversions between them.

B batch, H hidden, M memory (the longest delay), N layers * directions.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from mistrnn.layers import checks


class HistoryState(NamedTuple):
    """The state of a layer that reads states from several steps ago, used as the pair (h, c) of torch.nn.LSTM.

    As input, `h` counts where `history` differs from it. An index other than 0 and 1 raises: code for torch.nn.GRU, whose
    state is h alone, would take `state[-1]` for the last layer.

    >>> from mistrnn import MIST
    >>> output, (h, history) = MIST(3, 5, num_layers=2, delays=4)(torch.zeros(7, 6, 3))
    >>> h.shape, history.shape
    (torch.Size([2, 6, 5]), torch.Size([2, 8, 6, 5]))
    """

    h: Tensor
    """[N, B, H] the newest state of each layer and direction: the last of its history."""
    history: Tensor
    """[N, M, B, H] the last M states, oldest first."""

    def __getitem__(self, index: Any) -> Tensor:  # type: ignore[override]
        """Return h for 0 and history for 1."""
        if isinstance(index, int) and index in (0, 1):
            return self.history if index else self.h
        raise TypeError(
            f"HistoryState: expected index 0 (h) or 1 (history), because the state is the pair (h, history), got {index!r}; "
            "unpack it first: `output, (h, history) = layer(input)`."
        )


State = Tensor | tuple[Tensor, ...]
"""[N, B, H]; a tuple where there are several components, a history or a clock [N, B]."""

Part = tuple[Tensor, ...]
"""The state of one layer in one direction: [M, B, H] per component and, if the cell has one, the clock [B]."""


def state_tensors(state: State) -> tuple[Tensor, ...]:
    """Return the tensors that determine a state: a history contains h."""
    if isinstance(state, HistoryState):
        return (state.history,)
    return state if isinstance(state, tuple) else (state,)


def state_from_tensors(tensors: Sequence[Tensor], keeps_history: bool) -> State:
    """Return the state with these `state_tensors`."""
    if keeps_history and len(tensors) == 1:
        (history,) = tensors
        return HistoryState(history[:, -1], history)
    return tensors[0] if len(tensors) == 1 else tuple(tensors)


@dataclass(frozen=True, slots=True)
class StateLayout:
    """The shapes of the state of one layer for one batch size; the batch size is None for unbatched input.

    Args:
        owner: the class of the layer, for errors.
        components: the names of the components.
        sizes: the units of each component.
        has_clock: whether a clock follows the components.
        keeps_history: whether the components have an axis of M states.
        count: N.
        memory: M.
        batch: B.
    """

    owner: str
    components: tuple[str, ...]
    sizes: tuple[int, ...]
    has_clock: bool
    keeps_history: bool
    count: int
    memory: int
    batch: int | None

    @property
    def is_pair(self) -> bool:
        """Whether the state is the pair (h, history); several components have a history each instead."""
        return self.keeps_history and len(self.components) == 1 and not self.has_clock

    def unpack(self, state: State | None, like: Tensor) -> list[Part]:
        """Return the part of each layer and direction; zeros for None."""
        if state is None:
            return self.zeros(like)
        tensors = (self._joined(state, like),) if self.is_pair else self._checked(state, like)
        return self.unpack_tensors(tensors, like)

    def zeros(self, like: Tensor) -> list[Part]:
        """Return the parts before the first step."""
        rows = 1 if self.batch is None else self.batch
        part: Part = tuple(like.new_zeros(self.memory, rows, size) for size in self.sizes)
        if self.has_clock:
            part += (torch.zeros(rows, dtype=torch.int64, device=like.device),)
        return [part] * self.count

    def unpack_tensors(self, tensors: Sequence[Tensor], like: Tensor) -> list[Part]:
        """Return the parts from the `state_tensors` of a state."""
        parts = list(tensors)
        parts[: len(self.components)] = [part.to(like.dtype) for part in parts[: len(self.components)]]
        if self.batch is None:
            axes = [-2] * len(self.components) + [-1] * self.has_clock
            parts = [part.unsqueeze(axis) for part, axis in zip(parts, axes, strict=True)]
        if not self.keeps_history:
            parts[: len(self.components)] = [part.unsqueeze(1) for part in parts[: len(self.components)]]
        return list(zip(*(part.unbind(0) for part in parts), strict=True))

    def pack(self, parts: Sequence[Part]) -> State:
        """Return the state with these parts."""
        stacked = []
        for n, part in enumerate(zip(*parts, strict=True)):
            is_clock = n == len(self.components)
            if self.is_pair:  # h is a tensor of its own, which may be changed and detached in place
                stacked.append(torch.stack([history[-1] for history in part]))
            # The state of a single layer is a new tensor and needs no copy. A clock is small.
            if is_clock or (self.keeps_history and self.count > 1):  # [B], or [M, B, H] each
                stacked.append(torch.stack(part))
            elif self.keeps_history:
                stacked.append(part[0].unsqueeze(0))
            else:  # [1, B, H] each
                stacked.append(torch.cat(part) if self.count > 1 else part[0])
        if self.batch is None:
            axes = [-2] * (len(stacked) - self.has_clock) + [-1] * self.has_clock
            stacked = [part.squeeze(axis) for part, axis in zip(stacked, axes, strict=True)]
        if self.is_pair:
            return HistoryState(*stacked)
        return stacked[0] if len(stacked) == 1 else tuple(stacked)

    def _joined(self, state: State, like: Tensor) -> Tensor:
        """Return the history [N, M, B, H] of a pair (h, history), of h alone, or of a history alone (version 0.1)."""
        h, history = self._pair(state)
        shape, why = self._expected(0, history=False)
        if history is None:
            checks.check_state(self.owner, "state's h", h, shape, why, like)
            return F.pad(h.unsqueeze(1), (0,) * (2 * len(shape) - 2) + (self.memory - 1, 0))
        history_shape, why_history = self._expected(0, history=True)
        if isinstance(history, Tensor) and history.dim() == len(shape):
            raise checks.ShapeError(
                f"{self.owner}: expected state to be the pair (h, history) that an earlier call returned, or h alone to start "
                f"from it, because history holds the last {self.memory} states, {history_shape}, and not a cell state as of "
                f"an LSTM, got a second tensor {list(history.shape)}."
            )
        checks.check_state(self.owner, "state's history", history, history_shape, why_history, like)
        if h is None:
            found: Tensor = history
            return found
        checks.check_state(self.owner, "state's h", h, shape, why, like)
        return torch.cat([history[:, :-1].to(like.dtype), h.unsqueeze(1).to(like.dtype)], 1)

    def _pair(self, state: Any) -> tuple[Any, Any]:
        """Return h and the history, either of which may be None."""
        if isinstance(state, tuple | list) and len(state) == 2:
            h, history = state
            return h, history
        if isinstance(state, tuple | list) and len(state) == 1:
            (state,) = state
        if isinstance(state, tuple | list):
            raise TypeError(
                f"{self.owner}: expected state to be the pair (h, history), or h alone, got {len(state)} in a tuple."
            )
        if not isinstance(state, Tensor) or state.dim() != (3 if self.batch is None else 4):
            return state, None
        warnings.warn(
            f"{self.owner}: a history alone as the state is deprecated and goes in 0.4; pass the pair (h, history) that the "
            "layer returns.",
            DeprecationWarning,
            stacklevel=2,
        )
        return None, state

    def _checked(self, state: State, like: Tensor) -> Sequence[Tensor]:
        names = self.components + (("clock",) if self.has_clock else ())
        if len(names) == 1:
            state = (state,) if not isinstance(state, tuple | list) else state
            if len(state) != 1:
                raise TypeError(f"{self.owner}: expected state to be one Tensor, got {len(state)} in a tuple.")
        elif not isinstance(state, tuple | list) or len(state) != len(names):
            got = f"{len(state)} in a tuple" if isinstance(state, tuple | list) else type(state).__name__
            raise TypeError(f"{self.owner}: expected state to be the tuple ({', '.join(names)}), got {got}.")
        for index, (name, value) in enumerate(zip(self.components, state, strict=False)):
            shape, why = self._expected(index, history=self.keeps_history)
            part = "state" if len(names) == 1 else f"state's {name}"
            checks.check_state(self.owner, part, value, shape, why, like)
        if self.has_clock:
            clock_like = torch.empty(0, dtype=torch.int64, device=like.device)
            clock_shape, why_clock = self._expected(0, history=False)[0][:-1], " and ".join(self._reasons(0)[:-1])
            checks.check_state(self.owner, "state's clock", state[-1], clock_shape, why_clock, clock_like)
        return state

    def _expected(self, component: int, *, history: bool) -> tuple[list[int], str]:
        """Return the shape of a component, or of its history, and the reasons for it."""
        batch = [] if self.batch is None else [self.batch]
        shape = [self.count, *([self.memory] if history else []), *batch, self.sizes[component]]
        reasons = self._reasons(component)
        if history:
            reasons.insert(1, f"the longest delay is {self.memory}")
        return shape, ", ".join(reasons[:-1]) + " and " + reasons[-1]

    def _reasons(self, component: int) -> list[str]:
        batch = [] if self.batch is None else [f"the batch has {self.batch}"]
        units = "hidden_size" if self.sizes[component] == max(self.sizes) else "proj_size"
        return [f"num_layers * directions = {self.count}", *batch, f"{units}={self.sizes[component]}"]
