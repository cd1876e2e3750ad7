"""Random masks of a call in training: zoneout, recurrent dropout, dropout between layers; and probes of the states.

T time, B batch, H hidden.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from mistrnn.layers.parameters import CellParameters
from mistrnn.layers.recurrence import Zoneout
from mistrnn.layers.sequence_mask import SequenceMask


class MaskDraw(NamedTuple):
    """The random masks of one kind that a call in training draws."""

    probability: float
    """The probability of true."""
    width: int
    """The units of a sequence."""
    every_step: bool
    """Whether there is a mask [B, width] for each step, or one for all of them."""

    def shape(self, steps: int, batch: int) -> tuple[int, ...]:
        """Return [T, B, width], or [B, width]."""
        return (steps, batch, self.width) if self.every_step else (batch, self.width)


NewProbes = Callable[[int, int, int], tuple[Tensor, ...]]
"""(layer * directions + direction, T, B) -> zeros [T, B, H] for each component of the state; see `RandomMasks.probed`."""


class RandomMasks(CellParameters):
    """The random masks of a recurrent layer, which draws them from torch's generator or takes given ones."""

    zoneout: float
    recurrent_dropout: float
    dropout: float
    _new_probes: NewProbes | None = None
    _given_draws: Iterator[Tensor] | None = None
    """Inside `drawing_from`: masks, or the uniform numbers that they are made from; torch's generator if None."""

    @property
    def draws_at_random(self) -> bool:
        """Whether a call draws masks: in training, with dropout or zoneout."""
        return self.training and bool(self.zoneout or self.recurrent_dropout or (self.dropout and self.num_layers > 1))

    def drop_between_layers(self, x: Tensor) -> Tensor:
        """Drop outputs [T, B, directions * H] between two layers, in training."""
        if self._given_draws is None or not self.training:
            return F.dropout(x, self.dropout, self.training)
        scale = 1 / (1 - self.dropout) if self.dropout < 1 else 0.0
        return x.masked_fill(self._draw(tuple(x.shape), self.dropout, x), 0.0) * scale

    def draw_dropout(self, mask: SequenceMask, like: Tensor) -> Tensor | None:
        """Return the recurrent dropout mask [B, H] of one call, scaled to keep the expectation."""
        if not self.recurrent_dropout or not self.training:
            return None
        dropped = self._draw((mask.batch, self.state_sizes[0]), self.recurrent_dropout, like)
        return dropped.logical_not().to(like.dtype) / (1 - self.recurrent_dropout)

    def draw_zoneout(self, mask: SequenceMask, like: Tensor) -> Zoneout | None:
        """Return the zoneout masks [T, B, H] of one call, or in evaluation the probability."""
        if not self.zoneout:
            return None
        if not self.training:
            return float(self.zoneout)  # the attribute may have been set to a NumPy or torch scalar
        return tuple(self._draw((mask.steps, mask.batch, size), self.zoneout, like) for size in self.state_sizes)

    def _draw(self, shape: tuple[int, ...], probability: float, like: Tensor) -> Tensor:
        """Return a mask that is true with a probability."""
        if self._given_draws is None:
            return torch.rand(shape, device=like.device) < probability
        given = next(self._given_draws)
        return given if given.dtype == torch.bool else given < probability

    def mask_draws(self) -> list[MaskDraw]:
        """Return the masks that a call in training draws, in order."""
        own = [MaskDraw(self.recurrent_dropout, self.state_sizes[0], False)] if self.recurrent_dropout else []
        if self.zoneout:
            own += [MaskDraw(self.zoneout, size, True) for size in self.state_sizes]
        between = [MaskDraw(self.dropout, self.output_size, True)] if self.dropout else []
        return [draw for layer in range(self.num_layers) for draw in (between if layer else []) + own * self.directions]

    @contextlib.contextmanager
    def drawing_from(self, draws: Iterator[Tensor]) -> Iterator[None]:
        """Inside the `with`, take masks from an iterator, as bools or as uniform numbers; see `mask_draws`."""
        before, self._given_draws = self._given_draws, draws
        try:
            yield
        finally:
            self._given_draws = before

    @contextlib.contextmanager
    def probed(self, new_probes: NewProbes) -> Iterator[None]:
        """Inside the `with`, add zeros to all states: their gradients are the full derivatives with respect to these states.

        new_probes(k, T, B) returns, for layer and direction k, a tensor [T, B, H] for each component of the state, or an
        empty tuple. The values are not read, so that one zero may be expanded; time runs as in the input.
        """
        before, self._new_probes = self._new_probes, new_probes
        try:
            yield
        finally:
            self._new_probes = before
