"""Standardisation of the input's channels, in float64: a signal may be far from zero.

    z = (f(x) - mean) / scale,   f(x) = arcsinh((x - center) / knee) where knee > 0, else x

The arcsinh transform is for channels with heavy tails, such as counts or signals with spikes. It is linear near the center and
logarithmic far from it. Without it, rare large values determine the deviation, and all others look alike.

C channels.
"""

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn


class Arcsinh(nn.Module):
    """The arcsinh transform of some channels.

    Args:
        channels: C.
        device: where the buffers are made.

    The buffers `center` and `knee` [C] are zeros until they are set; a channel whose knee is 0 stays as it is.

    >>> transform = Arcsinh(2)
    >>> transform.knee = torch.tensor([0.0, 0.5], dtype=torch.float64)
    >>> transform(torch.tensor([[3.0, 3.0], [300.0, 300.0]]))
    tensor([[  3.0000,   2.4918],
            [300.0000,   7.0901]], dtype=torch.float64)
    """

    center: Tensor
    knee: Tensor

    def __init__(self, channels: int, device: torch.device | str | None = None) -> None:
        super().__init__()
        self.register_buffer("center", torch.zeros(channels, dtype=torch.float64, device=device))
        self.register_buffer("knee", torch.zeros(channels, dtype=torch.float64, device=device))

    def forward(self, input: Tensor) -> Tensor:
        """Return the input [..., C] transformed, in float64."""
        x, applies = input.to(self.knee.dtype), self.knee > 0
        u = (x - self.center) / torch.where(applies, self.knee, 1.0)
        # In terms of log and sqrt, which ONNX Runtime has in float64; it has arcsinh in float32 alone.
        return torch.where(applies, u.sign() * (u.abs() + (u * u + 1).sqrt()).log(), x)


class Standardisation(NamedTuple):
    """Mean and deviation [C] of the channels, and the transform that precedes them.

    >>> standardisation = Standardisation(torch.tensor([1.0, 5.0]).double(), torch.tensor([2.0, 1.0]).double())
    >>> standardisation(torch.tensor([[3.0, 5.0]]))
    tensor([[1., 0.]], dtype=torch.float64)
    """

    mean: Tensor
    scale: Tensor
    arcsinh: Arcsinh | None = None

    def __call__(self, input: Tensor) -> Tensor:
        """Return the input [..., C] standardised, in float64."""
        x = input.to(self.mean.dtype) if self.arcsinh is None else self.arcsinh(input)
        return (x - self.mean) / self.scale

    @torch.no_grad()
    def of_array(self, values: NDArray[Any]) -> NDArray[np.float64]:
        """Return an array [..., C] standardised; the buffers are on the CPU."""
        found: NDArray[np.float64] = self(torch.from_numpy(np.array(values, dtype=np.float64))).numpy()
        return found

    def to(self, device: torch.device | str) -> "Standardisation":
        """Return a copy on a device."""
        arcsinh = None
        if self.arcsinh is not None:
            arcsinh = Arcsinh(len(self.mean), device)
            arcsinh.load_state_dict(self.arcsinh.state_dict())
        return Standardisation(self.mean.to(device, copy=True), self.scale.to(device, copy=True), arcsinh)


class StandardisedModule(nn.Module):
    """A network whose input is standardised; it holds mean, scale and transform as buffers."""

    mean: Tensor
    scale: Tensor
    arcsinh: Arcsinh | None

    def register_standardisation(
        self, channels: int, *, arcsinh: bool = False, device: torch.device | str | None = None
    ) -> None:
        """Add the buffers, which change nothing until they are set; `arcsinh`: whether the transform exists."""
        self.register_buffer("mean", torch.zeros(channels, dtype=torch.float64, device=device))
        self.register_buffer("scale", torch.ones(channels, dtype=torch.float64, device=device))
        self.arcsinh = Arcsinh(channels, device) if arcsinh else None

    @property
    def standardisation(self) -> Standardisation:
        """Mean, scale and transform of the input's channels."""
        return Standardisation(self.mean, self.scale, self.arcsinh)

    @standardisation.setter
    def standardisation(self, given: Standardisation) -> None:
        self.mean, self.scale, self.arcsinh = given.to(self.mean.device)
        self.train(self.training)  # the new transform, too


def standardisation_buffers(network: StandardisedModule) -> dict[str, Tensor]:
    """Return the buffers of the standardisation by their names in the network's state."""
    own = {"mean": network.mean, "scale": network.scale}
    if network.arcsinh is None:
        return own
    return own | {f"arcsinh.{name}": value for name, value in network.arcsinh.named_buffers()}
