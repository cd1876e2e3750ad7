"""Methods of the accuracy benchmark: ours, ours with other layers, and the rivals."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import numpy as np
import rivals
from data import DataSet
from networks import nearest_width
from recordings import Part
from torch import nn

Applies = Literal["both", "sequences", "frames"]
FEW_STEPS = 32
"""Steps of each case in the search for a width: they do not change the count of an LSTM's or a GRU's weights."""


@dataclass(frozen=True)
class Budget:
    """Weights and training steps of a rival, and the device of our estimators."""

    parameters: int = 20_000
    minibatches: int = 1_500
    device: str = "cpu"


@dataclass(frozen=True)
class Method:
    """A way to make an estimator.

    Args:
        title: its name in tables.
        make: (data set, training part, seed, budget) -> an estimator with fit and predict.
        ours: whether it is an estimator of mistrnn.
        applies: to which sets it applies.
        recurrent: the sets on which it takes part in the ranks of recurrent methods.
    """

    title: str
    make: Callable[[DataSet, Part, int, Budget], Any]
    ours: bool = False
    applies: Applies = "both"
    recurrent: Applies | None = field(default=None, kw_only=True)

    def applies_to(self, one: DataSet) -> bool:
        """Return whether the method takes this kind of set."""
        return _includes(self.applies, one)

    def is_recurrent_on(self, one: DataSet) -> bool:
        """Return whether the method is ranked among the recurrent ones on this set."""
        return self.recurrent is not None and self.applies_to(one) and _includes(self.recurrent, one)


def _includes(applies: Applies, one: DataSet) -> bool:
    return applies == "both" or (applies == "frames") == one.frames


def ours(one: DataSet, train: Part, seed: int, budget: Budget, **arguments: Any) -> Any:
    """Return our estimator with its defaults, but for the arguments."""
    from mistrnn import FrameLabeler, SequenceClassifier

    kind: Any = FrameLabeler if one.frames else SequenceClassifier
    return kind(random_state=seed, **{"device": budget.device, **arguments})


def alone(one: DataSet, train: Part, seed: int, budget: Budget, **arguments: Any) -> Any:
    """Return our estimator without random convolutions."""
    return ours(one, train, seed, budget, **({} if one.frames else {"random_features": 0}), **arguments)


def with_layer(layer: str, one: DataSet, train: Part, seed: int, budget: Budget) -> Any:
    """Return our network with another layer, as wide as makes its count of weights nearest to that of MIST's."""
    few = few_cases(one, train)
    target = alone(one, few, 0, budget, max_epochs=1).fit(few.x, few.y).parameter_count()
    short = [case[:, -FEW_STEPS:] for case in few.x] if not one.frames else few.x

    def count(width: int) -> int:
        model = alone(one, few, 0, budget, max_epochs=1, layer=layer, hidden_size=width)
        return int(model.fit(short, few.y).parameter_count())

    return alone(one, train, seed, budget, layer=layer, hidden_size=nearest_width(count, target, most=256))


def few_cases(one: DataSet, train: Part) -> Part:
    """Return cases that have all classes, and the longest case: our layer's delays depend on it."""
    own = [set(y.tolist()) - {None} if one.frames else {y} for y in train.y]
    longest = max(range(len(train.x)), key=lambda k: train.x[k].shape[1])
    chosen, known = [longest], set(own[longest])
    for k, labels in enumerate(own):
        if labels - known:
            chosen.append(k)
            known |= labels
    y = [train.y[k] for k in chosen]
    return Part([train.x[k] for k in chosen], y if one.frames else np.array(y))


def torch_rival(build: Any, one: DataSet, train: Part, seed: int, budget: Budget) -> Any:
    """Return a rival that is trained by the ordinary loop."""
    minibatches = round(budget.minibatches * one.rival_minibatches)
    return rivals.TorchRival(build, seed, budget.parameters, minibatches)


def convolutional(network: Callable[[bool], Any], one: DataSet, train: Part, seed: int, budget: Budget) -> Any:
    """Return a convolutional rival for whole cases or for frames."""
    return torch_rival(network(one.frames), one, train, seed, budget)


def aeon(name: str, one: DataSet, train: Part, seed: int, budget: Budget) -> Any:
    """Return a classifier of aeon."""
    return rivals.AeonRival(name, seed)


def _plain(title: str, kind: type[nn.LSTM] | type[nn.GRU], readout: str) -> Method:
    build = rivals.recurrent(kind, readout)
    applies: Applies = "frames" if readout == "steps" else "sequences"
    return Method(title, partial(torch_rival, build), applies=applies, recurrent="both")


METHODS: dict[str, Method] = {
    # The default for whole sequences answers together with random convolutions, and is not ranked among recurrent methods.
    "mist": Method("mistrnn, MIST (default)", ours, ours=True, recurrent="frames"),
    "mist-network": Method(
        "mistrnn, MIST, network alone", alone, ours=True, applies="sequences", recurrent="sequences"
    ),
    "mist-16-trials": Method("mistrnn, MIST, 16 trials", partial(ours, n_trials=16), ours=True),
    "mist-network-16-trials": Method(
        "mistrnn, MIST, network alone, 16 trials", partial(alone, n_trials=16), ours=True, applies="sequences"
    ),
    "lstm-same-network": Method(
        "mistrnn, LSTM, network alone", partial(with_layer, "lstm"), ours=True, recurrent="both"
    ),
    "gru-same-network": Method("mistrnn, GRU, network alone", partial(with_layer, "gru"), ours=True, recurrent="both"),
    "lstm-last": _plain("nn.LSTM, last step", nn.LSTM, "last"),
    "lstm-mean": _plain("nn.LSTM, mean over time", nn.LSTM, "mean"),
    "lstm-steps": _plain("nn.LSTM, every step", nn.LSTM, "steps"),
    "gru-last": _plain("nn.GRU, last step", nn.GRU, "last"),
    "gru-mean": _plain("nn.GRU, mean over time", nn.GRU, "mean"),
    "gru-steps": _plain("nn.GRU, every step", nn.GRU, "steps"),
    "cnn": Method("CNN (FCN-like)", partial(convolutional, rivals.cnn)),
    "tcn": Method("TCN", partial(convolutional, rivals.tcn)),
    "minirocket": Method("aeon, MiniRocket", partial(aeon, "MiniRocketClassifier"), applies="sequences"),
    # RIST, aeon's hybrid, needs statsmodels, which is not among the packages of this project.
    "multirocket-hydra": Method(
        "aeon, MultiRocket-Hydra", partial(aeon, "MultiRocketHydraClassifier"), applies="sequences"
    ),
}
