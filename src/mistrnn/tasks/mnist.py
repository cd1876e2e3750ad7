"""Sequential and permuted MNIST (Le et al. 2015): one pixel per step, and the digit at the end.

Each image is shifted and scaled to mean 0 and variance 1. The first 58,000 images of the training set are trained on, its
last 2,000 validated on, and the official test set of 10,000 is the test set. `pmnist` reads the pixels in one fixed random
order, NumPy's RandomState(0).permutation(784); with `last_pixels` only the last so many of them.
"""

from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from mistrnn.errors import UsageError
from mistrnn.tasks import _mnist_files
from mistrnn.tasks._task import Split, Task


class SequentialMNIST(Task):
    """Classify a digit, pixel by pixel, from left to right and top to bottom."""

    name = "smnist"
    summary = "classify MNIST digits pixel by pixel (58,000 / 2,000 / 10,000 images)"
    needs_data = True
    data_command = "mist data mnist --dir DIR"
    every_step = False
    default_steps = 15_000
    validation_interval = 150
    permuted: ClassVar[bool] = False

    def __init__(self, data: Path, last_pixels: int | None = None, seed: int = 0) -> None:
        train_images, train_labels, test_images, test_labels = _mnist_files.read(data)
        self.data_identity, published = _mnist_files.identity(data)
        if not published:
            self.data_note = "The files are not the published MNIST."
        if len(train_images) < 10:
            raise UsageError(
                f"{self.name}: expected at least 10 training images, to validate on a tenth, got {len(train_images)}."
            )
        pixels = train_images[0].numel()
        if last_pixels is not None and (type(last_pixels) is not int or not 1 <= last_pixels <= pixels):
            raise UsageError(f"{self.name}: expected last_pixels between 1 and {pixels}, got {last_pixels!r}.")
        places = np.random.RandomState(0).permutation(pixels) if self.permuted else np.arange(pixels)
        order = torch.from_numpy(places[-last_pixels:] if last_pixels else places)
        self.steps, self.input_size, self.output_size = len(order), 1, 10
        validation = 2_000 if len(train_images) == 60_000 else len(train_images) // 10
        cut = len(train_images) - validation
        self._images: dict[Split, Tensor] = {  # [N, T]
            "train": _standardised(train_images[:cut])[:, order],
            "val": _standardised(train_images[cut:])[:, order],
            "test": _standardised(test_images)[:, order],
        }
        self._labels: dict[Split, Tensor] = {
            "train": train_labels[:cut].long(),
            "val": train_labels[cut:].long(),
            "test": test_labels.long(),
        }
        self.sizes = {split: len(labels) for split, labels in self._labels.items()}
        self._commonest = self._labels["train"].bincount(minlength=10).argmax()
        self.trivial_error = float((self._labels["test"] != self._commonest).double().mean())

    def trivial_output(self) -> Tensor:
        """Return a preference for the commonest digit of the training set."""
        return F.one_hot(self._commonest, 10).double()

    def batch(self, split: Split, index: Tensor, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
        """Return pixels [..., T, B, 1] and digits [..., B]."""
        return self._images[split][index].to(dtype).transpose(-1, -2).unsqueeze(-1), self._labels[split][index]

    def to(self, device: torch.device | str) -> "SequentialMNIST":
        """Move images and labels to the device."""
        self._images = {split: images.to(device) for split, images in self._images.items()}
        self._labels = {split: labels.to(device) for split, labels in self._labels.items()}
        return self


class PermutedMNIST(SequentialMNIST):
    """Classify a digit, pixel by pixel, in a random order that is the same for all images."""

    name = "pmnist"
    summary = "classify MNIST digits pixel by pixel, in one fixed random order (58,000 / 2,000 / 10,000 images)"
    settings: ClassVar[dict[str, str]] = {"last_pixels": "read only the last so many pixels (default: all 784)"}
    permuted = True


def _standardised(images: Tensor) -> Tensor:  # [N, 784]
    pixels = images.flatten(1).double() / 255
    deviation = pixels.std(1, correction=0, keepdim=True)
    return ((pixels - pixels.mean(1, keepdim=True)) / deviation.clamp_min(1e-12)).float()
