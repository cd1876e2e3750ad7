"""Networks of the rivals, each with about a given number of weights.

B batch, C channels, T time, K classes, W width. Each takes x [B, C, T] and lengths [B], and returns scores [B, K], or
[B, T, K] for a label at every step.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

DROPOUT = 0.1
"""Of the TCN."""


class Recurrent(nn.Module):
    """One layer of nn.LSTM or nn.GRU and a linear readout: "last" step, "mean" over time or every step ("steps").

    Cases are padded at their end, so a causal layer needs no packing: steps past the end are not read out.
    """

    def __init__(
        self, layer: type[nn.LSTM] | type[nn.GRU], readout: str, channels: int, classes: int, width: int
    ) -> None:
        super().__init__()
        self.readout = readout
        self.layer = layer(channels, width, batch_first=True)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        """Return the scores."""
        h, _ = self.layer(x.transpose(1, 2))  # [B, T, W]
        if self.readout == "last":
            h = h[torch.arange(len(h)), lengths - 1]
        elif self.readout == "mean":
            h = masked_mean(h, lengths)
        scores: Tensor = self.head(h)
        return scores


class MaskedBatchNorm(nn.Module):
    """BatchNorm over the steps inside the cases; 0 past their ends."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(width)

    def forward(self, x: Tensor, inside: Tensor | None) -> Tensor:
        """Normalise x [B, W, T]; inside is [B, T], or None if all cases are of equal length."""
        if inside is None:
            return self.norm(x)  # type: ignore[no-any-return]
        rows = x.transpose(1, 2)
        out = torch.zeros_like(rows)
        out[inside] = self.norm(rows[inside])
        return out.transpose(1, 2)


class Convolutional(nn.Module):
    """Three blocks of convolution, BatchNorm and ReLU, then the mean over time (Wang et al. 2017, "FCN", narrower).

    The kernels are centred: with a label for every step, 7 later steps are read, too.
    """

    def __init__(self, every_step: bool, channels: int, classes: int, width: int) -> None:
        super().__init__()
        self.every_step = every_step
        sizes = [(channels, width, 9), (width, 2 * width, 5), (2 * width, width, 3)]
        self.convs = nn.ModuleList(nn.Conv1d(a, b, k, padding=k // 2, bias=False) for a, b, k in sizes)
        self.norms = nn.ModuleList(MaskedBatchNorm(b) for _, b, _ in sizes)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        """Return the scores."""
        inside = None
        if int(lengths.min()) < x.shape[2]:
            inside = torch.arange(x.shape[2]) < lengths[:, None]
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = torch.relu(norm(conv(x), inside))
        h = x.transpose(1, 2)
        scores: Tensor = self.head(h if self.every_step else masked_mean(h, lengths))
        return scores


class TemporalBlock(nn.Module):
    """Two causal dilated convolutions of 3 steps with weight normalisation, on a residual branch."""

    def __init__(self, width: int, dilation: int) -> None:
        super().__init__()
        self.padding = 2 * dilation
        self.convs = nn.ModuleList(
            nn.utils.parametrizations.weight_norm(nn.Conv1d(width, width, 3, dilation=dilation)) for _ in range(2)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Transform x [B, W, T]."""
        h = x
        for conv in self.convs:
            h = torch.relu(conv(nn.functional.pad(h, (self.padding, 0))))
            h = nn.functional.dropout(h, DROPOUT, self.training)
        return torch.relu(x + h)


class TemporalConvolutional(nn.Module):
    """TCN (Bai et al. 2018): dilations 1, 2, 4, ... until the longest case is covered; reads the mean and the last step."""

    def __init__(self, every_step: bool, steps: int, channels: int, classes: int, width: int) -> None:
        super().__init__()
        self.every_step = every_step
        levels = 3
        while levels < 9 and 1 + 4 * (2**levels - 1) < steps:
            levels += 1
        self.embedding = nn.Conv1d(channels, width, 1)
        self.blocks = nn.Sequential(*(TemporalBlock(width, 2**level) for level in range(levels)))
        self.head = nn.Linear(width if every_step else 2 * width, classes)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        """Return the scores."""
        h = self.blocks(self.embedding(x)).transpose(1, 2)
        if not self.every_step:
            last = h[torch.arange(len(h)), lengths - 1]
            h = torch.cat([masked_mean(h, lengths), last], dim=1)
        scores: Tensor = self.head(h)
        return scores


def masked_mean(h: Tensor, lengths: Tensor) -> Tensor:
    """Return the mean of h [B, T, W] over the steps inside each case."""
    if int(lengths.min()) == h.shape[1]:
        return h.mean(1)
    inside = torch.arange(h.shape[1]) < lengths[:, None]
    return (h * inside[:, :, None]).sum(1) / lengths[:, None]


def parameter_count(network: nn.Module) -> int:
    """Return the number of weights."""
    return sum(parameter.numel() for parameter in network.parameters())


def nearest_width(count: Callable[[int], int], target: int, most: int = 1024) -> int:
    """Return the width for which an increasing count is nearest to the target."""
    low, high = 1, most
    while low < high:  # the least width whose count reaches the target
        middle = (low + high) // 2
        if count(middle) < target:
            low = middle + 1
        else:
            high = middle
    if low > 1 and target - count(low - 1) < count(low) - target:
        return low - 1
    return low
