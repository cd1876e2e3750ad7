"""What several processes do together: torchrun … -m tests.training.together WHAT FOLDER.

study: run the study on FOLDER/data. twice: and another one before it. few: with fewer sequences in a batch than there are
processes. stop: one process is asked to stop. bits: train a group and show that all processes hold the same parameters.
ddp: a layer inside torch's own wrapper.
"""

import sys
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from mistrnn import MIST
from mistrnn.tasks._recordings import Frames, Item, prepare
from mistrnn.training import Interrupted, Study, run_study, study_task
from mistrnn.training.group import Group
from mistrnn.training.processes import joined, leave, process_rank

RECORDINGS = {"train": 40, "val": 230, "test": 120}
"""More than two batches to validate on, the last of them not full."""

STUDY = Study(
    task="timit",
    layer="mist",
    hidden=5,
    trials=2,
    steps=8,
    batch_size=7,
    validate_every=4,
    precision="fp64",
    readout_dropout=0.2,
    layer_options={"delays": 3, "zoneout": 0.1, "recurrent_dropout": 0.1},
)


FEW = Study(**{**STUDY.as_dict(), "batch_size": 2})


def recording(seed: int) -> Frames:
    draw = np.random.default_rng(seed)
    length = int(draw.integers(3, 90))
    labels = draw.integers(-1, 3, size=length, dtype=np.int16)
    labels[0] = 0
    return draw.standard_normal((length, 2), dtype=np.float32), labels


def make_data(folder: Path) -> Path:
    splits = [split for split, count in RECORDINGS.items() for _ in range(count)]
    items = [Item(f"{k}", f"{k}", split, "", partial(recording, k)) for k, split in enumerate(splits)]  # type: ignore[arg-type]
    prepare(folder / "data", "TIMIT", ("a", "b", "c"), items, "made")
    return folder / "data"


def same_bits(folder: Path) -> None:
    processes = joined(torch.device("cpu"))
    group = Group(STUDY, study_task(STUDY, folder / "data"), [0, 1], torch.device("cpu"), processes)
    for _ in range(5):
        group.advance()
    held = [None] * processes.count
    dist.all_gather_object(held, {name: value.numpy().tobytes() for name, value in group.parameters.items()})
    assert all(one == held[0] for one in held)
    print("same bits" if processes.rank == 0 else "")


def wrapped() -> None:
    """Gradients of the wrapper's mean over processes equal those of one process with all sequences."""
    processes = joined(torch.device("cpu"))
    torch.manual_seed(0)
    layer = MIST(3, 8).double()
    everything = torch.randn(20, 4 * processes.count, 3, dtype=torch.float64)
    layer(everything)[0].square().mean().backward()
    expected = [parameter.grad.clone() for parameter in layer.parameters()]
    layer.zero_grad()
    module = torch.nn.parallel.DistributedDataParallel(layer)
    module(everything[:, processes.rank :: processes.count])[0].square().mean().backward()
    for parameter, gradient in zip(layer.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-12, atol=1e-15)
    del module  # it must not outlive the group of processes
    print("same gradients" if processes.rank == 0 else "")


def main(what: str, folder: Path) -> None:
    torch.set_num_threads(1)
    if what == "bits":
        same_bits(folder)
    elif what == "ddp":
        wrapped()
    else:
        asked = 0

        def stop() -> bool:
            nonlocal asked
            asked += 1
            return what == "stop" and asked == 2 and process_rank() == 1  # only one of them was asked

        try:
            if what == "twice":
                run_study(FEW, folder / "first", data=folder / "data", device="cpu")
            study = FEW if what == "few" else STUDY
            rows = run_study(study, folder / "study", data=folder / "data", device="cpu", stop=stop)
            sys.stdout.write(f"process {process_rank()}: {len(rows)} trials\n")  # in one piece, unlike print
        except Interrupted:
            sys.stdout.write(f"process {process_rank()}: interrupted\n")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
    leave(0)
