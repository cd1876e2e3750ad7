"""Random masks of stacked trials, from a counter-based generator: SplitMix64 (Steele, Lea and Flood 2014).

Each number follows from the key of a trial and its place (step, sequence, unit) alone. Pieces of a sequence, shares of a batch
and padding therefore do not change it, and it is the same on a CPU and on a GPU. A word of 64 bits gives four numbers of 16.

E trials, T time, B batch.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mistrnn.layers.masks import MaskDraw

GOLDEN, FIRST, SECOND = -0x61C8864680B583EB, -0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15
"""0x9e3779b97f4a7c15, 0xbf58476d1ce4e5b9 and 0x94d049bb133111eb as signed integers."""
PER_WORD = 4
WORDS_AT_ONCE = {"cpu": 2**17, "cuda": 2**27}
"""How many words are mixed together, by device: so many stay in a CPU's cache."""


@dataclass(frozen=True)
class TrialMasks:
    """The masks of one optimisation step.

    Args:
        draws: the masks of each trial, in the order in which the model takes them.
        keys: [E, number of draws] int64, see `study.mask_key`.
        places: [E, b] int64, the places of the sequences in the whole batch.
        batch: B, the sequences in the whole batch.
    """

    draws: Sequence[MaskDraw]
    keys: Tensor
    places: Tensor
    batch: int

    def piece(self, begin: int, end: int) -> tuple[Tensor, ...]:
        """Return the masks of some steps, true with the probability of their draw: [E, steps, b, width] or [E, b, width]."""
        return tuple(
            bernoulli(draw, self.keys[:, k], self.places, self.batch, range(begin, end))
            if draw.every_step
            else bernoulli(draw, self.keys[:, k], self.places, self.batch, range(1)).squeeze(1)
            for k, draw in enumerate(self.draws)
        )


def bernoulli(draw: MaskDraw, keys: Tensor, places: Tensor, batch: int, steps: range) -> Tensor:
    """Return a mask [E, steps, b, width] that is true with the probability of the draw, to 16 bits."""
    trials, sequences = places.shape
    highest = round(draw.probability * 2**16) - 2**15 - 1  # of the 16-bit numbers that are true
    found = torch.zeros(trials, len(steps), sequences, draw.width, dtype=torch.bool, device=keys.device)
    if highest < -(2**15) or not found.numel():
        return found
    words = math.ceil(draw.width / PER_WORD)
    at_once = max(1, WORDS_AT_ONCE[keys.device.type] // (trials * sequences * words))
    for start in range(0, len(steps), at_once):
        part = steps[start : start + at_once]
        rows = torch.arange(part.start, part.stop, device=keys.device).view(1, -1, 1) * batch + places.unsqueeze(1)
        counters = rows.unsqueeze(-1) * words + torch.arange(words, device=keys.device)  # [E, part, b, words]
        bits = mixed(counters, keys.view(-1, 1, 1, 1)).view(torch.int16)
        found[:, start : start + at_once] = bits[..., : draw.width] <= highest
    return found


def mixed(counters: Tensor, keys: Tensor) -> Tensor:
    """Return word number `counter` of SplitMix64 with the state `key`; overwrites the counters.

    >>> mixed(torch.arange(2), torch.tensor([1234567])).tolist()
    [6457827717110365317, 3203168211198807973]
    """
    z = counters.add_(1).mul_(GOLDEN).add_(keys)
    for shift, factor in ((30, FIRST), (27, SECOND)):
        z ^= (z >> shift) & (2 ** (64 - shift) - 1)  # a logical shift
        z *= factor
    z ^= (z >> 31) & (2**33 - 1)
    return z
