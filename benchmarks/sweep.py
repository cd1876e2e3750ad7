"""One sweep of 8 trials compared with 8 separate runs of the same trials, on the CPU: `make bench`.

Both sides train the same trials to the same parameters, which is checked before anything is printed. The ratio is that of their
times in one run. The process keeps freed memory, as the `mist` command does; the last column is the sweep without this.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from machine import heading

from mistrnn._memory import keep_freed_memory
from mistrnn.tasks import Task, make_task
from mistrnn.training import Study
from mistrnn.training.group import Group

CPU = torch.device("cpu")
TRIALS, STEPS = 8, 20
CASES = [
    # layer, hidden units, task, its settings, batch size
    ("mist", 44, "copy", {"delay": 30}, 50),
    ("mist", 139, "copy", {"delay": 100}, 100),
    ("lstm", 32, "copy", {"delay": 30}, 50),
    ("rnn", 67, "addition", {"length": 200}, 50),
]


def trained(study: Study, task: Task, trials: Sequence[int]) -> tuple[Group, float]:
    """Train the trials together and return them with the seconds of their steps."""
    group = Group(study, task, trials, CPU)
    start = time.perf_counter()
    for _ in range(STEPS - 1):  # the last step would validate
        group.advance()
    return group, time.perf_counter() - start


def study_of(layer: str, hidden: int, name: str, settings: dict[str, int], batch: int) -> Study:
    """Return the study of a case."""
    return Study(
        task=name,
        layer=layer,
        hidden=hidden,
        trials=TRIALS,
        steps=STEPS,
        batch_size=batch,
        task_settings=settings,
        validate_every=STEPS,
        learning_rate=0.01,
    )


def sweep_alone(study: Study) -> float:
    """Return the seconds of a sweep."""
    task = make_task(study.task, study.task_settings)
    trained(study, task, range(TRIALS))  # warm up
    return trained(study, task, range(TRIALS))[1]


def compare(study: Study, given_back_seconds: float) -> str:
    """Return a table row; exit if the results of the two sides differ."""
    task = make_task(study.task, study.task_settings)
    trained(study, task, range(TRIALS))  # warm up
    separate = [trained(study, task, [trial]) for trial in range(TRIALS)]
    sweep, sweep_seconds = trained(study, task, range(TRIALS))
    for trial, (alone, _) in enumerate(separate):
        for key, value in alone.parameters.items():
            error = (sweep.parameters[key][trial] - value[0]).norm() / value[0].norm().clamp_min(1e-12)
            if not error < 1e-3:
                sys.exit(
                    f"{study.layer} {study.hidden}: trial {trial} differs in {key} by {error:.1e}; no speed is reported"
                )
    separate_seconds = sum(seconds for _, seconds in separate)
    return (
        f"| {study.layer} {study.hidden}, {study.task} {', '.join(f'{k} {v}' for k, v in study.task_settings.items())}, "
        f"batch {study.batch_size} | {1000 * separate_seconds / (STEPS - 1):.0f} "
        f"| {1000 * sweep_seconds / (STEPS - 1):.0f} | {separate_seconds / sweep_seconds:.1f}x "
        f"| {1000 * given_back_seconds / (STEPS - 1):.0f} |"
    )


def main() -> None:
    """Print the table and optionally write it to a file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", type=Path, help="also write the table to this file")
    arguments = parser.parse_args()
    torch.set_num_threads(2)
    lines = [
        f"# One sweep of {TRIALS} trials against {TRIALS} separate runs",
        "",
        heading("python benchmarks/sweep.py", f"fp32, mean of {STEPS - 1} optimisation steps."),
        "",
        f"| study | {TRIALS} separate runs: ms per step of all | one sweep: ms per step of all | speed-up of the sweep "
        "| sweep that returns freed memory to the system: ms |",
        "| --- | --- | --- | --- | --- |",
    ]
    print("\n".join(lines), flush=True)
    studies = [study_of(*case) for case in CASES]
    given_back = [sweep_alone(study) for study in studies]
    keep_freed_memory()
    for study, seconds in zip(studies, given_back, strict=True):
        lines.append(compare(study, seconds))
        print(lines[-1], flush=True)
    if arguments.record:
        arguments.record.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
