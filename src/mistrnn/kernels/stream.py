"""A fused stream: one step per call, the weights laid out once."""

import weakref
from collections.abc import Mapping, Sequence
from typing import NoReturn

import torch
from torch import Tensor

from mistrnn.kernels.contract import Settings, is_lazy, saved_dtype
from mistrnn.kernels.cpu.backend import new_stream


def _own(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return tensor.detach().to(dtype, copy=True, memory_format=torch.contiguous_format)


class FusedStream:
    """One layer that runs step by step: `output = stream(x)`, [B, I] to [B, H]."""

    def __init__(
        self,
        cell: str,
        weights: Mapping[str, Tensor],
        initial: Sequence[Tensor],
        clock: Tensor | None,
        delays: Sequence[int],
        zoneout: float,
    ) -> None:
        self._memory, self._batch, self._hidden = initial[0].shape
        self._dtype = initial[0].dtype
        self._real = saved_dtype(self._dtype)  # half precision is computed in float32
        with torch.inference_mode(False):  # a stream outlives the mode in which it was made
            # A ring buffer of 2M slots holds each of the last M states twice, M slots apart: they are always contiguous.
            self._ring = torch.cat([initial[0], initial[0]]).to(self._real).contiguous()
            self._cell_state = _own(initial[1], self._real) if len(initial) > 1 else None
            self._clock = _own(clock, clock.dtype) if clock is not None else None
            self._weights = {name: _own(weight, self._real) for name, weight in weights.items()}
        self._place = 0
        first = self._ring[: self._memory]
        inputs = {**self._weights, "initial_h": first, "initial_c": self._cell_state, "clock": self._clock}
        settings = Settings(delays, zoneout, reverse=False, save=False)
        # Every step reads and writes these tensors' memory: they must be contiguous and live as long as the stream.
        self._handle, self._step, free = new_stream(cell, inputs, settings)
        weakref.finalize(self, free, self._handle)

    def __call__(self, x: Tensor) -> Tensor:
        """Take one step."""
        x = (x.clone() if is_lazy(x) else x).to(self._real).contiguous()
        output = self._ring.new_empty(self._batch, self._hidden)
        self._step(self._handle, x.data_ptr(), output.data_ptr(), self._place)
        self._place = (self._place + 1) % self._memory
        return output.to(self._dtype)

    def reset(self, rows: Tensor) -> None:
        """Let some sequences [B] bool start afresh."""
        self._ring[:, rows] = 0.0
        if self._cell_state is not None:
            self._cell_state[:, rows] = 0.0
        if self._clock is not None:
            self._clock[rows] = 0

    def state(self) -> tuple[Tensor, ...]:
        """Return the last M states [M, B, H] of each component and, if the cell has one, the clock [B]."""
        states = (self._ring[self._place : self._place + self._memory], self._cell_state)
        found = tuple(state.to(self._dtype, copy=True) for state in states if state is not None)
        return found if self._clock is None else (*found, self._clock.clone())

    def __reduce__(self) -> NoReturn:
        raise TypeError("a running stream cannot be copied or pickled; make another one from its state.")
