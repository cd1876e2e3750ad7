"""The flags that several commands share."""

import csv
from pathlib import Path
from typing import Annotated

import typer

from mistrnn.errors import UsageError
from mistrnn.layers import LAYERS
from mistrnn.tasks import TASKS
from mistrnn.training.study import INITIALIZATIONS, OPTIMIZERS, PRECISIONS, SCHEDULES

TaskName = Annotated[str, typer.Argument(help=f"One of: {', '.join(TASKS)}.")]
LayerName = Annotated[str, typer.Option("--layer", help=f"One of: {', '.join(LAYERS)}.")]
Hidden = Annotated[int, typer.Option("--hidden", help="Hidden units.")]
# Text, because a Path would make s3:/bucket of s3://bucket.
Out = Annotated[
    str,
    typer.Option("--out", help="The study's folder, or an address such as s3://…; the same command again resumes."),
]
Steps = Annotated[int | None, typer.Option("--steps", help="Optimisation steps (default: the task's).")]
Seed = Annotated[int, typer.Option("--seed", help="Everything random follows from it.")]
Device = Annotated[str, typer.Option("--device", help="auto, cpu or cuda.")]
Data = Annotated[Path | None, typer.Option("--data", help="Folder with the task's files.")]
Delay = Annotated[int | None, typer.Option("--delay", help="copy: how long to remember, a multiple of 10.")]
Length = Annotated[int | None, typer.Option("--length", help="addition: the length of the sequences.")]
LastPixels = Annotated[int | None, typer.Option("--last-pixels", help="pmnist: read only the last so many pixels.")]
User = Annotated[str | None, typer.Option("--user", help="surgical: whose recordings are tested on.")]
Delays = Annotated[str | None, typer.Option("--delays", help="mist, narx: a number or a list such as 1,2,4.")]
Periods = Annotated[str | None, typer.Option("--periods", help="clockwork: a number or a list such as 1,2,4.")]
NumLayers = Annotated[int, typer.Option("--num-layers", help="Layers on top of each other.")]
LayerNorm = Annotated[bool, typer.Option("--layer-norm", help="Normalise pre-activations.")]
BatchSize = Annotated[int, typer.Option("--batch-size", help="Sequences in a minibatch.")]
OptimizerName = Annotated[str, typer.Option("--optimizer", help=f"One of: {', '.join(OPTIMIZERS)}.")]
Schedule = Annotated[str, typer.Option("--schedule", help=f"One of: {', '.join(SCHEDULES)}.")]
Initialization = Annotated[str, typer.Option("--initialization", help=f"One of: {', '.join(INITIALIZATIONS)}.")]
WeightDecay = Annotated[float, typer.Option("--weight-decay", help="Weight decay.")]
Precision = Annotated[str, typer.Option("--precision", help=f"One of: {', '.join(PRECISIONS)}.")]
Truncate = Annotated[int | None, typer.Option("--truncate", help="Cut backpropagation through time after K steps.")]
CheckpointSegments = Annotated[
    int | None,
    typer.Option(
        "--checkpoint-segments",
        help="Long sequences, exact gradients: keep the states between N segments, run each twice.",
    ),
]
ValidateEvery = Annotated[
    int | None, typer.Option("--validate-every", help="Steps between validations (default: the task's).")
]
GradientsEvery = Annotated[
    int | None, typer.Option("--gradients-every", help="Measure gradient norms at the start and after every N steps.")
]
GroupSize = Annotated[
    int | None, typer.Option("--group-size", help="Trials at once (default: as many as memory holds).")
]
Only = Annotated[
    str | None,
    typer.Option("--only", help="Now only these trials, such as 0,3,7; the same command without it runs the others."),
]
EngineName = Annotated[
    str, typer.Option("--engine", help="Who computes: embedded (this process), or ray (workers of a Ray cluster).")
]
Address = Annotated[
    str | None,
    typer.Option("--address", help="ray: the cluster, such as auto or host:port (default: one on this machine alone)."),
]
Workers = Annotated[
    int | None, typer.Option("--workers", help="ray: groups at once (default: one for each GPU, or else CPU).")
]
CpusPerWorker = Annotated[int, typer.Option("--cpus-per-worker", help="ray: CPUs and threads of a worker.")]
NodeData = Annotated[
    bool, typer.Option("--node-data", help="ray: every node finds --data at the same path; nothing is sent.")
]
EarlyStop = Annotated[
    str | None, typer.Option("--early-stop", help="asha: give up hopeless trials early (default: all run to the end).")
]
Tensorboard = Annotated[Path | None, typer.Option("--tensorboard", help="Log the curves here, for TensorBoard.")]
Fresh = Annotated[bool, typer.Option("--fresh", help="Forget what is in the folder and start over.")]


def list_of_numbers(name: str, text: str) -> list[int]:
    """Return the numbers that a flag holds, each once."""
    found = numbers(name, text)
    return list(dict.fromkeys(found)) if isinstance(found, list) else [found]


def numbers(name: str, text: str) -> int | list[int]:
    """Return the number or the list of numbers that a flag holds."""
    try:
        values = [int(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(f"expected --{name} to be a number or a list such as 1,2,4, got {text!r}.") from None
    return values if "," in text else values[0]


def names(option: str, text: str) -> tuple[str, ...]:
    """Return the names that a flag holds, a line of CSV: a name with a comma stands in quotes."""
    try:
        found = tuple(name.strip() for name in next(csv.reader([text], skipinitialspace=True, strict=True)))
    except csv.Error:
        found = ()
    if not found or "" in found or len(set(found)) < len(found):
        raise UsageError(
            f"expected --{option} to be names such as ax,ay,az, each once, those with a comma in quotes, got {text!r}."
        )
    return found
