"""A sweep on a Ray cluster compared with the same sweep in one process, on this machine's cores: `make bench-engines`.

All sides train the same trials to the same results, which is checked before anything is printed. The time runs from the first
step to the end; the startup of the cluster is a separate column.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from machine import heading

from mistrnn.training import Progress, Study, run_study
from mistrnn.training.cluster import RayEngine

TRIALS, GROUP = 16, 8
STUDY = Study(
    task="copy",
    layer="mist",
    hidden=64,
    trials=TRIALS,
    steps=150,
    validate_every=50,
    task_settings={"delay": 50},
)
MANY = 12
SHORT = Study(**{**STUDY.as_dict(), "trials": MANY, "hidden": 8, "steps": 4, "validate_every": 4, "batch_size": 10})
"""Groups of one trial with hardly any training: their time is the overhead of a group."""

# One group of 50 trials of MIST 139 on permuted MNIST, the whole protocol, on one H200 (results/table1).
GROUP_SECONDS, GROUP_TRIALS, PARAMETERS = 345.0, 50, 41_726
PAPER_TRIALS, PAPER_GPUS, CHECKPOINT_SECONDS = 10_000, 64, 60.0


@dataclass
class Ran:
    """The times and errors of one side."""

    starting: float
    training: float
    errors: list[float]


def timed(study: Study, group_size: int, engine: RayEngine | None, threads: int) -> Ran:
    """Run a study in a new folder."""
    torch.set_num_threads(threads)
    first: list[float] = []

    def report(progress: Progress) -> None:
        if not first:
            first.append(time.perf_counter())

    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        rows = run_study(study, Path(folder), device="cpu", group_size=group_size, engine=engine, report=report)
        ended = time.perf_counter()
    return Ran(first[0] - began, ended - first[0], [row["val_error"] for row in rows])


def median(run: Callable[[], Ran], repeats: int) -> Ran:
    """Return the run whose training took the median time."""
    return sorted((run() for _ in range(repeats)), key=lambda ran: ran.training)[repeats // 2]


def main() -> None:
    """Measure, and print tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    repeats = parser.parse_args().repeats
    about = heading("make bench-engines", f"median of {repeats}")
    sides: list[tuple[str, RayEngine | None, int, int]] = [
        ("embedded, 2 threads", None, GROUP, 2),
        ("embedded, 2 threads, all trials in one group", None, TRIALS, 2),
        ("embedded, 1 thread", None, GROUP, 1),
        ("ray, 1 worker", RayEngine(workers=1), GROUP, 1),
        ("ray, 2 workers", RayEngine(workers=2), GROUP, 1),
    ]
    found = [(name, median(lambda e=e, g=g, t=t: timed(STUDY, g, e, t), repeats)) for name, e, g, t in sides]
    base = found[0][1]
    for name, ran in found:
        if any(abs(a - b) > 2e-3 for a, b in zip(ran.errors, base.errors, strict=True)):
            sys.exit(f"{name}: results differ from {sides[0][0]}; no speed is reported")
    print(about)
    print(
        f"\n{TRIALS} trials of MIST 64 on copy, delay 50, batch 100, 150 steps and 3 validations, groups of {GROUP}\n"
    )
    print("| engine | trials per second | against embedded | startup, s |\n| --- | --- | --- | --- |")
    for name, ran in found:
        print(f"| {name} | {TRIALS / ran.training:.2f} | {base.training / ran.training:.2f}x | {ran.starting:.1f} |")
    cost = overhead(repeats)
    print(
        f"\nOverhead of the engine per group: {1000 * cost:.0f} ms ({MANY} groups of one trial and 4 steps, one worker)\n"
    )
    print(on_paper(cost, found[-1][1].starting))


def overhead(repeats: int) -> float:
    """Return the extra seconds of a group on a worker, compared with this process."""
    here = median(lambda: timed(SHORT, 1, None, 1), repeats).training
    there = median(lambda: timed(SHORT, 1, RayEngine(workers=1), 1), repeats).training
    return max(0.0, there - here) / MANY


def on_paper(cost: float, starting: float) -> str:
    """Return the estimated time of many trials on many GPUs, with the formula."""
    groups = -(-PAPER_TRIALS // GROUP_TRIALS)
    waves = -(-groups // PAPER_GPUS)
    seconds = starting + waves * (GROUP_SECONDS + cost)
    # Parameters, best parameters and momentum of each trial, in float32.
    checkpoint = 3 * 4 * PARAMETERS * GROUP_TRIALS
    traffic = PAPER_GPUS * checkpoint / CHECKPOINT_SECONDS
    return "\n".join(
        [
            f"Estimate: {PAPER_TRIALS:,} trials on {PAPER_GPUS} GPUs, in groups of g = {GROUP_TRIALS}.",
            f"T = start + ceil(trials / g / GPUs) x (group + overhead) = {starting:.0f} + {waves} x ({GROUP_SECONDS:.0f} + "
            f"{cost:.2f}) s = {seconds / 60:.0f} min,",
            f"where a group of MIST 139 with the paper's whole protocol takes {GROUP_SECONDS:.0f} s on one H200 "
            f"(results/table1); one GPU would take {groups * GROUP_SECONDS / 3600:.0f} h.",
            f"Checkpoints of {checkpoint / 1e6:.0f} MB per group every {CHECKPOINT_SECONDS:.0f} s are {traffic / 1e6:.0f} MB/s "
            "at the process that writes the folder.",
        ]
    )


if __name__ == "__main__":
    main()
