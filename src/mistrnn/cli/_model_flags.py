"""The flags of `mist fit` and `mist tune`, and the estimator arguments that they set."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from mistrnn.cli._flags import (
    NETWORK,
    TRAINING,
    Address,
    CpusPerWorker,
    Delays,
    Device,
    EngineName,
    Periods,
    Seed,
    Tensorboard,
    Workers,
)
from mistrnn.errors import UsageError
from mistrnn.layers import LAYERS
from mistrnn.layers.initialization import INITIALIZATIONS

ARGUMENTS = {
    "layer": "layer",
    "hidden": "hidden_size",
    "num_layers": "num_layers",
    "kernel_size": "kernel_size",
    "pooling": "pooling",
    "random_features": "random_features",
    "bidirectional": "bidirectional",
    "initialization": "initialization",
    "epochs": "max_epochs",
    "batch_size": "batch_size",
    "learning_rate": "learning_rate",
    "weight_decay": "weight_decay",
    "dropout": "dropout",
    "label_smoothing": "label_smoothing",
    "piece_length": "piece_length",
    "seed": "random_state",
    "device": "device",
    "early_stopping": "early_stopping",
    "patience": "patience",
    "validation_share": "validation_fraction",
    "trials": "n_trials",
    "best": "n_best",
}
"""The estimator argument that each flag sets. Four flags are translated: --delays, --periods, --no-augmentation and
--class-weight (`mistrnn.cli._estimator`)."""

RECORDINGS, STOPPING, SEARCH = "Recordings", "Early stopping", "Search"


class EstimatorDefault:
    """The default of an estimator's argument, looked up when it is needed: estimators take a while to load."""

    def __init__(self, flag: str) -> None:
        self._argument = ARGUMENTS[flag]

    def __call__(self) -> Any:
        """Return the default."""
        try:
            from mistrnn.estimators import FrameLabeler, SequenceClassifier
        except ModuleNotFoundError as error:
            raise UsageError(
                f"this command needs {error.name}, which is not installed: pip install 'mistrnn[estimators]'."
            ) from error
        owner = SequenceClassifier if hasattr(SequenceClassifier, self._argument) else FrameLabeler
        return getattr(owner, self._argument)

    def __str__(self) -> str:
        """Return the default for `--help`."""
        try:
            value = self()
        except UsageError:
            return "the estimator's"
        return "automatic" if value is None else str(value)


def _option(flag: str, text: str, panel: str) -> Any:
    """Return an option with the estimator's default."""
    default = EstimatorDefault(flag.replace("-", "_"))
    return typer.Option(f"--{flag}", default_factory=default, help=text, rich_help_panel=panel)


Recordings = Annotated[
    Path,
    typer.Argument(help="A folder with one file for each recording (CSV, Parquet, NPZ), or one long table."),
]
Labels = Annotated[
    Path | None,
    typer.Option(
        "--labels", help="A table with one label for each recording (CSV, Parquet, NPZ).", rich_help_panel=RECORDINGS
    ),
]
LabelColumn = Annotated[
    str | None,
    typer.Option(
        "--label-column",
        help="The column with the labels: of the table of labels (default: label), or else of the recordings.",
        rich_help_panel=RECORDINGS,
    ),
]
IdColumn = Annotated[
    str | None,
    typer.Option(
        "--id-column",
        help="The column that names the recording, in a long table and in the table of labels.",
        rich_help_panel=RECORDINGS,
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Overwrite the output of an earlier run.")]


@dataclass(frozen=True, kw_only=True)
class DataFlags:
    """The recordings, their columns, and the place for the model."""

    recordings: Recordings
    out: Annotated[Path, typer.Option("--out", help="The folder for the model and its report.")]
    labels: Labels = None
    label_column: LabelColumn = None
    per_recording: Annotated[
        bool,
        typer.Option(
            "--per-recording",
            help="The label column of the recordings has one label for each recording, not one for each row.",
            rich_help_panel=RECORDINGS,
        ),
    ] = False
    regress: Annotated[
        bool,
        typer.Option("--regress", help="The labels are numbers to predict, not classes.", rich_help_panel=RECORDINGS),
    ] = False
    columns: Annotated[
        str | None,
        typer.Option(
            "--columns",
            help="The input columns, such as ax,ay,az; a name with a comma in quotes (default: all columns but id, time, "
            "label and group).",
            rich_help_panel=RECORDINGS,
        ),
    ] = None
    id_column: IdColumn = None
    time_column: Annotated[
        str | None,
        typer.Option(
            "--time-column",
            help="The column with the time of each row. Rows are sorted by it; it is not an input.",
            rich_help_panel=RECORDINGS,
        ),
    ] = None
    group_column: Annotated[
        str | None,
        typer.Option(
            "--group-column",
            help="The column that names the person (or machine, or day). Each one is only in training or only in test.",
            rich_help_panel=RECORDINGS,
        ),
    ] = None
    test_share: Annotated[
        float,
        typer.Option(
            "--test-share",
            help="Share of the recordings that is held out for the report; 0 to train on all, without a report.",
            rich_help_panel=RECORDINGS,
        ),
    ] = 0.2
    force: Force = False


@dataclass(frozen=True, kw_only=True)
class NetworkFlags:
    """The network."""

    layer: Annotated[str, _option("layer", f"One of: {', '.join(LAYERS)}.", NETWORK)]
    hidden: Annotated[int, _option("hidden", "Width of the network, and units of each recurrent layer.", NETWORK)]
    num_layers: Annotated[int, _option("num-layers", "Residual blocks, each with one recurrent layer.", NETWORK)]
    kernel_size: Annotated[
        int, _option("kernel-size", "Steps that the convolution of each block reads; 1: no convolution.", NETWORK)
    ]
    delays: Delays = None
    periods: Periods = None
    pooling: Annotated[
        str,
        _option("pooling", "One label for each recording is read from: some of last, mean, max, joined by +.", NETWORK),
    ]
    random_features: Annotated[
        int,
        _option("random-features", "Random convolutions that answer together with the network; 0: none.", NETWORK),
    ]
    bidirectional: Annotated[
        bool,
        typer.Option(
            "--bidirectional", help="Read in both directions; such a model cannot stream.", rich_help_panel=NETWORK
        ),
    ] = False
    initialization: Annotated[str, _option("initialization", f"One of: {', '.join(INITIALIZATIONS)}.", NETWORK)]


@dataclass(frozen=True, kw_only=True)
class TrainingFlags:
    """The training."""

    epochs: Annotated[
        int | None, _option("epochs", "Passes over the training set; automatic: 1,500 minibatches.", TRAINING)
    ]
    batch_size: Annotated[
        int | None, _option("batch-size", "Recordings in a minibatch; automatic: 16, or 32 from 400 on.", TRAINING)
    ]
    learning_rate: Annotated[
        float, _option("learning-rate", "Highest learning rate of AdamW (warm-up, then cosine).", TRAINING)
    ]
    weight_decay: Annotated[float, _option("weight-decay", "Weight decay of AdamW.", TRAINING)]
    dropout: Annotated[float, _option("dropout", "Dropout of the residual branches.", TRAINING)]
    label_smoothing: Annotated[float, _option("label-smoothing", "Label smoothing, for classes.", TRAINING)]
    no_augmentation: Annotated[
        bool,
        typer.Option(
            "--no-augmentation",
            help="Train on the recordings as they are, without random changes.",
            rich_help_panel=TRAINING,
        ),
    ] = False
    class_weight: Annotated[
        str,
        typer.Option(
            "--class-weight",
            help="balanced: the same total weight for each class. none: the same weight for each label.",
            rich_help_panel=TRAINING,
        ),
    ] = "none"
    piece_length: Annotated[
        int | None,
        _option("piece-length", "One label for each row: train on pieces of at most so many rows.", TRAINING),
    ]
    seed: Seed = 0
    device: Device = "auto"
    tensorboard: Tensorboard = None


@dataclass(frozen=True, kw_only=True)
class StoppingFlags:
    """Early stopping of a single fit."""

    early_stopping: Annotated[
        bool,
        typer.Option(
            "--early-stopping",
            help="Hold out a validation set, and keep the epoch with its lowest loss.",
            rich_help_panel=STOPPING,
        ),
    ] = False
    validation_share: Annotated[
        float, _option("validation-share", "Share of the training set that is held out for validation.", STOPPING)
    ]
    patience: Annotated[
        int | None,
        _option("patience", "Stop after so many epochs without a lower validation loss; automatic: never.", STOPPING),
    ]


@dataclass(frozen=True, kw_only=True)
class SearchFlags:
    """The search of `mist tune`."""

    trials: Annotated[
        int, typer.Option("--trials", help="Networks with random settings, trained together.", rich_help_panel=SEARCH)
    ] = 16
    best: Annotated[int, _option("best", "Best trials that are trained in full; the model is their mean.", SEARCH)]
    validation_share: Annotated[
        float, _option("validation-share", "Share of the training set on which trials are compared.", SEARCH)
    ]
    fresh: Annotated[
        bool,
        typer.Option("--fresh", help="Forget an earlier search in the folder and start over.", rich_help_panel=SEARCH),
    ] = False
    engine: EngineName = "embedded"
    address: Address = None
    workers: Workers = None
    cpus_per_worker: CpusPerWorker = 1
