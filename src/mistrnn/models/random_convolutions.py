"""Random convolutions and a linear head: the share of steps at which each convolution exceeds a threshold.

    q = round(1024 * clamp(standardised input, -64, 64))
    y_{d,k}(t) = sum over taps j = 0 ... 8 and the channels that kernel k reads: weight_{k,j} * q(t - (8 - j) * d)
    p_f = the share of steps so far with y_f(t) > threshold_f
    scores = linear(p)

The kernels are those of MiniRocket (Dempster, Schmidt and Webb, 2021): all 84 choices of 3 of 9 taps with weight 2, the others
-1, at dilations d up to an eighth of the case, on random channels, with quantiles of the training data as thresholds. Unlike
there, convolutions are causal, so that the network streams.

T time, M memory, B batch, C channels of the input, F features, K scores.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from mistrnn.kernels.cpu.convolutions import (
    HEAVY_TAPS,
    MOST_CHANNELS,
    TAPS,
    Convolutions,
    convolved,
    exceeding,
    positive_counts,
)
from mistrnn.layers import checks
from mistrnn.models.network import NetworkState
from mistrnn.models.standardisation import StandardisedModule

if TYPE_CHECKING:
    from mistrnn.models._stream import NetworkStream

LEVELS, FARTHEST = 1024, 64.0
"""Inputs are rounded to 1 / LEVELS deviations, at most FARTHEST deviations from the mean."""
MOST_DILATIONS, MOST_SPAN = 32, 2**14
"""Different dilations, and the steps that a convolution spans at most."""
FRAMES_FOR_THRESHOLDS = 2**15
"""Frames whose convolutions the thresholds of a dilation are quantiles of."""
GOLDEN = (math.sqrt(5) - 1) / 2
"""Multiples of it, modulo 1, spread evenly however many are taken."""


class RandomConvolutions(StandardisedModule):
    """Scores for each sequence [B, K] from [T, B, C], with the interface of `SequenceNetwork`.

    Only the head learns: gradients reach its parameters and not the input.

    Args:
        input_size: C, the channels of the input.
        output_size: K, the scores.
        dilations: the distances of the taps.
        thresholds: how many each kernel of a dilation has; there are 84 kernels.
        arcsinh: as in `SequenceNetwork`.
        device: where the tensors are made.

    >>> model = RandomConvolutions(2, 4, dilations=[1, 2], thresholds=[3, 2])
    >>> model.draw(torch.randn(50, 8, 2), None, torch.Generator().manual_seed(0))
    >>> scores, state = model(torch.randn(9, 3, 2), lengths=torch.tensor([9, 5, 7]))
    >>> scores.shape, model.feature_count
    (torch.Size([3, 4]), 420)
    """

    channels: Tensor
    thresholds: Tensor
    every_step = False
    bidirectional = False
    state_names = ("recent", "count", "hits")

    def __init__(
        self,
        input_size: int,
        output_size: int,
        *,
        dilations: Sequence[int],
        thresholds: Sequence[int],
        arcsinh: bool = False,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        name = type(self).__name__
        self.input_size = checks.positive_int(name, "input_size", input_size)
        self.output_size = checks.positive_int(name, "output_size", output_size)
        self.dilations = tuple(checks.positive_int(name, "dilations", one) for one in dilations)
        self.thresholds_each = tuple(checks.positive_int(name, "thresholds", one) for one in thresholds)
        if len(self.dilations) != len(self.thresholds_each) or not self.dilations:
            raise ValueError(
                f"{name}: expected one number of thresholds for each dilation, got {len(self.thresholds_each)} for "
                f"{len(self.dilations)}."
            )
        self.feature_count = len(HEAVY_TAPS) * sum(self.thresholds_each)
        table = torch.full((len(self.dilations), len(HEAVY_TAPS), 1 + MOST_CHANNELS), -1, device=device)
        table[..., 0], table[..., 1] = 1, 0
        self.register_buffer("channels", table)
        self.register_buffer("thresholds", torch.zeros(self.feature_count, device=device, dtype=torch.float32))
        # Zeros serve as a start, because the loss is convex in the head; no random numbers are drawn.
        self.head = nn.utils.skip_init(  # type: ignore[no-untyped-call]
            nn.Linear, self.feature_count, self.output_size, device=table.device, dtype=torch.float32
        )
        for parameter in self.head.parameters():
            nn.init.zeros_(parameter)
        self.register_standardisation(self.input_size, arcsinh=checks.boolean(name, "arcsinh", arcsinh), device=device)

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments that make another network of this shape."""
        return {
            "input_size": self.input_size,
            "output_size": self.output_size,
            "dilations": list(self.dilations),
            "thresholds": list(self.thresholds_each),
            "arcsinh": self.arcsinh is not None,
        }

    @property
    def convolutions(self) -> Convolutions:
        """The kernels and the thresholds."""
        return Convolutions(self.dilations, self.thresholds_each, self.channels, self.thresholds)

    def parameter_count(self) -> int:
        """Return the number of weights of the head; the convolutions have none."""
        return sum(parameter.numel() for parameter in self.head.parameters())

    @torch.no_grad()
    def draw(self, input: Tensor, lengths: Tensor | None, generator: torch.Generator) -> None:
        """Draw the channels of the kernels, and take quantiles of their convolutions of some sequences as thresholds.

        Args:
            input: [T, B, C] training sequences.
            lengths: [B] their steps; None if all are valid.
            generator: of the CPU.
        """
        self.channels.copy_(_random_channels(len(self.dilations), self.input_size, generator))
        steps, batch = input.shape[:2]
        seen = self._seen(self.quantised(input), None)
        valid = torch.full((batch,), steps) if lengths is None else lengths.cpu()
        few = max(1, FRAMES_FOR_THRESHOLDS // steps)
        begin = 0
        for number, each in enumerate(self.thresholds_each):
            chosen = torch.randperm(batch, generator=generator)[:few]
            y = convolved(seen[chosen.to(seen.device)], self.convolutions, number)  # [b, 84, T]
            inside = torch.arange(steps) < valid[chosen].unsqueeze(1)
            frames = y.movedim(1, 0)[:, inside.to(y.device)].sort(1).values  # [84, frames]
            count = len(HEAVY_TAPS) * each
            share = (torch.arange(begin + 1, begin + 1 + count, dtype=torch.float64) * GOLDEN).remainder(1.0)
            place = (share * frames.size(1)).long().view(-1, each).to(y.device)
            self.thresholds[begin : begin + count] = frames.gather(1, place).flatten()
            begin += count

    def quantised(self, input: Tensor) -> Tensor:
        """Return the standardised input as whole numbers in float32."""
        z = self.standardisation(input)
        return (z.clamp(-FARTHEST, FARTHEST) * LEVELS).round().float()

    def forward(
        self,
        input: Tensor,
        state: NetworkState | None = None,
        *,
        lengths: Tensor | None = None,
        every_step: bool | None = None,
        keep_state: bool = True,
    ) -> tuple[Tensor, NetworkState]:
        """Return the scores and the state to go on from; arguments as in `SequenceNetwork.forward`."""
        self._check(input, lengths, state)
        x = self.quantised(input)
        if lengths is not None:
            inside = torch.arange(x.size(0), device=x.device).unsqueeze(1) < lengths
            x = x.masked_fill(~inside.unsqueeze(-1), 0.0)
        recent, count, hits = self.initial_state(x.size(1)) if state is None else state
        seen = self._seen(x, recent)
        if every_step:
            return self._scores_at_every_step(seen, lengths), ()
        hits = positive_counts(seen, self.convolutions, lengths, hits)
        count = count + (x.size(0) if lengths is None else lengths)
        return self.scores(hits, count), (self._recent(seen, lengths), count, hits) if keep_state else ()

    def features(self, input: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return the shares [B, F] that the head reads."""
        _, (_, count, hits) = self(input, lengths=lengths)
        return _shares(hits, count)

    def scores(self, hits: Tensor, count: Tensor) -> Tensor:
        """Return the scores [B, K] after `count` [B] steps, of which `hits` [B, F] exceeded the thresholds."""
        found: Tensor = self.head(_shares(hits, count).to(self.head.weight.dtype))
        return found

    def stream(self, batch_size: int = 1, state: NetworkState | None = None) -> "NetworkStream":
        """Return a stream; see `SequenceNetwork.stream`."""
        from mistrnn.models._stream import NetworkStream  # which imports this file

        return NetworkStream(self, batch_size, state)

    def initial_state(self, batch_size: int) -> NetworkState:
        """Return the state before the first step: the last M inputs, the steps [B], the hits [B, F]."""
        like = self.thresholds
        return (
            like.new_zeros(self.convolutions.memory, batch_size, self.input_size),
            like.new_zeros(batch_size, dtype=torch.int64),
            like.new_zeros(batch_size, self.feature_count, dtype=torch.float64),
        )

    def _seen(self, x: Tensor, recent: Tensor | None) -> Tensor:
        """Return whole numbers [T, B, C] after those before them as [B, C, M + T]; zeros if None."""
        recent = x.new_zeros(self.convolutions.memory, *x.shape[1:]) if recent is None else recent
        return torch.cat([recent, x]).permute(1, 2, 0).contiguous()

    def _recent(self, seen: Tensor, lengths: Tensor | None) -> Tensor:
        """Return the last M inputs [M, B, C] of each sequence."""
        memory = self.convolutions.memory
        if lengths is None:
            return seen[..., seen.size(-1) - memory :].permute(2, 0, 1)
        last = lengths.unsqueeze(1) + torch.arange(memory, device=seen.device)  # [B, M]
        return seen.gather(2, last.unsqueeze(1).expand(-1, seen.size(1), -1)).permute(2, 0, 1)

    def _scores_at_every_step(self, seen: Tensor, lengths: Tensor | None) -> Tensor:
        """Return the scores [T, B, K] as if the sequences ended at each step."""
        found, begin = [], 0
        for above in exceeding(seen, self.convolutions, lengths):  # [B, F_d, T]
            weight = self.head.weight[:, begin : begin + above.size(1)].to(above.device)
            begin += above.size(1)
            found.append(torch.einsum("bft,kf->tbk", above.cumsum(-1).to(weight.dtype), weight))
        count = torch.arange(1, len(found[0]) + 1, device=seen.device).view(-1, 1, 1)
        if lengths is not None:
            count = count.minimum(lengths.view(1, -1, 1))
        scores: Tensor = torch.stack(found).sum(0) / count + self.head.bias
        return scores

    def _check(self, input: Tensor, lengths: Tensor | None, state: NetworkState | None) -> None:
        name = type(self).__name__
        if not isinstance(input, Tensor) or input.dim() != 3 or input.size(-1) != self.input_size:
            got = list(input.shape) if isinstance(input, Tensor) else type(input).__name__
            raise ValueError(
                f"{name}: expected input [T, B, {self.input_size}], because input_size={self.input_size}, got {got}."
            )
        if lengths is not None and (not isinstance(lengths, Tensor) or lengths.shape != input.shape[1:2]):
            got = list(lengths.shape) if isinstance(lengths, Tensor) else type(lengths).__name__
            raise ValueError(f"{name}: expected lengths [{input.size(1)}], one for each sequence, got {got}.")
        if state and len(state) != len(self.state_names):
            raise ValueError(
                f"{name}: expected a state of {len(self.state_names)} tensors ({', '.join(self.state_names)}), got "
                f"{len(state)}."
            )


def spread(features: int, steps: int) -> tuple[list[int], list[int]]:
    """Return dilations for cases of so many steps, and the thresholds of each kernel, for about this many features.

    Dilations grow exponentially, until a kernel spans the case.

    >>> spread(840, 100)
    ([1, 2, 3, 4, 5, 7, 9, 12], [3, 1, 1, 1, 1, 1, 1, 1])
    """
    each = max(1, round(features / len(HEAVY_TAPS)))
    longest = math.log2(max(1.0, (min(steps, MOST_SPAN) - 1) / (TAPS - 1)))
    levels = min(each, MOST_DILATIONS)
    exponents = [longest * level / max(1, levels - 1) for level in range(levels)]
    counts: dict[int, int] = {}
    for number in range(each):
        dilation = int(2 ** exponents[number * levels // each] + 1e-9)
        counts[dilation] = counts.get(dilation, 0) + 1
    return list(counts), list(counts.values())


def _shares(hits: Tensor, count: Tensor) -> Tensor:
    return hits / count.clamp_min(1).unsqueeze(-1)


def _random_channels(dilations: int, channels: int, generator: torch.Generator) -> Tensor:
    """Return which channels each kernel reads: 1 to 9 of them, small numbers more often."""
    most = min(channels, MOST_CHANNELS)
    kernels = dilations * len(HEAVY_TAPS)
    counts = (2 ** (torch.rand(kernels, generator=generator) * math.log2(most + 1))).long().clamp(1, most)
    orders = torch.rand(kernels, channels, generator=generator).argsort(1)[:, :most]
    table = torch.full((kernels, 1 + MOST_CHANNELS), -1)
    table[:, 0] = counts
    table[:, 1 : 1 + most] = torch.where(torch.arange(most) < counts.unsqueeze(1), orders, -1)
    return table.view(dilations, len(HEAVY_TAPS), -1)
