"""The cost of recomputation: the gradients of one step of a study in segments, compared with all steps at once.

Both sides of a row are measured in turn in one run: `OMP_NUM_THREADS=1 python benchmarks/long_sequences.py`.
"""

import torch
from cpu import milliseconds
from machine import heading

from mistrnn.tasks import make_task
from mistrnn.training import Study
from mistrnn.training.backpropagation import recomputed, truncated

STEPS, BATCH, HIDDEN = 30_000, 16, 48
TASK = make_task("copy", {"delay": 10})
STUDY = Study(task="copy", layer="mist", hidden=HIDDEN)


def ratio(segments: int) -> float:
    """Return the time of recomputation divided by that of all steps at once."""
    model = STUDY.model(TASK, device="meta")
    parameters = {name: value.unsqueeze(0) for name, value in STUDY.initial_parameters(0, TASK).items()}
    inputs = torch.randn(1, STEPS, BATCH, TASK.input_size)
    targets = torch.randint(TASK.output_size, (1, STEPS, BATCH))
    once, twice = milliseconds(
        lambda: truncated(model, TASK, parameters, inputs, targets, length=STEPS),
        lambda: recomputed(model, TASK, parameters, inputs, targets, length=-(-STEPS // segments)),
        repeats=5,
    )
    return twice / once


if __name__ == "__main__":
    print(heading("python benchmarks/long_sequences.py", f"MIST {HIDDEN}, {STEPS:,} steps, batches of {BATCH}"))
    print("\n| segments | time |\n| --- | --- |")
    for segments in (10, 30, 100, 300):
        print(f"| {segments} | {ratio(segments):.2f} |", flush=True)
