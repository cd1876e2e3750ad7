"""A study on data that is larger than memory: python -m tests.tasks.limited_study FOLDER.

The process may hold 200 MB more than it does when all is imported. It prepares 470 MB of recordings, shows that they do not
fit into its memory, and trains on them.
"""

import resource
import sys
from functools import partial
from pathlib import Path

import numpy as np
import torch

from mistrnn.tasks._recordings import Frames, Item, prepare
from mistrnn.training import Study, run_study

ROOM = 200 * 10**6
FRAMES, INPUTS = 128, 1024  # of the longest recording: 0.5 MB
RECORDINGS = {"train": 1_000, "val": 6, "test": 6}
CLASSES = ("a", "b", "c")

STUDY = Study(
    task="timit",
    layer="mist",
    hidden=6,
    trials=3,
    steps=6,
    batch_size=5,
    validate_every=3,
    layer_options={"delays": 3},
    learning_rate=0.1,
)


def recording(seed: int) -> Frames:
    draw = np.random.default_rng(seed)
    length = FRAMES - seed % 30
    inputs = draw.random((length, INPUTS), dtype=np.float32) - np.float32(0.5)
    return inputs, draw.integers(len(CLASSES), size=length, dtype=np.int16)


def limit_memory() -> None:
    """Allow so much more of the memory that counts: whatever can be written and is nobody else's."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    used = int(status["VmData"].split()[0]) * 1024
    resource.setrlimit(resource.RLIMIT_DATA, (used + ROOM, used + ROOM))


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    limit_memory()
    splits = [split for split, count in RECORDINGS.items() for _ in range(count)]
    items = [Item(f"{k}", f"{k}", split, "", partial(recording, k)) for k, split in enumerate(splits)]  # type: ignore[arg-type]
    prepare(folder / "data", "TIMIT", CLASSES, items, "made")
    try:
        np.array(np.load(folder / "data" / "inputs.npy", mmap_mode="r"))
    except MemoryError:
        print("does not fit into memory")
    run_study(STUDY, folder / "limited", data=folder / "data", device="cpu")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
