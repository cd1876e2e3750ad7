"""The four files of MNIST: getting them, and reading them with every doubt named."""

import gzip
import hashlib
import http.client
import math
import os
import struct
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from mistrnn.errors import UsageError
from mistrnn.files import write_whole

CHECKSUMS = {
    "train-images-idx3-ubyte.gz": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    "train-labels-idx1-ubyte.gz": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    "t10k-images-idx3-ubyte.gz": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    "t10k-labels-idx1-ubyte.gz": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
}
"""SHA-256 of the files that LeCun, Cortes and Burges published."""

PUBLISHED = hashlib.sha256("".join(CHECKSUMS.values()).encode()).hexdigest()[:16]
"""The digest of the four published files, as `identity` makes it."""

MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)


def get(
    folder: Path,
    mirrors: Sequence[str] = MIRRORS,
    checksums: Mapping[str, str] = CHECKSUMS,
    say: Callable[[str], None] = lambda line: None,
) -> None:
    """Download the missing files of the four, and check all checksums."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot use the folder {folder}: {error.strerror}.") from error
    for name, checksum in checksums.items():
        path = folder / name
        if path.exists():
            found = _checksum(path)
            if found != checksum:
                raise UsageError(
                    f"{path}: expected SHA-256 {checksum[:12]}…, got {found[:12]}…. The file is truncated, corrupted or "
                    "another one; remove it and run the command again."
                )
            say(f"{path}: there, checksum right")
        else:
            _download(path, name, checksum, mirrors)
            say(f"{path}: downloaded, checksum right")


def _download(path: Path, name: str, checksum: str, mirrors: Sequence[str]) -> None:
    problems = []
    for mirror in mirrors:
        url = mirror.rstrip("/") + "/" + name
        try:
            with urllib.request.urlopen(url, timeout=60) as response:
                content = response.read()
        except (urllib.error.URLError, http.client.HTTPException, OSError, ValueError) as error:
            problems.append(f"{url}: {getattr(error, 'reason', error)}")
            continue
        found = hashlib.sha256(content).hexdigest()
        if found != checksum:
            problems.append(f"{url}: expected SHA-256 {checksum[:12]}…, got {found[:12]}… ({len(content)} bytes)")
            continue
        _write(path, content)
        return
    raise UsageError(
        f"could not get {name}:\n  "
        + "\n  ".join(problems)
        + f"\nGet it by other means, put it into {path.parent} and "
        "run the command again."
    )


def _write(path: Path, content: bytes) -> None:
    """Write the whole file or nothing."""
    try:
        write_whole(path, content, suffix=f".{os.getpid()}.part")  # two commands may be at it at once
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}.") from error


def identity(folder: Path) -> tuple[str, bool]:
    """Return a digest of the four files, and whether they are the published ones."""
    found = {name: _checksum(folder / name) for name in CHECKSUMS}
    return hashlib.sha256("".join(found.values()).encode()).hexdigest()[:16], found == CHECKSUMS


def _checksum(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}.") from error


def read(folder: Path) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return train images [N, 28, 28] and labels [N], and the same of the test set, as bytes."""
    missing = [name for name in CHECKSUMS if not (folder / name).exists()]
    if missing:
        raise UsageError(
            f"MNIST is not in {folder}: {', '.join(missing)} missing. Get it with: mist data mnist --dir {folder}"
        )
    parts = []
    for group in ("train", "t10k"):
        images_path, labels_path = folder / f"{group}-images-idx3-ubyte.gz", folder / f"{group}-labels-idx1-ubyte.gz"
        images, labels = _read_idx(images_path, dimensions=3), _read_idx(labels_path, dimensions=1)
        if images.shape[1:] != (28, 28):
            raise UsageError(f"{images_path}: expected images of 28 x 28 pixels, got {list(images.shape[1:])}.")
        if len(images) != len(labels):
            raise UsageError(f"{labels_path}: expected {len(images)} labels, one for each image, got {len(labels)}.")
        if len(labels) and int(labels.max()) > 9:
            raise UsageError(f"{labels_path}: expected labels 0 to 9, got {int(labels.max())}.")
        parts += [images, labels]
    if len(parts[0]) <= len(parts[2]):
        raise UsageError(
            f"{folder / 'train-images-idx3-ubyte.gz'}: expected more training images than the {len(parts[2])} test images, "
            f"got {len(parts[0])}. Are the train and t10k files exchanged?"
        )
    return parts[0], parts[1], parts[2], parts[3]


def _read_idx(path: Path, dimensions: int) -> Tensor:
    """Return the bytes of one gzipped IDX file: magic number, sizes, data."""
    try:
        content = gzip.decompress(path.read_bytes())
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UsageError(f"{path}: truncated or corrupted ({error}).") from error
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}.") from error
    magic = 0x0800 + dimensions  # unsigned bytes in so many dimensions
    header = 4 + 4 * dimensions
    if len(content) < header or struct.unpack(">I", content[:4])[0] != magic:
        kind = {3: "images", 1: "labels"}[dimensions]
        raise UsageError(
            f"{path}: expected an IDX file of {kind} (magic number {magic}), got "
            f"{int.from_bytes(content[:4], 'big')}. Are images and labels exchanged?"
        )
    sizes = struct.unpack(f">{dimensions}I", content[4:header])
    expected = header + math.prod(sizes)
    if len(content) != expected:
        raise UsageError(f"{path}: expected {expected} bytes for sizes {list(sizes)}, got {len(content)}: truncated?")
    if 0 in sizes:
        raise UsageError(f"{path}: expected something in it, got sizes {list(sizes)}.")
    return torch.frombuffer(bytearray(content[header:]), dtype=torch.uint8).reshape(sizes)
