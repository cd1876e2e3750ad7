"""A study on recordings of 100,000 steps in a process of its own, whose memory is limited.

python -m tests.training.long_study DATA OUT SETTINGS: prints what came of it, as JSON.
"""

import json
import sys
from functools import partial
from pathlib import Path

import numpy as np
import torch

from mistrnn.errors import UsageError
from mistrnn.tasks import make_task
from mistrnn.tasks._recordings import Frames, Item, prepare
from mistrnn.training import Study, run_study

STEPS, BATCH = 100_000, 16
SEGMENTS, TRUNCATE = 300, 1_000
LIMIT = 500 * 2**20
"""Bytes beside those of a process that has imported everything: segments take 300 to 400 MB, all steps at once 1.2 GB."""


def prepare_long_recordings(folder: Path) -> None:
    """Noise, with labels that nothing tells."""

    def load(seed: int) -> Frames:
        draw = np.random.default_rng(seed)
        return draw.standard_normal((STEPS, 3), dtype=np.float32), draw.integers(0, 2, STEPS).astype(np.int16)

    splits = ["train"] * BATCH + ["val", "test"]
    items = [Item(str(k), str(k), split, "", partial(load, k)) for k, split in enumerate(splits)]  # type: ignore[arg-type]
    prepare(folder, "HAPT frames", ["heads", "tails"], items, "a coin")


if __name__ == "__main__":
    import resource  # which only Unix has

    torch.set_num_threads(1)
    data, out, settings = Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3])
    task = make_task("hapt-frames", data=data)
    taken = 1024 * int(Path("/proc/self/status").read_text().split("VmData:")[1].split()[0])
    resource.setrlimit(resource.RLIMIT_DATA, (taken + LIMIT, taken + LIMIT))
    study = Study(task="hapt-frames", layer="mist", hidden=48, trials=1, batch_size=BATCH, steps=2, **settings)
    try:
        (row,) = run_study(study, out, device="cpu", group_size=1, task=task)
        print(json.dumps({**row, "taken": row["steps"], "steps": task.steps}))
    except UsageError as error:
        print(json.dumps({"error": str(error)}))
