"""Checks of the parameters that all estimators share."""

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from mistrnn.errors import UsageError
from mistrnn.layers import LAYERS, RecurrentLayer, layer_class
from mistrnn.layers.initialization import INITIALIZATIONS
from mistrnn.layers.names import check_options
from mistrnn.models._pooling import Pooling
from mistrnn.training.examples import Augmentation

if TYPE_CHECKING:
    from mistrnn.estimators._estimator import SequenceEstimator

OWN_ARGUMENTS = (
    "input_size", "hidden_size", "num_layers", "batch_first", "bidirectional", "dropout", "device", "dtype",
)  # fmt: skip
"""Arguments of a layer that the estimator gives."""

MOST_FEATURES = 100_000
"""Random features: each case has so many numbers in float64."""


def check_parameters(estimator: "SequenceEstimator") -> None:
    """Raise a `UsageError` that names the first parameter with a value that cannot be."""
    owner = type(estimator).__name__

    def check(name: str, holds: Callable[[Any], bool], wanted: str) -> None:
        value = getattr(estimator, name)
        try:
            fine = holds(value)
        except TypeError:
            fine = False
        if not fine:
            raise UsageError(f"{owner}: expected {name} to be {wanted}, got {value!r}.")

    layer = estimator.layer
    if isinstance(layer, str):
        check("layer", lambda v: v in LAYERS, f"one of {', '.join(LAYERS)}")
    else:
        check("layer", lambda v: issubclass(v, RecurrentLayer), "a layer of mistrnn or its name")
    for name in ("hidden_size", "num_layers", "kernel_size", "n_trials", "n_best"):
        check(name, is_whole, "a whole number from 1 on")
    options = estimator.layer_options or {}
    check("layer_options", lambda v: v is None or isinstance(v, Mapping), "a dict of the layer's arguments, or None")
    for name in OWN_ARGUMENTS:
        if name in options:
            raise UsageError(f"{owner}: expected layer_options without {name}, which the estimator gives itself.")
    check_options(layer_class(layer) if isinstance(layer, str) else layer, options)
    check("initialization", lambda v: v in INITIALIZATIONS, f"one of {', '.join(INITIALIZATIONS)}")
    check("augmentation", _is_augmentation, "True, False, an Augmentation, or a dict of its arguments")
    check("callback", lambda v: v is None or callable(v), "a function, or None")
    check("engine", _is_engine, "None, or an engine such as mistrnn.training.RayEngine()")
    for name in ("max_epochs", "batch_size", "patience"):
        check(name, lambda v: v is None or is_whole(v), "a whole number from 1 on, or None")
    for name in ("standardize", "bidirectional", "early_stopping"):
        check(name, lambda v: isinstance(v, bool | np.bool_), "True or False")
    check("learning_rate", lambda v: 0 < v <= 1e30, "a number above 0 (and up to 1e30)")
    check("weight_decay", lambda v: 0 <= v < math.inf, "a number from 0 on")
    check("dropout", lambda v: 0 <= v < 1, "a number in [0, 1)")
    check("device", lambda v: isinstance(v, str | torch.device), "auto, cpu or cuda")
    check("validation_fraction", lambda v: 0 < v < 1, "a number between 0 and 1")
    if estimator.early_stopping and estimator.n_trials > 1:
        raise UsageError(
            f"{owner}: expected early_stopping=False with n_trials={estimator.n_trials}, because the best trials of a search "
            "learn from all cases to the end."
        )
    if estimator.search_dir is not None and estimator.n_trials == 1:
        raise UsageError(f"{owner}: expected no search_dir with n_trials=1, because only a search is kept in a folder.")
    if estimator.search_dir is not None and not isinstance(estimator.random_state, int | np.integer):
        raise UsageError(
            f"{owner}: expected random_state to be a whole number, because a search in search_dir="
            f"{str(estimator.search_dir)!r} resumes with the same random numbers, got {estimator.random_state!r}."
        )


def _is_engine(value: Any) -> bool:
    return value is None or all(callable(getattr(value, name, None)) for name in ("check", "run"))


def _is_augmentation(value: Any) -> bool:
    if isinstance(value, bool | Augmentation):
        return True
    return isinstance(value, Mapping) and all(
        name in vars(Augmentation()) and isinstance(number, int | float) and 0 <= number < math.inf
        for name, number in value.items()
    )


def check_pooling(owner: str, pooling: Any) -> None:
    """Raise unless it is some of last, mean and max."""
    try:
        if not isinstance(pooling, str):
            raise ValueError(f"expected pooling to be a string such as 'mean+max', got {pooling!r}.")
        Pooling(pooling)
    except ValueError as error:
        raise UsageError(f"{owner}: {error}") from None


def check_random_features(owner: str, value: Any) -> None:
    """Raise unless it is a number of features that can be."""
    if not (is_whole(value) or (value == 0 and type(value) is int)) or value > MOST_FEATURES:
        raise UsageError(
            f"{owner}: expected random_features to be a whole number from 0 to {MOST_FEATURES:,}, got {value!r}."
        )


def is_whole(value: Any) -> bool:
    """Whether a value is a whole number from 1 on."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and int(value) >= 1
