"""The training that the parameters of an estimator ask for: the recipe, the network's arguments, the number of steps."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from mistrnn.layers import LAYERS, layer_class
from mistrnn.models import Standardisation
from mistrnn.training.examples import Augmentation, Examples
from mistrnn.training.fitting import Course, Recipe, steps_per_epoch

if TYPE_CHECKING:
    from mistrnn.estimators._estimator import SequenceEstimator

STEPS = 1500
"""Minibatches of a fit with `max_epochs=None`: a small set is gone through more often."""
FEWEST_EPOCHS = 10
"""Passes over all cases, at least."""
FEWEST_DELAYS, MOST_DELAYS = 3, 14
SMALL_SET = 400
"""Minibatches have 16 cases in a set of fewer cases than this, 32 in a larger one."""


def recipe(estimator: "SequenceEstimator") -> Recipe:
    """Return the settings of the training."""
    given = estimator.augmentation
    if isinstance(given, bool):
        augmentation = Augmentation() if given else Augmentation.off()
    else:
        augmentation = given if isinstance(given, Augmentation) else Augmentation(**given)
    return Recipe(
        learning_rate=float(estimator.learning_rate),
        weight_decay=float(estimator.weight_decay),
        dropout=float(estimator.dropout),
        label_smoothing=float(getattr(estimator, "label_smoothing", 0.0)),
        augmentation=augmentation,
    )


def network_arguments(
    estimator: "SequenceEstimator", examples: Examples, standardisation: Standardisation
) -> dict[str, Any]:
    """Return the arguments of a `SequenceNetwork` for these cases."""
    longest = max(len(case) for case in examples.cases)
    steps = min(longest, piece_length(estimator) or longest)
    kind = layer_class(estimator.layer) if isinstance(estimator.layer, str) else estimator.layer
    options = dict(estimator.layer_options or {})
    if kind is LAYERS["mist"] and "delays" not in options:
        # A delay beyond the longest case would read nothing in training, and something in a longer case later.
        options["delays"] = min(MOST_DELAYS, max(FEWEST_DELAYS, 1 + int(math.log2(max(1, steps - 1)))))
    return {
        "input_size": estimator.n_channels_,
        "output_size": estimator._output_size(),
        "layer": kind,
        "hidden_size": estimator.hidden_size,
        "num_layers": estimator.num_layers,
        "kernel_size": min(estimator.kernel_size, steps),
        "pooling": getattr(estimator, "pooling", None),
        "dropout": estimator.dropout,
        "bidirectional": estimator.bidirectional,
        "layer_options": options,
        "initialization": estimator.initialization,
        "steps": steps,
        "arcsinh": standardisation.arcsinh is not None,
        "dtype": torch.float32,
    }


def search_shapes(arguments: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the arguments by which the networks of a search differ; the first half of the trials has those given."""
    shapes: list[dict[str, Any]] = [
        {},
        {"num_layers": arguments["num_layers"] + 1},
        {"kernel_size": max(1, arguments["kernel_size"] // 3)},
    ]
    delays = arguments["layer_options"].get("delays")
    if isinstance(delays, int) and delays > FEWEST_DELAYS:
        shapes.append({"layer_options": {"delays": max(FEWEST_DELAYS, delays - 2)}})
    return shapes


def course(estimator: "SequenceEstimator", examples: Examples, seed: int) -> Course:
    """Return how many steps are taken, of how many cases each."""
    size = int(estimator.batch_size or (16 if len(examples.cases) < SMALL_SET else 32))
    piece = piece_length(estimator)
    per_epoch = steps_per_epoch([len(case) for case in examples.cases], size, piece)
    epochs = int(estimator.max_epochs or max(FEWEST_EPOCHS, math.ceil(STEPS / per_epoch)))
    return Course(
        steps=epochs * per_epoch,
        batch_size=size,
        validate_every=per_epoch,
        loss=estimator._answer,
        piece_length=piece,
        seed=seed,
        keep="best" if estimator.early_stopping else "last",
    )


def piece_length(estimator: "SequenceEstimator") -> int | None:
    """Return the length of the pieces that cases with a label for each step are cut into."""
    return getattr(estimator, "piece_length", None)
