"""Cases of any length with their targets, and minibatches of them, augmented as sensors allow.

F frames of all cases, N cases, T time, B batch, C channels, E trials.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mistrnn.models import Standardisation

Case = NDArray[Any]
"""[time, channels], float32 or float64."""


@dataclass(frozen=True)
class Examples:
    """Cases with their targets: one target each, or one for each step."""

    cases: Sequence[Case]
    targets: Sequence[Tensor]
    """A number, a class, [K] numbers, or [time] classes for each case."""
    weights: Sequence[Tensor]
    """The weight of each target, in the shape of the targets; 0 for a step without a label."""
    case_weights: Sequence[float]
    """The weight of each case, apart from that of its classes."""

    def subset(self, chosen: NDArray[np.int64]) -> "Examples":
        """Return some of the cases."""
        columns = (self.cases, self.targets, self.weights, self.case_weights)
        return Examples(*([values[k] for k in chosen] for values in columns))

    @property
    def every_step(self) -> bool:
        """Whether each step has a target."""
        return self.weights[0].dim() == 1


@dataclass(frozen=True)
class Augmentation:
    """Random changes of the training cases, which a sensor could have made; strengths in deviations of a channel or shares.

    Time masks alone are on by default: noise, scaling and crops cost accuracy where amplitudes or the beginning matter.
    """

    jitter: float = 0.0
    """Deviation of the noise that is added to each number."""
    scale: float = 0.0
    """Deviation of the factor of each channel of a case."""
    time_mask: float = 0.2
    """Largest share of a case's steps that are set to the mean, in one piece."""
    time_warp: float = 0.0
    """Cases are played at rates between exp(-time_warp) and exp(time_warp)."""
    crop: float = 0.0
    """Largest share of a case's steps that are cut off, at both ends together."""

    @classmethod
    def off(cls) -> "Augmentation":
        """Return no augmentation at all."""
        return cls(0.0, 0.0, 0.0, 0.0, 0.0)

    def scaled(self, factor: float) -> "Augmentation":
        """Return one that is stronger by a factor."""
        return Augmentation(*(factor * value for value in vars(self).values()))


@dataclass(frozen=True)
class Batch:
    """Minibatches of all trials, padded to the longest case."""

    inputs: Tensor
    """[E, T, B, C]"""
    lengths: Tensor | None
    """[E, B]; None if all cases have T steps."""
    targets: Tensor
    """[E, B, ...], or [E, T, B] for each step."""
    weights: Tensor
    """As the targets; 0 in the padding."""


class Frames:
    """All frames of some examples, standardised and laid end to end, from which minibatches are gathered.

    Args:
        examples: the cases.
        standardisation: of the channels.
        device: where the frames are kept.
    """

    def __init__(self, examples: Examples, standardisation: Standardisation, device: torch.device) -> None:
        lengths = [len(case) for case in examples.cases]
        self.lengths = torch.tensor(lengths)
        self.begins = torch.cat([torch.zeros(1, dtype=torch.int64), self.lengths.cumsum(0)[:-1]])
        on_cpu = standardisation.to("cpu")
        values = np.concatenate([on_cpu.of_array(case).astype(np.float32) for case in examples.cases])
        self.values = torch.from_numpy(values).to(device)
        self.every_step = examples.every_step
        join = torch.cat if self.every_step else torch.stack
        self.targets, self.weights = join(list(examples.targets)).to(device), join(list(examples.weights)).to(device)
        self.device = device

    def __len__(self) -> int:
        return len(self.lengths)

    def pieces(self, length: int | None, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return where pieces of at most `length` steps begin, and their lengths, cut at other places each time."""
        if length is None or int(self.lengths.max()) <= length:
            return self.begins, self.lengths
        begins, lengths = [], []
        for begin, steps in zip(self.begins.tolist(), self.lengths.tolist(), strict=True):
            first = steps if steps <= length else 1 + int(torch.randint(length, (), generator=generator))
            edges = [0, *range(first, steps, length), steps]
            for start, end in pairwise(edges):
                if start < end:
                    begins.append(begin + start)
                    lengths.append(end - start)
        return torch.tensor(begins), torch.tensor(lengths)

    def batch(
        self,
        begins: Tensor,
        lengths: Tensor,
        cases: Tensor,
        augmentations: Sequence[Augmentation] | None = None,
        generators: Sequence[torch.Generator] = (),
    ) -> Batch:
        """Gather minibatches.

        Args:
            begins: [E, B] first frame of each piece.
            lengths: [E, B] their steps.
            cases: [E, B] the cases, for targets of whole cases.
            augmentations: one for each trial.
            generators: the source of randomness of each trial, whose results do not depend on other trials.
        """
        noise: list[Tensor | None] = [None] * len(begins)
        rates, masks, factors = torch.ones_like(begins, dtype=torch.float32), None, None
        if augmentations is not None:
            drawn = [
                _draw(own, begin, length, self.values.size(1), generator)
                for own, begin, length, generator in zip(augmentations, begins, lengths, generators, strict=True)
            ]
            begins, lengths, rates, masks, factors = (torch.stack(one) for one in list(zip(*drawn, strict=True))[:5])
            noise = [one[5] for one in drawn]
        steps = int(lengths.max())
        even = bool((lengths == steps).all())
        time = torch.arange(steps).unsqueeze(-1)  # [T, 1]
        inside = time < lengths.unsqueeze(-2)  # [E, T, B]
        offset = torch.minimum(time, (lengths - 1).unsqueeze(-2)) * rates.unsqueeze(-2)  # [E, T, B]
        floor = offset.long()
        index = begins.unsqueeze(-2) + floor
        inputs = self.values[index.to(self.device)]  # [E, T, B, C]
        fraction = offset - floor
        if bool(fraction.any()):
            after = self.values[(index + (fraction > 0)).to(self.device)]
            inputs = torch.lerp(inputs, after, fraction.unsqueeze(-1).to(self.device))
        inputs = _changed(inputs, time, masks, factors, noise)
        if not even:
            inputs = inputs.masked_fill(~inside.unsqueeze(-1).to(self.device), 0.0)
        if self.every_step:
            nearest = (index + (fraction >= 0.5)).to(self.device)
            targets, weights = self.targets[nearest], self.weights[nearest] * inside.to(self.device)
        else:
            targets, weights = self.targets[cases.to(self.device)], self.weights[cases.to(self.device)]
        return Batch(inputs, None if even else lengths.to(self.device), targets, weights)


def _draw(
    augmentation: Augmentation, begins: Tensor, lengths: Tensor, channels: int, generator: torch.Generator
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor | None]:
    """Draw one trial's changes: begins, lengths and rates [B], masked steps [2, B], factors [B, C], noise [T, B, C]."""
    count = len(begins)
    if augmentation == Augmentation.off():  # the generator is left as it is, as if no trial were augmented
        return begins, lengths, torch.ones(count), lengths.new_zeros(2, count), torch.ones(count, channels), None
    uniform = torch.rand(5, count, generator=generator)
    cut = (uniform[0] * augmentation.crop * lengths).long()
    begins, span = begins + (uniform[1] * (cut + 1)).long().clamp_max(cut), lengths - cut
    rates = torch.exp((2 * uniform[2] - 1) * augmentation.time_warp)
    lengths = ((span - 1) / rates).long() + 1
    masked = (uniform[3] * augmentation.time_mask * lengths).long()
    mask_begin = (uniform[4] * (lengths - masked + 1)).long()
    factors = 1 + augmentation.scale * torch.randn(count, channels, generator=generator)
    noise = None
    if augmentation.jitter:
        noise = augmentation.jitter * torch.randn(int(lengths.max()), count, channels, generator=generator)
    return begins, lengths, rates, torch.stack([mask_begin, mask_begin + masked]), factors, noise


def _changed(
    inputs: Tensor, time: Tensor, masks: Tensor | None, factors: Tensor | None, noise: Sequence[Tensor | None]
) -> Tensor:
    """Return the inputs [E, T, B, C] scaled, with noise, and with masked steps set to zero, the mean."""
    if factors is None or masks is None:
        return inputs
    inputs = inputs * factors.unsqueeze(1).to(inputs.device)
    for row, own in zip(inputs, noise, strict=True):
        if own is not None:
            row[: len(own)] += own.to(inputs.device)
    begin, end = masks.unsqueeze(2).unbind(1)  # [E, 1, B]
    masked = (time >= begin) & (time < end)
    return inputs.masked_fill(masked.unsqueeze(-1).to(inputs.device), 0.0)
