"""Prepared recordings: frames of all recordings one after the other, memory-mapped, with a list of the recordings.

recordings.json   format, name of the data set, classes, and for each recording: id, group (speaker, user), split, frames
inputs.npy        [frames, I] float32
labels.npy        [frames] int16, the class of each frame; -1 where it has none

Preparing writes one recording at a time beside the folder, goes on after an interruption, and puts the folder in its
place in one move when all is there: a folder that exists is complete.
Neither preparing nor training holds more in memory than some recordings, so a data set may be larger than memory.
"""

import hashlib
import json
import os
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mistrnn._memory import free_memory
from mistrnn.errors import UsageError
from mistrnn.tasks._task import IGNORED, Split, Task

FORMAT = 1
BUCKET = 32
"""Batches are padded to a multiple of so many steps: few shapes, so that a GPU's recordings are made few times."""

DEVICE_SHARE = 0.25
"""Frames move to a GPU if they take up to so much of its free memory, because the rest is for trials; else they stay in
their file."""

Frames = tuple[NDArray[np.float32], NDArray[np.int16]]


@dataclass(frozen=True)
class RecordingEntry:
    """One recording, and where its frames lie."""

    id: str
    group: str
    split: Split | None
    frames: int


@dataclass(frozen=True)
class Item:
    """A recording to prepare: `load` reads it when its turn comes."""

    id: str
    group: str
    split: Split | None
    stamp: str
    """A digest or date that changes with its files."""
    load: Callable[[], Frames]


def prepare(
    folder: Path,
    name: str,
    classes: Sequence[str],
    items: Sequence[Item],
    origin: str,
    say: Callable[[str], None] = lambda line: None,
    note: str = "",
) -> None:
    """Prepare all items into a folder; an interrupted call resumes where it stopped."""
    if folder.exists():
        raise UsageError(f"{folder} is there already; remove it to prepare it again, or use another folder.")
    if not items:
        raise UsageError(f"{name}: expected recordings, and found none.")
    again = [one for one, count in Counter(item.id for item in items).items() if count > 1]
    if again:
        raise UsageError(f"{name}: expected one recording {again[0]}, and there are several.")
    parts = folder.with_name(folder.name + ".part")
    try:
        parts.mkdir(parents=True, exist_ok=True)
        _start_over_unless(parts, f"{name} from {origin}")
        recordings = []
        for number, item in enumerate(items):
            key = json.dumps([item.id, item.stamp, list(classes)])
            place = parts / f"{hashlib.sha256(key.encode()).hexdigest()[:24]}.npz"
            frames = _kept(place)
            if frames is None:
                inputs, labels = item.load()
                frames = len(inputs)
                assert len(labels) == frames, item.id
                if not (labels >= 0).any():
                    raise UsageError(f"{name}: no frame of recording {item.id} has a label.")
                with open(place.with_suffix(".new"), "wb") as file:
                    np.savez(file, inputs=inputs, labels=labels)
                os.replace(place.with_suffix(".new"), place)
            recordings.append((place, RecordingEntry(item.id, item.group, item.split, frames)))
            if (number + 1) % 100 == 0 or number + 1 == len(items):
                say(f"{number + 1} of {len(items)} recordings")
        _assemble(parts, recordings, name, classes, note)
        for place in (*parts.glob("*.npz"), *parts.glob("*.new"), parts / "origin"):
            place.unlink()
        os.replace(parts, folder)
    except OSError as error:
        raise UsageError(f"cannot write to {parts}: {error.strerror or error}.") from error
    say(f"{folder}: {len(items)} recordings, {sum(r.frames for _, r in recordings):,} frames")


def _start_over_unless(parts: Path, origin: str) -> None:
    """Remove prepared files of another origin."""
    note = parts / "origin"
    if not note.exists() or note.read_text() != origin:
        for pattern in ("*.npz", "*.new", "*.npy"):
            for place in parts.glob(pattern):
                place.unlink()
        note.write_text(origin)


def _kept(place: Path) -> int | None:
    """Return the frames of a recording that is prepared already, or None."""
    try:
        with open(place, "rb") as file, np.load(file) as stored:
            return len(stored["labels"]) if len(stored["inputs"]) == len(stored["labels"]) else None
    except (OSError, ValueError, KeyError, zipfile.BadZipFile, EOFError):
        return None


def _assemble(
    parts: Path, recordings: Sequence[tuple[Path, RecordingEntry]], name: str, classes: Sequence[str], note: str
) -> None:
    """Write all frames one after the other, a recording at a time, and the list of them with checksums."""
    total = sum(recording.frames for _, recording in recordings)
    with np.load(recordings[0][0]) as first:
        size = first["inputs"].shape[1]
    new_file: Any = np.lib.format.open_memmap  # which has no types before NumPy 2.4
    inputs = new_file(parts / "inputs.npy", mode="w+", dtype=np.float32, shape=(total, size))
    labels = new_file(parts / "labels.npy", mode="w+", dtype=np.int16, shape=(total,))
    at = 0
    for place, recording in recordings:
        with np.load(place) as stored:
            inputs[at : at + recording.frames] = stored["inputs"]
            labels[at : at + recording.frames] = stored["labels"]
        at += recording.frames
    inputs.flush()
    labels.flush()
    del inputs, labels
    about = {
        "format": FORMAT,
        "name": name,
        "note": note,
        "classes": list(classes),
        "sha256": {file: _checksum(parts / file) for file in ("inputs.npy", "labels.npy")},
        "recordings": [asdict(recording) for _, recording in recordings],
    }
    (parts / "recordings.json").write_text(json.dumps(about, indent=1) + "\n")


def _checksum(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


class PreparedRecordings:
    """A prepared data set, memory-mapped."""

    def __init__(self, folder: Path, command: str) -> None:
        path = folder / "recordings.json"
        if not path.exists():
            raise UsageError(
                f"{folder}: expected prepared recordings, and there is no recordings.json. Make it with: {command}"
            )
        try:
            about: dict[str, Any] = json.loads(path.read_text())
            if about.get("format") != FORMAT:
                raise UsageError(f"{path}: expected format {FORMAT}, got {about.get('format')!r}; prepare it again.")
            self.name, self.note, self.classes = str(about["name"]), str(about["note"]), list(about["classes"])
            self.recordings = [RecordingEntry(**one) for one in about["recordings"]]
            content = {key: value for key, value in about.items() if key != "note"}
            digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
            self.identity = f"{self.name}|{digest}"
            # To be read only: the system counts a mapping that can be written against its limits as if all were in memory.
            self.inputs = np.load(folder / "inputs.npy", mmap_mode="r")
            self.labels = np.load(folder / "labels.npy", mmap_mode="r")
        except UsageError:
            raise
        except (OSError, ValueError, KeyError, TypeError, AttributeError, EOFError) as error:
            raise UsageError(f"{folder}: not readable as prepared recordings ({error}); prepare it again.") from error
        total = sum(recording.frames for recording in self.recordings)
        if self.inputs.shape[:1] != (total,) or self.labels.shape != (total,) or self.inputs.ndim != 2:
            raise UsageError(
                f"{folder}: expected {total} frames, got inputs {list(self.inputs.shape)} and labels "
                f"{list(self.labels.shape)}: truncated? Prepare it again."
            )


class FrameTask(Task):
    """A task on recordings of any length: a label for each frame, or one for each recording, at its last frame."""

    every_step = True
    one_label: bool = False
    """Whether a recording has a single label, which is asked for at its end."""
    wrap: bool = False
    """Whether recordings in a batch to train on are repeated up to the length of the longest, instead of padded."""

    def _set_frames(self, inputs: Tensor, labels: Tensor, lengths: Tensor, splits: dict[Split, list[int]]) -> None:
        """Take the frames of all recordings, one after the other, and derive splits and sizes.

        Args:
            inputs: [frames, I]
            labels: [frames] classes, -1 where a frame has none.
            lengths: [recordings]
            splits: which recordings belong to each split.
        """
        self._mapped = inputs, labels
        self._inputs, self._labels = self._mapped
        """The frames, in their file or on a device; their indices are on the same device."""
        self._device = torch.device("cpu")
        """The device of the batches."""
        starts = lengths.cumsum(0) - lengths
        self._starts = {split: starts[chosen] for split, chosen in splits.items()}
        self._lengths = {split: lengths[chosen] for split, chosen in splits.items()}
        self.sizes = {split: len(chosen) for split, chosen in splits.items()}
        self.steps = _bucketed(int(lengths.max()))
        self._commonest = self._class_counts("train").argmax()
        tested = self._class_counts("test")
        self.trivial_error = 1 - int(tested[self._commonest]) / int(tested.sum())

    def _class_counts(self, split: Split) -> Tensor:
        """Return how often each class is a target: by the labels alone, which are a small part of the data."""
        counts = torch.zeros(self.output_size, dtype=torch.int64)
        for start, length in zip(self._starts[split].tolist(), self._lengths[split].tolist(), strict=True):
            labels = self._labels[start : start + length]
            if self.one_label:
                labels = labels[-1:]
            counts += torch.bincount(labels[labels >= 0].long(), minlength=self.output_size)
        return counts

    def trivial_output(self) -> Tensor:
        """Return a preference for the commonest class of the training set."""
        return torch.nn.functional.one_hot(self._commonest, self.output_size).double()

    def lengths(self, split: Split, index: Tensor) -> Tensor:
        """Return the number of frames of each recording at index [..., B], on the index's device."""
        return self._lengths[split][index.to(self._inputs.device)].to(index.device)

    def order(self, split: Split) -> Tensor:
        """Return the recordings of a split, the longest first: little padding, and memory is known from the start."""
        return self._lengths[split].argsort(descending=True, stable=True).cpu()

    def batch(self, split: Split, index: Tensor, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
        """Return frames [..., T, B, I] and classes [..., T, B], padded (or wrapped) to the longest of the batch.

        They are gathered where the frames are stored; from a file, only the frames of the batch are read.
        """
        index = index.to(self._inputs.device)
        starts, lengths = (
            values[split][index].unsqueeze(-2) for values in (self._starts, self._lengths)
        )  # [..., 1, B]
        steps = torch.arange(_bucketed(int(lengths.max())), device=starts.device).unsqueeze(1)  # [T, 1]
        there = steps < (lengths.amax(-1, keepdim=True) if self._wraps(split) else lengths)
        places = starts + (steps % lengths if self._wraps(split) else torch.minimum(steps, lengths - 1))
        inputs = self._inputs[places].to(dtype).masked_fill_(~there.unsqueeze(-1), 0.0)
        targets = self._labels[places].long()
        counted = there & (targets >= 0)
        if self.one_label:
            counted = counted & (steps == lengths - 1)
        return inputs.to(self._device), targets.masked_fill_(~counted, IGNORED).to(self._device)

    def resets(self, split: Split, index: Tensor) -> Tensor | None:
        """Return where wrapped recordings begin again."""
        if not self._wraps(split):
            return None
        lengths = self._lengths[split][index.to(self._inputs.device)].unsqueeze(-2)  # [..., 1, B]
        steps = torch.arange(_bucketed(int(lengths.max())), device=lengths.device).unsqueeze(1)  # [T, 1]
        return (steps % lengths == 0).to(self._device)

    def _wraps(self, split: Split) -> bool:
        return self.wrap and split == "train"

    def to(self, device: torch.device | str) -> "FrameTask":
        """Let batches be on the device, and move all frames there if it has room for them; else they stay in their file."""
        device = torch.device(device)
        if device == self._device:
            return self  # a second copy might not fit
        size = sum(values.nbytes for values in self._mapped)
        home = device if size <= DEVICE_SHARE * free_memory(device) else torch.device("cpu")
        self._inputs, self._labels = (values.to(home) for values in self._mapped)
        self._starts = {split: values.to(home) for split, values in self._starts.items()}
        self._lengths = {split: values.to(home) for split, values in self._lengths.items()}
        self._device = device
        return self


class RecordingTask(FrameTask):
    """A task on prepared recordings."""

    needs_data = True
    data_names: ClassVar[tuple[str, ...]] = ()
    """The data sets that the task is about; any, if none are named."""

    def __init__(self, data: Path, seed: int = 0) -> None:
        recordings = PreparedRecordings(data, self.data_command)
        if self.data_names and recordings.name not in self.data_names:
            raise UsageError(
                f"{data}: {self.name} is about {' or '.join(self.data_names)}, and these recordings are {recordings.name}. "
                f"Prepare them with: {self.data_command}"
            )
        self.groups = sorted({recording.group for recording in recordings.recordings})
        self.classes, self.data_name = recordings.classes, recordings.name
        self.input_size, self.output_size = int(recordings.inputs.shape[1]), len(recordings.classes)
        self.data_identity, self.data_note = recordings.identity, recordings.note
        splits = self.split(recordings.recordings)
        for split, chosen in splits.items():
            if not chosen:
                raise UsageError(f"{self.name}: expected recordings to {split} on, and {data} has none.")
        lengths = torch.tensor([recording.frames for recording in recordings.recordings])
        self._set_frames(_view(recordings.inputs), _view(recordings.labels), lengths, splits)

    def split(self, recordings: Sequence[RecordingEntry]) -> dict[Split, list[int]]:
        """Return which recordings belong to each split: as they were prepared."""
        found: dict[Split, list[int]] = {"train": [], "val": [], "test": []}
        for number, recording in enumerate(recordings):
            if recording.split is not None:
                found[recording.split].append(number)
        return found


def _view(mapped: NDArray[Any]) -> Tensor:
    """Return a view of a mapped file: pages are read when they are needed, and let go when memory is short."""
    with warnings.catch_warnings():
        # Torch knows no tensors that cannot be written, and warns that writing to this one would crash. Nothing does.
        warnings.filterwarnings("ignore", "The given NumPy array is not writable", UserWarning)
        return torch.from_numpy(mapped)


def _bucketed(length: int) -> int:
    return -(-length // BUCKET) * BUCKET


def standardised(inputs: NDArray[Any]) -> NDArray[np.float32]:
    """Return the frames of one recording shifted and scaled to mean 0 and variance 1 in each dimension; constants become 0."""
    values = inputs.astype(np.float64)
    deviation = values.std(0)
    varies = deviation > 1e-12 * np.abs(values).max(0, initial=0.0)  # else it is the rounding of a constant's mean
    found: NDArray[np.float64] = np.where(varies, (values - values.mean(0)) / np.where(varies, deviation, 1.0), 0.0)
    return found.astype(np.float32)
