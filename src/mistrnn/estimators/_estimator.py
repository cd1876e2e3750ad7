"""What every estimator shares: parameters, checks, training, saving, streaming."""

import contextlib
import math
import sys
import threading
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from os import PathLike
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import check_array, check_consistent_length, check_random_state
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
from torch import Tensor

from mistrnn.errors import UsageError
from mistrnn.estimators import _fitting, _saved
from mistrnn.estimators._fitting import Epoch, Examples, Plan
from mistrnn.estimators._progress import followed
from mistrnn.estimators._sequences import SHAPES, Case, as_array, as_cases, check_distance, is_table, statistics
from mistrnn.estimators._stream import EstimatorStream
from mistrnn.estimators.network import Network
from mistrnn.layers import LAYERS, RecurrentLayer, layer_class
from mistrnn.layers._names import check_options
from mistrnn.training.embedded import choose_device

FEWEST_STEPS = 1500
"""Minibatches that `max_epochs=None` leads to, at least: a small set is gone through more often."""
FEWEST_EPOCHS = 20
MOST_DELAYS = 12

Spoken = Callable[[Tensor], Any]
"""From the scores [K] of one step to what a stream says."""


@dataclass(kw_only=True, eq=False, repr=False)
class SequenceEstimator(BaseEstimator, ABC):  # type: ignore[misc]
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
            to where they were predicted best. The only case (or group) with a class is trained on, if that can be. "auto" where
            that share is large enough to tell, and every class is left to learn.
        validation_fraction: that share.
        patience: epochs without a lower validation loss after which to stop; None for a third of all, at least 10 and at least
            500 minibatches. They count once the training loss has fallen by a tenth.
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
    device: str | torch.device = "auto"
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

    def _strata(self, examples: Examples) -> NDArray[Any]:
        """Return the class of each case that a validation share should hold in proportion; one for all if there are none."""
        return np.zeros(len(examples.cases), dtype=np.int64)

    def _classes_in(self, examples: Examples) -> NDArray[np.bool_]:
        """Return [cases, classes] which classes each case teaches; one class for all if there are none."""
        return np.ones((len(examples.cases), 1), dtype=bool)

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
        """Fit, or, if anything breaks off, stay as before."""
        before = dict(self.__dict__)
        try:
            self._fit_anew(X, y, sample_weight, groups, report)
        except BaseException:
            self.__dict__.clear()
            self.__dict__.update(before)
            raise
        return self

    def _fit_anew(
        self,
        X: Any,
        y: Any,
        sample_weight: Any,
        groups: Any,
        report: Callable[[Epoch], bool | None] | None,
    ) -> None:
        self._check_parameters()
        cases = self._cases(X, fitting=True)
        if y is None:
            raise UsageError(f"{self._name}: requires y to be passed, but the target y is None.")
        check_consistent_length(cases, y)
        weight = _check_sample_weight(
            sample_weight, np.empty((len(cases), 1)), dtype=np.float64, ensure_non_negative=True
        )
        if not weight.any():
            raise UsageError(f"{self._name}: expected a sample weight above 0, got only zeros.")
        if groups is not None:
            named = np.asarray(groups, dtype=object)
            if named.ndim != 1:
                raise UsageError(f"{self._name}: expected groups to be a list of names or numbers, got {groups!r:.80}.")
            check_consistent_length(cases, named)
            missing = [k for k, group in enumerate(named) if is_missing(group)]
            if missing:
                raise UsageError(f"{self._name}: expected a group for every case, got none for case {missing[0]}.")
        counted = np.flatnonzero(weight)  # a case that counts nothing is as good as absent
        weight = weight[counted] / weight.max()  # whose sum cannot overflow
        kept, weight = [cases[k] for k in counted], weight / weight.mean()
        examples = self._learn(kept, _chosen(y, counted), weight)
        taught = np.array([k for k, own in enumerate(examples.weights) if own.any()])  # those with anything to learn
        examples, owners = examples.subset(taught), None if groups is None else np.asarray(groups)[counted][taught]
        random = check_random_state(self.random_state)
        train_on, validate_on = self._split(examples, owners, random)
        place = choose_device(str(self.device))
        with _own_random_numbers(random.randint(2**31), place), torch.inference_mode(False), torch.enable_grad():
            self.network_ = self._new_network(train_on).to(place)
            plan = self._plan(train_on.cases)
            with followed(plan.epochs, bool(self.verbose), self.log_dir, report) as follow:
                found = _fitting.train(self.network_, train_on, validate_on, self._loss, plan, random, follow)
        self.channel_names_: list[str] | None = None
        self.history_ = [asdict(epoch) for epoch in found]
        self.n_epochs_, self.best_epoch_ = len(found), found[-1].best_epoch

    def _new_network(self, train_on: Examples) -> Network:
        kind = layer_class(self.layer) if isinstance(self.layer, str) else self.layer
        options = dict(self.layer_options or {})
        check_options(kind, options)
        if kind is LAYERS["mist"] and "delays" not in options:
            # What is never farther back in training is not learnt, and would come as a surprise in a longer case.
            longest = min(max(len(case) for case in train_on.cases), self._piece or sys.maxsize)
            options["delays"] = min(MOST_DELAYS, max(3, 1 + int(math.log2(max(1, longest // 4)))))
        layer = kind(self.n_channels_, self.hidden_size, self.num_layers, **options).float()  # whatever torch's default
        network = Network(layer, self._output_size(), every_step=self._every_step, dropout=self.dropout)
        if self.standardize:
            network.mean, network.scale = statistics(self._name, train_on.cases, train_on.case_weights)
        return network

    @property
    def _piece(self) -> int | None:
        """The length of the pieces that cases are learnt in."""
        return getattr(self, "piece_length", None)

    def _plan(self, cases: Sequence[Case]) -> Plan:
        pieces = sum(math.ceil(len(case) / (self._piece or len(case))) for case in cases)
        steps = math.ceil(pieces / self.batch_size)  # in an epoch
        epochs = int(self.max_epochs or max(FEWEST_EPOCHS, math.ceil(FEWEST_STEPS / steps)))
        return Plan(
            epochs=epochs,
            batch_size=int(self.batch_size),
            learning_rate=float(self.learning_rate),
            weight_decay=float(self.weight_decay),
            patience=int(self.patience or max(10, epochs // 3, math.ceil(FEWEST_STEPS / 3 / steps))),
            piece=self._piece,
        )

    def _split(
        self, examples: Examples, groups: NDArray[Any] | None, random: np.random.RandomState
    ) -> tuple[Examples, Examples | None]:
        """Return what to train on and, if training is to stop early, what to validate on."""
        count, certain = len(examples.cases), self.early_stopping is True
        wanted = round(count * self.validation_fraction)
        fewest = 1 if certain else self._fewest_validation_cases
        if self.early_stopping is False or (wanted < fewest and not certain):
            return examples, None
        classes = self._classes_in(examples)
        if groups is None:
            held = _drawn_cases(wanted, self._strata(examples), classes, random)
        else:
            held = _drawn_groups(wanted, groups, classes, random)
        learnt = np.setdiff1d(np.arange(count), held)
        lost = np.flatnonzero(classes.any(0) & ~classes[learnt].any(0))
        if len(held) < fewest or (len(lost) and not certain):
            if not certain:
                return examples, None
            of = f"{count} cases" if groups is None else f"{count} cases in {len(set(groups.tolist()))} groups"
            raise UsageError(
                f"{self._name}: expected something to train and something to validate on, because early_stopping=True and "
                f"validation_fraction={self.validation_fraction}, got {of}."
            )
        if len(lost):
            names, of = getattr(self, "classes_", lost)[lost].tolist(), "cases" if groups is None else "groups"
            warnings.warn(
                f"{self._name}: {names} is only in the {of} that are validated on, and will not be learnt.",
                stacklevel=5,
            )
        return examples.subset(learnt), examples.subset(held)

    def _cases(self, X: Any, *, fitting: bool = False) -> list[Case]:
        X = as_array(X)
        nothing = isinstance(X, list | tuple) and not X  # scikit-learn would advise to reshape it
        if is_table(X) and not nothing:
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
        else:
            check_distance(self._name, cases, self.network_.mean, self.network_.scale)
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

        if isinstance(self.layer, str):
            check("layer", lambda v: v in LAYERS, f"one of {', '.join(LAYERS)}")
        else:
            check("layer", lambda v: issubclass(v, RecurrentLayer), "a layer of mistrnn or its name")
        for name in ("hidden_size", "num_layers", "batch_size"):
            check(name, is_whole, "a whole number from 1 on")
        check(
            "layer_options", lambda v: v is None or isinstance(v, Mapping), "a dict of the layer's arguments, or None"
        )
        for name in ("input_size", "hidden_size", "num_layers", "batch_first", "device", "dtype"):
            if name in (self.layer_options or {}):
                raise UsageError(
                    f"{self._name}: expected layer_options without {name}, which the estimator gives itself."
                )
        for name in ("max_epochs", "patience"):
            check(name, lambda v: v is None or is_whole(v), "a whole number from 1 on, or None")
        check("standardize", lambda v: v in (True, False), "True or False")
        check("learning_rate", lambda v: 0 < v <= 1e30, "a number above 0 (and up to 1e30)")
        check("weight_decay", lambda v: 0 <= v < math.inf, "a number from 0 on")
        check("dropout", lambda v: 0 <= v < 1, "a number in [0, 1)")
        check("early_stopping", lambda v: v is True or v is False or v == "auto", 'True, False or "auto"')
        check("device", lambda v: isinstance(v, str | torch.device), "auto, cpu or cuda")
        check("validation_fraction", lambda v: 0 < v < 1, "a number between 0 and 1")

    def parameter_count(self) -> int:
        """Return the number of weights of the fitted network."""
        check_is_fitted(self, "network_")
        return int(self.network_.parameter_count())

    def stream(self) -> EstimatorStream:
        """Return the fitted model as a stream: one call for each new row of measurements, in constant time and memory."""
        check_is_fitted(self, "network_")
        return EstimatorStream(self.network_, self._speaker())

    @abstractmethod
    def _speaker(self) -> Spoken:
        """Return what a stream says of the scores of one step, whatever this estimator learns later."""

    def save_pretrained(self, folder: str | PathLike[str], *, force: bool = False) -> None:
        """Write the fitted estimator into a folder: config.json and model.safetensors.

        Files of that name are left alone unless `force` is true; other files in the folder stay.
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


def _drawn_cases(
    wanted: int, strata: NDArray[Any], classes: NDArray[np.bool_], random: np.random.RandomState
) -> NDArray[np.int64]:
    """Draw cases, of each stratum in proportion, and never the last one that has a class.

    If each is the last one of some class, one that shares another class with the rest.
    """
    order = random.permutation(len(strata))
    keys = np.empty(len(strata))
    for name in np.unique(strata):
        own = order[strata[order] == name]
        keys[own] = (np.arange(len(own)) + random.rand()) / len(own)
    order = np.argsort(keys, kind="stable")
    left = classes.sum(0)  # how many cases that are trained on have each class
    chosen: list[int] = []
    for case in order.tolist():
        if len(chosen) < wanted and (left[classes[case]] > 1).all():
            chosen.append(case)
            left -= classes[case]
    if not chosen and wanted:
        chosen = [case for case in order.tolist() if (left[classes[case]] > 1).any()][:1]
    return np.sort(np.array(chosen, dtype=np.int64))


def _drawn_groups(
    wanted: int, groups: NDArray[Any], classes: NDArray[np.bool_], random: np.random.RandomState
) -> NDArray[np.int64]:
    """Draw whole groups with about as many cases as wanted: at most twice as many, or else the smallest group.

    Never the last one that has a class, unless each group is.
    """
    names, of, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    holds = np.zeros((len(names), classes.shape[1]), dtype=bool)
    np.logical_or.at(holds, of, classes)
    left = holds.sum(0)  # how many groups that are trained on have each class

    def is_last(group: int) -> bool:
        return bool((left[holds[group]] == 1).any())

    chosen: list[int] = []
    for group in random.permutation(len(names)).tolist():
        held = int(sizes[chosen].sum())
        if held < wanted and held + sizes[group] <= 2 * wanted and not is_last(group):
            chosen.append(group)
            left -= holds[group]
    if not chosen and len(names) > 1:
        chosen = [min(range(len(names)), key=lambda group: (is_last(group), sizes[group]))]
    return np.flatnonzero(np.isin(of, chosen))


_random_numbers = threading.Lock()
"""torch's random numbers belong to the whole process: one fit after the other uses them."""


@contextlib.contextmanager
def _own_random_numbers(seed: int, place: torch.device) -> Iterator[None]:
    """Let torch draw from this seed, and afterwards go on as if nothing had been drawn."""
    on_gpu = place.type == "cuda"
    with _random_numbers, torch.random.fork_rng(devices=[place] if on_gpu else []):
        torch.default_generator.manual_seed(seed)
        if on_gpu:
            with torch.cuda.device(place):
                torch.cuda.manual_seed(seed)
        yield


def is_missing(value: Any) -> bool:
    """Whether a label or a group is none: None, NaN, or pandas' NA, which does not even say whether it equals itself."""
    try:
        return value is None or bool(value != value)
    except TypeError:
        return True


def is_whole(value: Any) -> bool:
    """Whether a value is a whole number from 1 on."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and int(value) >= 1


def _chosen(values: Any, index: NDArray[np.int64]) -> Any:
    """Return some of the elements of an array, a list or a pandas series."""
    if hasattr(values, "iloc"):
        return values.iloc[index]
    if isinstance(values, list | tuple):
        return [values[k] for k in index]
    return np.asarray(values)[index]
