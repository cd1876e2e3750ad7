"""Small files in MNIST's format."""

import gzip
import struct
from pathlib import Path

import torch
from torch import Tensor


def idx(values: Tensor) -> bytes:
    """A gzipped IDX file of bytes."""
    header = struct.pack(">I", 0x0800 + values.dim()) + struct.pack(f">{values.dim()}I", *values.shape)
    return gzip.compress(header + bytes(values.flatten().tolist()), mtime=0)


def write_mnist(folder: Path, train: int = 60, test: int = 20, seed: int = 0) -> Path:
    """Four files with random digits, in which the label is written as a bright bar, so that it can be learnt."""
    folder.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(seed)
    for group, count in (("train", train), ("t10k", test)):
        labels = torch.randint(10, (count,), generator=generator, dtype=torch.uint8)
        images = torch.randint(100, (count, 28, 28), generator=generator, dtype=torch.uint8)
        for image, label in zip(images, labels.tolist(), strict=True):
            image[2 * label : 2 * label + 2] = 255
        (folder / f"{group}-images-idx3-ubyte.gz").write_bytes(idx(images))
        (folder / f"{group}-labels-idx1-ubyte.gz").write_bytes(idx(labels))
    return folder
