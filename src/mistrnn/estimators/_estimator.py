"""The base class of the estimators: parameters, checks, training, saving, streaming."""

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import check_array, check_consistent_length, check_random_state
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
from torch import Tensor

from mistrnn.errors import UsageError
from mistrnn.estimators import _fitting, _saved, _searching
from mistrnn.estimators._fitting import Epoch
from mistrnn.estimators._holding_out import held_out
from mistrnn.estimators._plan import course, network_arguments, recipe, search_shapes
from mistrnn.estimators._progress import followed
from mistrnn.estimators._searching import Trials
from mistrnn.estimators._sequences import SHAPES, as_array, as_cases, check_distance, is_table, statistics
from mistrnn.estimators._settings import check_parameters
from mistrnn.estimators._stream import EstimatorStream
from mistrnn.estimators.network import AnyNetwork
from mistrnn.layers import RecurrentLayer
from mistrnn.models import Ensemble, SequenceNetwork, Standardisation
from mistrnn.models.ensemble import Answer
from mistrnn.tasks._cases import is_missing
from mistrnn.training.embedded import Engine, choose_device
from mistrnn.training.examples import Augmentation, Case, Examples, Frames

Spoken = Callable[[Tensor], Any]
"""From the scores [K] of one step to what a stream says."""


@dataclass(kw_only=True, eq=False, repr=False)
class SequenceEstimator(BaseEstimator, ABC):  # type: ignore[misc]
    """The base of all estimators: a `mistrnn.models.SequenceNetwork`, trained with AdamW, warm-up and a cosine.

    Args:
        layer: mist, narx, clockwork, rnn, lstm or gru, or a class of mistrnn.
        hidden_size: width of the network, and units of the recurrent layer of each block.
        num_layers: residual blocks on top of each other.
        kernel_size: steps that the convolution of each block reads, at most the longest case; 1 for no convolution.
        bidirectional: read each case in both directions; such a model cannot stream.
        layer_options: other arguments of the layer by name, such as delays. A MIST layer without delays gets 1, 2, 4, ... up to
            the longest case.
        initialization: how the layers start: open, normal, uniform or groups (`mistrnn.layers.initialization`).
        dropout: probability of dropping a channel of a residual branch for a whole case, in training.
        standardize: shift and scale each channel to mean 0 and deviation 1 of the training cases. A channel that is constant
            there is only shifted. A channel with heavy tails (a kurtosis above 20) is transformed by arcsinh first.
        augmentation: train on randomly changed cases; True for the default `mistrnn.training.examples.Augmentation`, False for
            none, or one of your own (or its arguments as a dict).
        max_epochs: times that all cases are gone through; None for what makes 1,500 minibatches, and at least 10.
        batch_size: cases in a minibatch; None for 16, and 32 from 400 cases on.
        learning_rate: highest learning rate of AdamW; it warms up over a tenth of the steps and falls to 0 along a cosine.
        weight_decay: of AdamW, on matrices only.
        early_stopping: hold out a share of the cases (of the groups, if there are any) for validation, and keep the epoch with
            the lowest validation loss. Otherwise, the default, and in a search the network learns from all cases to the end.
        validation_fraction: that share; also the share on which the trials of a search are compared.
        patience: with early_stopping, epochs without a lower validation loss after which to stop; None to train to the end.
        n_trials: networks of random settings that are trained together, stacked on a trial axis; 1 for a single fit.
        n_best: how many of the best trials answer together in the end.
        search_dir: a folder that keeps a search: the same fit on it resumes where an earlier one was stopped or killed.
        engine: where a search computes: in this process if None, or on a cluster, `mistrnn.training.RayEngine()`.
        callback: called with an `Epoch` after each epoch, for example to log it. Where it returns True, a single fit ends with
            what it has, and a search is saved and raises `mistrnn.training.Interrupted`. A training that diverges begins again
            with epoch 1.
        device: cpu, cuda or auto (a GPU if there is one).
        random_state: all that is random follows from it.
        verbose: show a progress bar (a line now and then where there is no terminal).
        log_dir: a folder for TensorBoard.
    """

    layer: str | type[RecurrentLayer] = "mist"
    hidden_size: int = 32
    num_layers: int = 2
    kernel_size: int = 31
    bidirectional: bool = False
    layer_options: Mapping[str, Any] | None = None
    initialization: str = "open"
    dropout: float = 0.1
    standardize: bool = True
    augmentation: bool | Augmentation | Mapping[str, float] = True
    max_epochs: int | None = None
    batch_size: int | None = None
    learning_rate: float = 5e-3
    weight_decay: float = 0.05
    early_stopping: bool = False
    validation_fraction: float = 0.2
    patience: int | None = None
    n_trials: int = 1
    n_best: int = 3
    search_dir: str | PathLike[str] | None = None
    engine: Engine | None = None
    callback: Callable[[Epoch], bool | None] | None = None
    device: str | torch.device = "auto"
    random_state: int | np.random.RandomState | None = None
    verbose: bool | int = False
    log_dir: str | PathLike[str] | None = None

    _every_step: ClassVar[bool] = False
    _answer: ClassVar[Answer] = "classes"
    """The meaning of the network's scores."""

    @abstractmethod
    def _learn(self, cases: Sequence[Case], y: Any, sample_weight: NDArray[np.float64]) -> Examples:
        """Check y, learn what its values are, and return the examples."""

    @abstractmethod
    def _output_size(self) -> int:
        """Return how many scores the network has."""

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
        with torch.inference_mode(False), torch.enable_grad():
            self._train(examples, owners, check_random_state(self.random_state), report)
        self.channel_names_: list[str] | None = None

    def _train(
        self,
        examples: Examples,
        groups: NDArray[Any] | None,
        random: np.random.RandomState,
        report: Callable[[Epoch], bool | None] | None,
    ) -> None:
        """Train the network, or search for the best of many."""
        validates = self.early_stopping or self.n_trials > 1
        train_on, validate_on = self._held_out(examples, groups, random) if validates else (examples, None)
        seed = int(random.randint(2**31))
        if self.n_trials > 1:
            assert validate_on is not None
            networks, epochs, trials = self._search((train_on, validate_on, examples), seed, report)
        else:
            networks, epochs, trials = *self._fit_one(train_on, validate_on, seed, report), None
        self.network_ = self._completed(networks, examples, groups, seed)
        self.history_ = [asdict(epoch) for epoch in epochs]
        self.n_epochs_, self.best_epoch_ = len(epochs), epochs[-1].best_epoch
        self.__dict__.pop("trials_", None)
        if trials is not None:
            self.trials_ = trials

    def _completed(
        self, networks: Sequence[SequenceNetwork], examples: Examples, groups: NDArray[Any] | None, seed: int
    ) -> AnyNetwork:
        """Return the network that answers: the only one, or an ensemble of all."""
        return networks[0] if len(networks) == 1 else Ensemble(networks, self._answer)

    def _fit_one(
        self,
        train_on: Examples,
        validate_on: Examples | None,
        seed: int,
        report: Callable[[Epoch], bool | None] | None,
    ) -> tuple[list[SequenceNetwork], list[Epoch]]:
        device = choose_device(str(self.device))
        standardisation = self._standardisation(train_on)
        frames, held = (
            None if one is None else Frames(one, standardisation, device) for one in (train_on, validate_on)
        )
        assert frames is not None
        arguments = network_arguments(self, train_on, standardisation)

        def make() -> SequenceNetwork:
            network = SequenceNetwork(**arguments)
            network.standardisation = standardisation
            return network

        plan, settings = course(self, train_on, seed), recipe(self)
        epochs = math.ceil(plan.steps / plan.validate_every)
        with followed(epochs, bool(self.verbose), self.log_dir, [report, self.callback]) as follow:
            network, found = _fitting.train(make, frames, held, settings, plan, device, follow, self.patience)
        return [network], found

    def _search(
        self,
        parts: tuple[Examples, Examples, Examples],
        seed: int,
        report: Callable[[Epoch], bool | None] | None,
    ) -> tuple[list[SequenceNetwork], list[Epoch], list[dict[str, Any]]]:
        standardisation = self._standardisation(parts[2])
        arguments = network_arguments(self, parts[2], standardisation)
        trials = Trials(
            count=self.n_trials,
            best=self.n_best,
            recipe=recipe(self),
            shapes=search_shapes(arguments),
            arguments=arguments,
            standardisation=standardisation,
        )
        with followed(None, bool(self.verbose), self.log_dir, [report, self.callback]) as follow:
            found, history = _searching.search(
                trials,
                parts,
                lambda cases: course(self, cases, seed),
                self.search_dir,
                device=str(self.device),
                engine=self.engine,
                report=follow,
                stop=lambda: False,
            )
        device = choose_device(str(self.device))
        return [network.to(device).eval() for network in found.networks], history, found.trials

    def _standardisation(self, examples: Examples) -> Standardisation:
        """Return the standardisation of the inputs, which may change nothing."""
        if self.standardize:
            return statistics(self._name, examples.cases, examples.case_weights)
        channels = self.n_channels_
        return Standardisation(torch.zeros(channels, dtype=torch.float64), torch.ones(channels, dtype=torch.float64))

    def _held_out(
        self, examples: Examples, groups: NDArray[Any] | None, random: np.random.RandomState
    ) -> tuple[Examples, Examples]:
        """Return the cases to train on and those to validate on."""
        classes = self._classes_in(examples)
        strata = self._strata(examples) if groups is None else None
        learnt, held = held_out(self.validation_fraction, classes, strata, groups, random)
        if not len(held) or not len(learnt):
            count = len(examples.cases)
            of = f"{count} cases" if groups is None else f"{count} cases in {len(set(groups.tolist()))} groups"
            why = "early_stopping=True" if self.early_stopping else f"n_trials={self.n_trials}"
            raise UsageError(
                f"{self._name}: expected something to train and something to validate on, because {why} and "
                f"validation_fraction={self.validation_fraction}, got {of}."
            )
        lost = np.flatnonzero(classes.any(0) & ~classes[learnt].any(0))
        if len(lost):
            names, of = getattr(self, "classes_", lost)[lost].tolist(), "cases" if groups is None else "groups"
            warnings.warn(
                f"{self._name}: {names} is only in the {of} that are validated on, and will not be learnt.",
                stacklevel=6,  # the line that called fit
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
            check_distance(self._name, cases, self.network_.standardisation)
        return cases

    def _scores(self, X: Any) -> list[Tensor]:
        check_is_fitted(self, "network_")
        return _fitting.scores_of(self.network_, self._cases(X))

    @property
    def _name(self) -> str:
        return type(self).__name__

    def _check_parameters(self) -> None:
        """Check what the layer and torch would not, or would with words of their own."""
        check_parameters(self)

    def parameter_count(self) -> int:
        """Return the number of weights of the fitted network."""
        check_is_fitted(self, "network_")
        return int(self.network_.parameter_count())

    def report(
        self,
        X: Any,
        y: Any,
        folder: str | PathLike[str],
        groups: Any = None,
        *,
        ids: Sequence[str] | None = None,
        title: str | None = None,
        force: bool = False,
    ) -> Path:
        """Evaluate the fitted model on labelled cases, write the report into a folder, and return the path of report.html.

        Args:
            X: as in `fit`; cases that it was not trained on.
            y: as in `fit`.
            folder: made if need be; what else is in it stays.
            groups: [cases] the group of each case, for the page.
            ids: [cases] names of the cases; their numbers from 0 if not given.
            title: heading of the page.
            force: replace an earlier report.
        """
        check_is_fitted(self, "network_")
        from mistrnn.report.model_report import write_model_report  # its packages are needed for nothing else

        cases = [case.T for case in self._cases(X)]
        return write_model_report(self, cases, y, Path(folder), groups=groups, ids=ids, title=title, force=force)

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


def _chosen(values: Any, index: NDArray[np.int64]) -> Any:
    """Return some of the elements of an array, a list or a pandas series."""
    if hasattr(values, "iloc"):
        return values.iloc[index]
    if isinstance(values, list | tuple):
        return [values[k] for k in index]
    return np.asarray(values)[index]
