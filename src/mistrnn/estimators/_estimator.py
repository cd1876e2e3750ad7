"""What every estimator shares: parameters, checks, training, saving, streaming."""

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from os import PathLike
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.model_selection import GroupShuffleSplit, ShuffleSplit, StratifiedShuffleSplit
from sklearn.utils import check_array, check_consistent_length, check_random_state
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
from torch import Tensor

from mistrnn.errors import UsageError
from mistrnn.estimators import _fitting, _saved
from mistrnn.estimators._fitting import Epoch, Examples, Plan
from mistrnn.estimators._progress import followed
from mistrnn.estimators._sequences import SHAPES, Case, as_cases, is_table, statistics
from mistrnn.estimators._stream import EstimatorStream
from mistrnn.estimators.network import Network
from mistrnn.layers import LAYERS, RecurrentLayer, layer_class
from mistrnn.training.sweep import choose_device

FEWEST_STEPS = 1500
"""Minibatches that `max_epochs=None` leads to, at least: a small set is gone through more often."""
FEWEST_EPOCHS = 20
MOST_DELAYS = 12


@dataclass(kw_only=True, eq=False, repr=False)
class SequenceEstimator(BaseEstimator):  # type: ignore[misc]
    """The base of all estimators.

    Args:
        layer: mist, narx, clockwork, rnn, lstm or gru, or a class of mistrnn.
        hidden_size: units of each layer.
        num_layers: layers on top of each other.
        layer_options: other arguments of the layer by name, such as delays or bidirectional. A MIST layer without delays
            gets 1, 2, 4, ... up to a quarter of the longest case.
        dropout: share of the readout's inputs that are dropped in training.
        standardize: shift and scale each channel to mean 0 and deviation 1, as learnt from the training cases. A channel
            that is constant there is only shifted.
        max_epochs: times that all cases are gone through; None for what makes 1,500 minibatches, and at least 20.
        batch_size: cases in a minibatch.
        learning_rate: of AdamW at the start; it falls to 0 along a cosine, and to its half where gradients overflow.
        weight_decay: of AdamW.
        early_stopping: keep a share of the cases for validation, stop when they are no longer predicted better, and go back
            to where they were predicted best. "auto" where that share is large enough to tell.
        validation_fraction: that share.
        patience: epochs without a lower validation loss after which to stop; None for a fifth of all, at least 10 and at least
            300 minibatches.
        device: cpu, cuda or auto (a GPU if there is one).
        random_state: all that is random follows from it.
        verbose: show a progress bar (a line now and then where there is no terminal).
        log_dir: a folder for TensorBoard.
    """

    layer: str | type[RecurrentLayer] = "mist"
    hidden_size: int = 64
    num_layers: int = 1
    layer_options: Mapping[str, Any] | None = None
    dropout: float = 0.0
    standardize: bool = True
    max_epochs: int | None = None
    batch_size: int = 32
    learning_rate: float = 3e-3
    weight_decay: float = 1e-2
    early_stopping: bool | str = "auto"
    validation_fraction: float = 0.15
    patience: int | None = None
    device: str = "auto"
    random_state: int | np.random.RandomState | None = None
    verbose: bool | int = False
    log_dir: str | PathLike[str] | None = None

    _every_step: ClassVar[bool] = False
    _fewest_validation_cases: ClassVar[int] = 20
    """With fewer, "auto" does not stop early."""

    @abstractmethod
    def _learn(self, cases: Sequence[Case], y: Any, sample_weight: NDArray[np.float64]) -> Examples:
        """Check y, learn what its values are, and return the examples."""

    @abstractmethod
    def _output_size(self) -> int:
        """Return how many scores the network has."""

    @abstractmethod
    def _loss(self, scores: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of each target."""

    def _strata(self, examples: Examples) -> NDArray[Any] | None:
        """Return the classes that a validation share should hold in proportion; None if there are none."""
        return None

    def fit(self, X: Any, y: Any, sample_weight: Any = None, *, groups: Any = None) -> Self:
        """Learn from cases.

        Args:
            X: [cases, channels, time], [cases, time] for one channel, or a list of arrays [channels, time].
            y: what is to be predicted.
            sample_weight: [cases] how much each case counts.
            groups: [cases] whose they are: a group is never both trained and validated on.
        """
        return self._fit(X, y, sample_weight, groups, report=None)

    def _fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Any,
        groups: Any,
        report: Callable[[Epoch], bool | None] | None,
    ) -> Self:
        self._check_parameters()
        cases = self._cases(X, fitting=True)
        if y is None:
            raise UsageError(f"{self._name}: requires y to be passed, but the target y is None.")
        check_consistent_length(cases, y)
        weight = _check_sample_weight(
            sample_weight, np.empty((len(cases), 1)), dtype=np.float64, ensure_non_negative=True
        )
        if groups is not None:
            check_consistent_length(cases, groups)
        counted = np.flatnonzero(weight)  # a case that counts nothing is as good as absent
        kept, weight = [cases[k] for k in counted], weight[counted] / weight[counted].mean()
        examples = self._learn(kept, _chosen(y, counted), weight)
        random = check_random_state(self.random_state)
        train_on, validate_on = self._split(examples, None if groups is None else np.asarray(groups)[counted], random)
        place = choose_device(self.device)
        with torch.random.fork_rng(devices=[place] if place.type == "cuda" else []):
            torch.manual_seed(random.randint(2**31))
            self.network_ = self._new_network(train_on.cases).to(place)
            steps_per_epoch = math.ceil(len(train_on.cases) / self.batch_size)
            epochs = self.max_epochs or max(FEWEST_EPOCHS, math.ceil(FEWEST_STEPS / steps_per_epoch))
            plan = Plan(
                epochs=epochs,
                batch_size=self.batch_size,
                learning_rate=self.learning_rate,
                weight_decay=self.weight_decay,
                patience=self.patience or max(10, epochs // 5, math.ceil(FEWEST_STEPS / 5 / steps_per_epoch)),
                piece=getattr(self, "piece_length", None),
            )
            with followed(plan.epochs, bool(self.verbose), self.log_dir, report) as follow:
                found = _fitting.train(self.network_, train_on, validate_on, self._loss, plan, random, follow)
        self.channel_names_: list[str] | None = None
        self.history_ = [asdict(epoch) for epoch in found]
        self.n_epochs_, self.best_epoch_ = len(found), found[-1].best_epoch
        return self

    def _new_network(self, cases: Sequence[Case]) -> Network:
        kind = layer_class(self.layer) if isinstance(self.layer, str) else self.layer
        options = dict(self.layer_options or {})
        if kind is LAYERS["mist"] and "delays" not in options:
            longest = max(len(case) for case in cases)
            options["delays"] = min(MOST_DELAYS, max(3, 1 + int(math.log2(max(1, longest // 4)))))
        layer = kind(self.n_channels_, self.hidden_size, self.num_layers, **options)
        network = Network(layer, self._output_size(), every_step=self._every_step, dropout=self.dropout)
        if self.standardize:
            network.mean, network.scale = statistics(cases)
        return network

    def _split(
        self, examples: Examples, groups: NDArray[Any] | None, random: np.random.RandomState
    ) -> tuple[Examples, Examples | None]:
        count, strata = len(examples.cases), self._strata(examples)
        wanted = round(count * self.validation_fraction)
        if self.early_stopping is False or (self.early_stopping == "auto" and wanted < self._fewest_validation_cases):
            return examples, None
        if wanted < 1 or count - wanted < 1:
            raise UsageError(
                f"{self._name}: expected cases to train and to validate on, because early_stopping=True and "
                f"validation_fraction={self.validation_fraction}, got {count} cases."
            )
        splitter: Any
        if groups is not None:
            if len(set(groups.tolist())) < 2:
                raise UsageError(
                    f"{self._name}: expected at least 2 groups for early stopping, got one; set it to False."
                )
            splitter = GroupShuffleSplit(1, test_size=self.validation_fraction, random_state=random)
        elif strata is not None and np.unique(strata, return_counts=True)[1].min() >= 2 and wanted >= len(set(strata)):
            splitter = StratifiedShuffleSplit(1, test_size=wanted, random_state=random)
        else:
            splitter = ShuffleSplit(1, test_size=wanted, random_state=random)
        learnt, held = next(splitter.split(np.zeros((count, 1)), strata, groups))
        return examples.subset(learnt), examples.subset(held)

    def _cases(self, X: Any, *, fitting: bool = False) -> list[Case]:
        if is_table(X):
            if fitting or hasattr(self, "n_features_in_"):
                X = validate_data(self, X, reset=fitting, dtype=[np.float64, np.float32])
            else:
                X = check_array(X, dtype=[np.float64, np.float32])
            cases = [row[:, None] for row in X]
        else:
            if fitting:
                for name in ("n_features_in_", "feature_names_in_"):
                    self.__dict__.pop(name, None)
            cases = as_cases(self._name, X)
        if fitting:
            self.n_channels_ = cases[0].shape[1]
        elif cases[0].shape[1] != self.n_channels_:
            raise UsageError(
                f"{self._name}: expected {self.n_channels_} channels, because it was fitted on as many, got "
                f"{cases[0].shape[1]}. X is {SHAPES}."
            )
        return cases

    def _scores(self, X: Any) -> list[Tensor]:
        check_is_fitted(self, "network_")
        return _fitting.scores_of(self.network_, self._cases(X))

    @property
    def _name(self) -> str:
        return type(self).__name__

    def _check_parameters(self) -> None:
        """Check what the layer and torch would not, or would with words of their own."""

        def check(name: str, holds: Callable[[Any], bool], wanted: str) -> None:
            value = getattr(self, name)
            try:
                fine = holds(value)
            except TypeError:
                fine = False
            if not fine:
                raise UsageError(f"{self._name}: expected {name} to be {wanted}, got {value!r}.")

        def whole(value: Any) -> bool:
            return isinstance(value, int | np.integer) and not isinstance(value, bool) and int(value) >= 1

        if isinstance(self.layer, str):
            check("layer", lambda v: v in LAYERS, f"one of {', '.join(LAYERS)}")
        else:
            check("layer", lambda v: issubclass(v, RecurrentLayer), "a layer of mistrnn or its name")
        for name in ("hidden_size", "num_layers", "batch_size"):
            check(name, whole, "a whole number from 1 on")
        check(
            "layer_options", lambda v: v is None or isinstance(v, Mapping), "a dict of the layer's arguments, or None"
        )
        for name in ("max_epochs", "patience"):
            check(name, lambda v: v is None or whole(v), "a whole number from 1 on, or None")
        check("learning_rate", lambda v: 0 < v < math.inf, "a number above 0")
        check("weight_decay", lambda v: 0 <= v < math.inf, "a number from 0 on")
        check("dropout", lambda v: 0 <= v < 1, "a number in [0, 1)")
        check("early_stopping", lambda v: v is True or v is False or v == "auto", 'True, False or "auto"')
        check("validation_fraction", lambda v: 0 < v < 1, "a number between 0 and 1")

    def parameter_count(self) -> int:
        """Return the number of weights of the fitted network."""
        check_is_fitted(self, "network_")
        return int(self.network_.parameter_count())

    def stream(self) -> EstimatorStream:
        """Return the fitted model as a stream: one call for each new row of measurements, in constant time and memory."""
        check_is_fitted(self, "network_")
        return EstimatorStream(self.network_, self._spoken)

    @abstractmethod
    def _spoken(self, scores: Tensor) -> Any:
        """Return what a stream says of the scores [K] of one step."""

    def save_pretrained(self, folder: str | PathLike[str], *, force: bool = False) -> None:
        """Write the fitted estimator into a folder: config.json and model.safetensors.

        A folder that holds anything is left alone unless `force` is true and what it holds is a saved model.
        """
        check_is_fitted(self, "network_")
        _saved.save(self, folder, force=force)

    @classmethod
    def from_pretrained(
        cls,
        folder: str | PathLike[str],
        *,
        revision: str | None = None,
        token: str | None = None,
        cache_dir: str | None = None,
    ) -> Self:
        """Return the estimator that a folder holds, or a model of the Hugging Face hub by its name `owner/model`."""
        found = _saved.load(folder, revision=revision, token=token, cache_dir=cache_dir)
        if not isinstance(found, cls):
            raise UsageError(f"{folder}: expected a {cls.__name__}, got a {type(found).__name__}.")
        return found

    def push_to_hub(self, name: str, *, private: bool = False, token: str | None = None) -> str:
        """Save the fitted estimator on the Hugging Face hub as `owner/model`, and return its address."""
        check_is_fitted(self, "network_")
        return _saved.push(self, name, private=private, token=token)

    def _learnt(self) -> dict[str, Any]:
        """Return what else was learnt, for JSON."""
        return {}

    def _set_learnt(self, learnt: dict[str, Any]) -> None:
        """Take what `_learnt` returned."""


def _chosen(values: Any, index: NDArray[np.int64]) -> Any:
    """Return some of the elements of an array, a list or a pandas series."""
    if hasattr(values, "iloc"):
        return values.iloc[index]
    if isinstance(values, list | tuple):
        return [values[k] for k in index]
    return np.asarray(values)[index]
