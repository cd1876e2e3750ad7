"""Random convolutions with 9 taps, 3 of weight 2 and 6 of weight -1, and the steps at which they exceed thresholds.

Inputs are whole numbers whose sums float32 holds exactly, so that the compiled kernel and torch's convolution count the same.

T time, M memory, B batch, C channels, D dilations, F features: one for each threshold of each kernel.
"""

import contextlib
import ctypes
from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import NamedTuple, NoReturn

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from mistrnn._torch_compat import in_jit_trace
from mistrnn.kernels.contract import is_lazy
from mistrnn.kernels.cpu import library
from mistrnn.kernels.cpu.library import ConvolutionStep, PositiveCounts

TAPS = 9
HEAVY_TAPS = tuple(combinations(range(TAPS), 3))
"""The taps of weight 2 of each kernel; tap 0 is the oldest."""
MOST_CHANNELS = 9
"""Channels that a kernel reads at most: sums stay below 2^24."""
WORTH_A_THREAD = 2**22
"""Comparisons that take longer than waking a thread."""


class Convolutions(NamedTuple):
    """The kernels and the thresholds."""

    dilations: Sequence[int]
    thresholds_each: Sequence[int]
    """[D] thresholds of each kernel of a dilation."""
    channels: Tensor
    """[D, 84, 10] int64: how many channels a kernel reads, then which; -1 in the rest."""
    thresholds: Tensor
    """[F] float32: dilation after dilation, in it kernel after kernel."""

    @property
    def memory(self) -> int:
        """M, the steps before the current one that the convolutions read."""
        return (TAPS - 1) * max(self.dilations)


def positive_counts(seen: Tensor, convolutions: Convolutions, lengths: Tensor | None, hits: Tensor) -> Tensor:
    """Return hits [B, F] plus the number of steps at which each convolution exceeds its threshold.

    Args:
        seen: [B, C, M + T] float32, whole numbers; M steps come before the first one that counts.
        convolutions: the kernels.
        lengths: [B] steps that count; all T if None.
        hits: [B, F] float64.
    """
    if _composed(seen, hits):
        return hits + torch.cat([above.sum(-1) for above in exceeding(seen, convolutions, lengths)], 1)
    hits, seen = hits.clone(), seen if seen.stride(-1) == 1 else seen.contiguous()
    _run(convolutions, seen, lengths, hits)
    return hits


def _run(convolutions: Convolutions, seen: Tensor, lengths: Tensor | None, hits: Tensor) -> None:
    """Add to the hits with the compiled kernel."""
    steps = seen.size(-1) - convolutions.memory
    if not seen.numel() or steps <= 0:
        return
    assert library.loaded is not None
    _check_channels(convolutions.channels, seen.size(1))
    dilations, each = torch.tensor([list(convolutions.dilations), list(convolutions.thresholds_each)])
    channels, thresholds = convolutions.channels.contiguous(), convolutions.thresholds.contiguous()
    lengths = None if lengths is None else lengths.to(torch.int64).contiguous()
    call = PositiveCounts(
        threads=max(1, min(torch.get_num_threads(), seen.size(0), steps * hits.numel() // WORTH_A_THREAD)),
        **{"E": 1, "T": steps, "B": seen.size(0), "C": seen.size(1), "F": hits.size(1)},
        x_sequence=seen.stride(0),
        x_channel=seen.stride(1),
        memory=convolutions.memory,
        dilation_count=len(dilations),
        dilations=dilations.data_ptr(),
        thresholds_each=each.data_ptr(),
        channels=channels.data_ptr(),
        lengths=None if lengths is None else lengths.data_ptr(),
        x=seen.data_ptr(),
        thresholds=thresholds.data_ptr(),
        hits=hits.data_ptr(),
    )
    library.loaded.run_block(call)


class FusedConvolutionStream:
    """Random convolutions and their head step by step: `scores = stream(rows)`, [B, C] to [B, K] float32.

    Args:
        convolutions: the kernels.
        mean: [C] of the inputs.
        deviation: [C]
        levels: inputs are rounded to 1 / levels deviations.
        farthest: and clamped to so many.
        head: weight [K, F] and bias [K].
        state: the last M inputs [M, B, C], the steps [B] and the hits [B, F] so far.
    """

    def __init__(
        self,
        convolutions: Convolutions,
        mean: Tensor,
        deviation: Tensor,
        levels: float,
        farthest: float,
        head: tuple[Tensor, Tensor],
        state: tuple[Tensor, Tensor, Tensor],
    ) -> None:
        assert library.loaded is not None, library.problem
        recent, count, hits = state
        batch, channels = recent.shape[1:]
        _check_channels(convolutions.channels, channels)
        slots = torch.cat([recent, recent.new_zeros(1, batch, channels)]).permute(1, 2, 0)  # [B, C, M + 1]
        self._ring = torch.cat([slots, slots], 2).contiguous()
        self._count, self._hits = _copy(count), _copy(hits)
        self._scores = head[0].new_empty(batch, len(head[1]))
        dilations, each = torch.tensor([list(convolutions.dilations), list(convolutions.thresholds_each)])
        tables = [dilations, each, convolutions.channels, convolutions.thresholds, mean.double(), deviation.double()]
        names = ("dilations", "thresholds_each", "channels", "thresholds", "mean", "deviation")
        read = {name: _copy(table) for name, table in zip(names, tables, strict=True)}
        read |= {"head_weight": _copy(head[0].float()), "head_bias": _copy(head[1].float())}
        written = {"ring": self._ring, "count": self._count, "hits": self._hits}
        written |= {"taps": torch.empty(channels, TAPS + 1), "shares": torch.empty(hits.size(1))}
        self._alive = {**read, **written}
        self._call = ConvolutionStep(
            **{"B": batch, "C": channels, "F": hits.size(1), "K": self._scores.size(1)},
            memory=recent.size(0),
            place=recent.size(0),
            dilation_count=len(dilations),
            levels=levels,
            farthest=farthest,
            **{name: tensor.data_ptr() for name, tensor in self._alive.items()},
        )
        self._address, self._step, self._level = (
            ctypes.addressof(self._call),
            library.loaded.convolution_step,
            library.loaded.level,
        )

    def __call__(self, rows: Tensor) -> Tensor:
        """Take one step."""
        if rows.dtype not in (torch.float32, torch.float64) or is_lazy(rows):
            rows = rows.to(torch.float64, copy=True)
        rows, scores = rows.contiguous(), torch.empty_like(self._scores)
        self._step(self._address, rows.data_ptr(), rows.dtype == torch.float64, scores.data_ptr(), self._level)
        return scores

    def reset(self, rows: Tensor) -> None:
        """Let some sequences [B] bool start afresh."""
        for tensor in (self._ring, self._count, self._hits):
            tensor[rows] = 0

    def state(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return the last M inputs [M, B, C], the steps [B] and the hits [B, F] so far."""
        # Of the M + 1 inputs in the ring, the oldest is in the slot that the next step overwrites.
        first = self._call.place + 1
        recent = self._ring[:, :, first : first + self._call.memory].permute(2, 0, 1)
        return _copy(recent), self._count.clone(), self._hits.clone()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a running stream cannot be copied or pickled; make another one from its state.")


def _copy(tensor: Tensor) -> Tensor:
    return tensor.detach().clone(memory_format=torch.contiguous_format)


def _check_channels(table: Tensor, count: int) -> None:
    """Raise if a kernel would read memory that is not its input's, as with the weights of a damaged file."""
    used = torch.arange(MOST_CHANNELS) < table[..., :1]
    wrong = (table[..., 1:] < 0) | (table[..., 1:] >= count)
    if bool((used & wrong).any() | (table[..., 0] < 1).any() | (table[..., 0] > MOST_CHANNELS).any()):
        raise ValueError(f"expected kernels that read 1 to {MOST_CHANNELS} of {count} channels, got others.")


def exceeding(seen: Tensor, convolutions: Convolutions, lengths: Tensor | None) -> Iterator[Tensor]:
    """Iterate over the dilations, and return at which steps each convolution exceeds each of its thresholds, [B, F_d, T]."""
    steps = seen.size(-1) - convolutions.memory
    inside = None
    if lengths is not None:
        inside = (torch.arange(steps, device=seen.device) < lengths.unsqueeze(1))[:, None, None]
    begin = 0
    for number, each in enumerate(convolutions.thresholds_each):
        y = convolved(seen, convolutions, number)
        own = convolutions.thresholds[begin : begin + each * len(HEAVY_TAPS)].view(-1, each, 1)
        begin += each * len(HEAVY_TAPS)
        above = y.unsqueeze(2) > own
        if inside is not None:
            above = above & inside
        yield above.flatten(1, 2)


def convolved(seen: Tensor, convolutions: Convolutions, number: int) -> Tensor:
    """Return the convolutions [B, 84, T] of one dilation with torch's operations."""
    dilation = convolutions.dilations[number]
    weight = _weight(convolutions.channels[number], seen.size(1))
    seen = seen[..., convolutions.memory - (TAPS - 1) * dilation :]
    # TF32 would round the inputs.
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False) if seen.is_cuda else contextlib.nullcontext():
        return F.conv1d(seen, weight.to(seen), dilation=dilation)


def _weight(channels: Tensor, count: int) -> Tensor:
    """Return the kernels [84, C, 9] of one dilation."""
    taps = torch.full((len(HEAVY_TAPS), 1, TAPS), -1.0, device=channels.device)
    taps.scatter_(2, torch.tensor(HEAVY_TAPS, device=channels.device).unsqueeze(1), 2.0)
    read = (channels[:, 1:, None] == torch.arange(count, device=channels.device)).any(1)  # [84, C]
    return taps * read.unsqueeze(-1)


def _composed(seen: Tensor, hits: Tensor) -> bool:
    """Whether torch's own operations have to serve."""
    if torch.compiler.is_compiling() or library.loaded is None or in_jit_trace():
        return True
    return seen.device.type != "cpu" or seen.dtype != torch.float32 or is_lazy(seen) or is_lazy(hits)
