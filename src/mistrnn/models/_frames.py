"""The context of one forward pass, and the layers of a block that are not recurrent.

T time, B batch, C channels, K taps of a convolution.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mistrnn.kernels.cpu import blocks

BatchStatistics = list[tuple[Tensor, Tensor]]
"""Mean and variance [C] of every `FrameNorm`, in their order."""


@dataclass
class ForwardPass:
    """The batch at hand: which frames are valid, and where a training step draws from and writes to."""

    lengths: Tensor | None
    """[B] valid steps of each sequence; None if all are valid."""
    valid: Tensor | None
    """The same as a mask [T, B, 1]."""
    dropout_masks: Iterator[Tensor] | None = None
    """Masks [B, C], one for each residual branch; drawn on the spot if None."""
    layer_numbers: Iterator[Tensor] | None = None
    """Uniform numbers that the recurrent layers make their masks from; drawn on the spot if None."""
    statistics: BatchStatistics | None = None
    """Collects the statistics of the batch, instead of the running averages, which then stay as they are."""

    @classmethod
    def of(cls, input: Tensor, lengths: Tensor | None) -> "ForwardPass":
        """Return the pass of a batch [T, B, C]."""
        if lengths is None:
            return cls(None, None)
        return cls(lengths, (torch.arange(input.size(0), device=input.device).unsqueeze(1) < lengths).unsqueeze(-1))

    def clear_padding(self, x: Tensor, value: float = 0.0) -> Tensor:
        """Return x [T, B, C] with one value past each sequence's end."""
        return x if self.valid is None else x.masked_fill(~self.valid, value)


class FrameNorm(nn.Module):
    """Batch normalisation over the valid frames of all sequences; the result is zero past each sequence's end.

    In evaluation it applies the running averages of mean and variance, so that each frame is normalised by itself.
    """

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, channels: int, *, momentum: float = 0.1, epsilon: float = 1e-5) -> None:
        super().__init__()
        self.momentum, self.epsilon = momentum, epsilon
        self.weight, self.bias = nn.Parameter(torch.ones(channels)), nn.Parameter(torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))

    def forward(self, x: Tensor, current: ForwardPass) -> Tensor:
        """Normalise x [T, B, C]."""
        if not self.training:
            scale, shift = self.affine()
            return current.clear_padding(torch.addcmul(shift, x, scale))
        y, mean, variance = blocks.batch_norm(x, self.weight, self.bias, current.lengths, self.epsilon)
        if current.statistics is not None:
            current.statistics.append((mean, variance))
        else:
            self.update(mean, variance)
        return y

    @torch.no_grad()
    def update(self, mean: Tensor, variance: Tensor) -> None:
        """Update the running averages from the statistics of a batch."""
        self.running_mean.lerp_(mean, self.momentum)
        self.running_var.lerp_(variance, self.momentum)

    def reset_parameters(self) -> None:
        """Start from the identity."""
        nn.init.ones_(self.weight), nn.init.zeros_(self.bias)
        self.running_mean.zero_(), self.running_var.fill_(1.0)

    def affine(self) -> tuple[Tensor, Tensor]:
        """Return scale and shift [C] of evaluation."""
        scale = self.weight * torch.rsqrt(self.running_var + self.epsilon)
        return scale, self.bias - self.running_mean * scale


class DepthwiseConv(nn.Module):
    """A convolution over time, channel by channel, followed by SiLU; causal, or centred where the future is known."""

    def __init__(self, channels: int, kernel_size: int, *, centred: bool = False) -> None:
        super().__init__()
        self.kernel_size, self.ahead = kernel_size, (kernel_size - 1) // 2 if centred else 0
        self.weight = nn.Parameter(torch.empty(kernel_size, channels))  # the newest tap first
        self.bias = nn.Parameter(torch.empty(channels))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the taps from N(0, 1/K)."""
        nn.init.normal_(self.weight, std=self.kernel_size**-0.5)
        nn.init.zeros_(self.bias)

    def forward(
        self, x: Tensor, history: Tensor | None, current: ForwardPass, *, keep_history: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Convolve x [T, B, C] and return the result and the history to go on from.

        history: the last K - 1 inputs of each sequence, [K - 1, B, C]; zeros if None.
        """
        steps, before = x.size(0), self.kernel_size - 1
        seen = x if history is None else torch.cat([history, x])
        y = blocks.depthwise_conv(seen, self.weight, self.bias, self.ahead)
        y = y[seen.size(0) - steps :]
        if not keep_history:
            return y, None
        if history is None:
            seen = torch.cat([x.new_zeros(before, *x.shape[1:]), x])
        if current.lengths is None:
            return y, seen[steps:]
        last = torch.arange(before, device=x.device).unsqueeze(1) + current.lengths  # [K - 1, B]
        return y, seen.gather(0, last.unsqueeze(-1).expand(-1, -1, x.size(2)))


class GatedUnit(nn.Module):
    """A gated linear unit: silu(a) * b of two projections, projected back."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.up = nn.Linear(channels, 2 * channels)
        self.down = nn.Linear(channels, channels)

    def reset_parameters(self) -> None:
        """Draw the parameters as `nn.Linear` does."""
        self.up.reset_parameters()
        self.down.reset_parameters()

    def forward(self, x: Tensor) -> Tensor:
        """Transform every frame of x [T, B, C]."""
        found: Tensor = self.down(blocks.gated_unit(self.up(x)))
        return found
