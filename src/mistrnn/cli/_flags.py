"""The flags that several commands share."""

import csv
from pathlib import Path
from typing import Annotated

import typer

from mistrnn.errors import UsageError
from mistrnn.layers import LAYERS
from mistrnn.tasks import TASKS
from mistrnn.training.study import INITIALIZATIONS, OPTIMIZERS, PRECISIONS, SCHEDULES

TASK, NETWORK, TRAINING, ENGINE = "Task", "Network", "Training", "Where to compute"
"""Panels of `--help`."""

TaskName = Annotated[str, typer.Argument(help=f"One of: {', '.join(TASKS)}.")]
LayerName = Annotated[str, typer.Option("--layer", help=f"One of: {', '.join(LAYERS)}.", rich_help_panel=NETWORK)]
Hidden = Annotated[int, typer.Option("--hidden", help="Hidden units.", rich_help_panel=NETWORK)]
# Text, because a Path would make s3:/bucket of s3://bucket.
Out = Annotated[
    str,
    typer.Option("--out", help="The study's folder, or an address such as s3://…; the same command again resumes."),
]
Steps = Annotated[
    int | None, typer.Option("--steps", help="Optimisation steps (default: the task's).", rich_help_panel=TRAINING)
]
Seed = Annotated[int, typer.Option("--seed", help="Seed of all random numbers.", rich_help_panel=TRAINING)]
Device = Annotated[str, typer.Option("--device", help="auto, cpu or cuda.", rich_help_panel=ENGINE)]
Data = Annotated[Path | None, typer.Option("--data", help="Folder with the task's files.", rich_help_panel=TASK)]
Delay = Annotated[
    int | None, typer.Option("--delay", help="copy: how long to remember, a multiple of 10.", rich_help_panel=TASK)
]
Length = Annotated[
    int | None, typer.Option("--length", help="addition: the length of the sequences.", rich_help_panel=TASK)
]
LastPixels = Annotated[
    int | None, typer.Option("--last-pixels", help="pmnist: read only the last so many pixels.", rich_help_panel=TASK)
]
User = Annotated[
    str | None,
    typer.Option("--user", help="surgical: the user whose recordings are the test set.", rich_help_panel=TASK),
]
Delays = Annotated[
    str | None,
    typer.Option("--delays", help="mist, narx: a number or a list such as 1,2,4.", rich_help_panel=NETWORK),
]
Periods = Annotated[
    str | None,
    typer.Option("--periods", help="clockwork: a number or a list such as 1,2,4.", rich_help_panel=NETWORK),
]
NumLayers = Annotated[int, typer.Option("--num-layers", help="Layers on top of each other.", rich_help_panel=NETWORK)]
LayerNorm = Annotated[bool, typer.Option("--layer-norm", help="Normalise pre-activations.", rich_help_panel=NETWORK)]
Zoneout = Annotated[
    float,
    typer.Option("--zoneout", help="Probability that a unit keeps its value at a step.", rich_help_panel=NETWORK),
]
RecurrentDropout = Annotated[
    float,
    typer.Option(
        "--recurrent-dropout",
        help="Dropout of what recurrent matrices read, one mask for all steps.",
        rich_help_panel=NETWORK,
    ),
]
Dropout = Annotated[float, typer.Option("--dropout", help="Dropout between layers.", rich_help_panel=NETWORK)]
ReadoutDropout = Annotated[
    float, typer.Option("--readout-dropout", help="Dropout of the readout's input.", rich_help_panel=NETWORK)
]
BatchSize = Annotated[int, typer.Option("--batch-size", help="Sequences in a minibatch.", rich_help_panel=TRAINING)]
OptimizerName = Annotated[
    str, typer.Option("--optimizer", help=f"One of: {', '.join(OPTIMIZERS)}.", rich_help_panel=TRAINING)
]
Schedule = Annotated[str, typer.Option("--schedule", help=f"One of: {', '.join(SCHEDULES)}.", rich_help_panel=TRAINING)]
Initialization = Annotated[
    str, typer.Option("--initialization", help=f"One of: {', '.join(INITIALIZATIONS)}.", rich_help_panel=NETWORK)
]
WeightDecay = Annotated[float, typer.Option("--weight-decay", help="Weight decay.", rich_help_panel=TRAINING)]
Precision = Annotated[
    str, typer.Option("--precision", help=f"One of: {', '.join(PRECISIONS)}.", rich_help_panel=TRAINING)
]
Truncate = Annotated[
    int | None,
    typer.Option("--truncate", help="Cut backpropagation through time after K steps.", rich_help_panel=TRAINING),
]
CheckpointSegments = Annotated[
    int | None,
    typer.Option(
        "--checkpoint-segments",
        help="Long sequences, exact gradients: keep the states between N segments, run each twice.",
        rich_help_panel=TRAINING,
    ),
]
ValidateEvery = Annotated[
    int | None,
    typer.Option("--validate-every", help="Steps between validations (default: the task's).", rich_help_panel=TRAINING),
]
GradientsEvery = Annotated[
    int | None, typer.Option("--gradients-every", help="Measure gradient norms at the start and after every N steps.")
]
GroupSize = Annotated[
    int | None,
    typer.Option("--group-size", help="Trials at once (default: as many as memory holds).", rich_help_panel=ENGINE),
]
Only = Annotated[
    str | None,
    typer.Option("--only", help="Now only these trials, such as 0,3,7; the same command without it runs the others."),
]
EngineName = Annotated[
    str,
    typer.Option(
        "--engine",
        help="embedded: compute in this process. ray: on the workers of a Ray cluster.",
        rich_help_panel=ENGINE,
    ),
]
Address = Annotated[
    str | None,
    typer.Option(
        "--address",
        help="ray: the cluster, such as auto or host:port (default: one on this machine alone).",
        rich_help_panel=ENGINE,
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(
        "--workers", help="ray: groups at once (default: one for each GPU, or else CPU).", rich_help_panel=ENGINE
    ),
]
CpusPerWorker = Annotated[
    int, typer.Option("--cpus-per-worker", help="ray: CPUs and threads of a worker.", rich_help_panel=ENGINE)
]
NodeData = Annotated[
    bool,
    typer.Option(
        "--node-data",
        help="ray: every node finds --data at the same path; nothing is sent.",
        rich_help_panel=ENGINE,
    ),
]
EarlyStop = Annotated[
    str | None,
    typer.Option(
        "--early-stop",
        help="asha: give up hopeless trials early (default: all run to the end).",
        rich_help_panel=TRAINING,
    ),
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
