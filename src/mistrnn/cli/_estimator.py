"""From flags to an estimator; wrong ones are refused here, before anything is read or written."""

from dataclasses import dataclass
from typing import Any

import torch

from mistrnn.cli._flags import numbers
from mistrnn.cli._model_flags import ARGUMENTS, DataFlags, NetworkFlags, SearchFlags, StoppingFlags, TrainingFlags
from mistrnn.cli._model_folder import ESTIMATORS, Kind
from mistrnn.cli._study_flags import EngineFlags
from mistrnn.errors import UsageError
from mistrnn.estimators import SequenceEstimator
from mistrnn.layers import LAYERS
from mistrnn.models import SequenceNetwork
from mistrnn.training.embedded import choose_device
from mistrnn.training.study import OWN_OPTIONS

CLASS_WEIGHTS = {"none": None, "balanced": "balanced"}
NOT_FOR = {
    "rows": {
        "pooling": "because each row is labelled, and pooling makes one label of a recording",
        "random_features": "because each row is labelled, and they make one label of a recording",
    },
    "recordings": {"piece_length": "because it is for labels of rows, and these are of recordings"},
    "numbers": {
        "random_features": "because of --regress: they answer with classes",
        "piece_length": "because it is for labels of rows, and these are of recordings",
        "label_smoothing": "because of --regress: numbers are no classes",
        "class_weight": "because of --regress: numbers are no classes",
    },
}
"""The flags that one kind of labels has no use for, and why."""


@dataclass(frozen=True)
class Flags:
    """All flags of `mist fit` (with `stopping`) or of `mist tune` (with `search`)."""

    data: DataFlags
    network: NetworkFlags
    training: TrainingFlags
    stopping: StoppingFlags | None = None
    search: SearchFlags | None = None

    @property
    def of_estimator(self) -> dict[str, Any]:
        """The flags that are about the estimator, by name."""
        groups = (self.network, self.training, self.stopping, self.search)
        return {name: value for group in groups if group is not None for name, value in vars(group).items()}


def kind_of(data: DataFlags) -> Kind:
    """Return which kind of labels the flags describe."""
    if data.labels is None and data.regress:
        raise UsageError(
            "expected --labels, because --regress takes its numbers from a table, one row for each recording."
        )
    if data.labels is None and data.label_column is None:
        raise UsageError(
            "expected labels: --labels TABLE with one for each recording, or --label-column NAME, a column of the recordings."
        )
    if data.labels is not None and data.per_recording:
        raise UsageError(
            "expected no --per-recording with --labels, because a table has one label for each recording anyway."
        )
    if data.labels is not None:
        return "numbers" if data.regress else "recordings"
    return "recordings" if data.per_recording else "rows"


def estimator_from(kind: Kind, flags: Flags) -> SequenceEstimator:
    """Return the estimator that the flags describe, its settings checked."""
    given = flags.of_estimator
    if given["layer"] not in LAYERS:
        raise UsageError(f"expected --layer among {', '.join(LAYERS)}, got {given['layer']!r}.")
    if given["class_weight"] not in CLASS_WEIGHTS:
        raise UsageError(f"expected --class-weight balanced or none, got {given['class_weight']!r}.")
    if not 0 <= given["seed"] < 2**31:
        raise UsageError(f"expected --seed between 0 and 2^31 - 1, got {given['seed']}.")
    if given.get("trials", 2) < 2:
        raise UsageError(f"expected --trials from 2 on, because one trial is `mist fit`, got {given['trials']}.")
    if flags.stopping is not None and not flags.stopping.early_stopping:
        for flag in ("validation_share", "patience"):
            if given[flag] != _default_of(ARGUMENTS[flag]):
                raise UsageError(f"expected --early-stopping with --{flag.replace('_', '-')}, which is about it.")
    known = ESTIMATORS[kind]().get_params()
    arguments = {
        **{ARGUMENTS[flag]: value for flag, value in given.items() if flag in ARGUMENTS},
        "layer_options": _layer_options(given) or None,
        "augmentation": not given["no_augmentation"],
        "class_weight": CLASS_WEIGHTS[given["class_weight"]],
    }
    for flag, why in NOT_FOR[kind].items():
        argument = ARGUMENTS.get(flag, flag)
        if arguments.pop(argument) != _default_of(argument):
            raise UsageError(f"expected no --{flag.replace('_', '-')}, {why}.")
    estimator = ESTIMATORS[kind](**{name: value for name, value in arguments.items() if name in known})
    estimator.set_params(verbose=True, log_dir=None if given["tensorboard"] is None else str(given["tensorboard"]))
    estimator._check_parameters()
    _check_network(estimator)
    if flags.search is not None:
        names = ("engine", "address", "workers", "cpus_per_worker")
        estimator.engine = EngineFlags(**{name: given[name] for name in names}).chosen()
    if estimator.engine is not None:
        estimator.engine.check(given["device"])
    else:
        choose_device(given["device"])
    return estimator


def _default_of(argument: str) -> Any:
    """Return the default of an argument, of the first estimator that has it."""
    return next(getattr(kind, argument) for kind in ESTIMATORS.values() if hasattr(kind, argument))


def _layer_options(given: dict[str, Any]) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for option, owners in OWN_OPTIONS.items():
        if given.get(option) is None:
            continue
        if given["layer"] not in owners:
            raise UsageError(
                f"{given['layer']}: expected no --{option}, because they belong to {' and '.join(owners)}."
            )
        options[option] = numbers(option, given[option])
    return options


def _check_network(estimator: SequenceEstimator) -> None:
    """Make the network without memory, so that sizes that do not go together are known before hours of reading."""
    try:
        with torch.device("meta"):
            SequenceNetwork(
                input_size=1,
                output_size=2,
                layer=estimator.layer,
                hidden_size=estimator.hidden_size,
                num_layers=1,  # all are alike
                bidirectional=estimator.bidirectional,
                layer_options=dict(estimator.layer_options or {}),
                initialization=estimator.initialization,
            )
    except (ValueError, TypeError, RuntimeError) as error:
        raise UsageError(str(error)) from error
