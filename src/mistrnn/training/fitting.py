"""Networks on the caller's own data: many trials of a `SequenceNetwork` as one computation, or one of them alone.

AdamW with warm-up and a cosine, clipped gradients, label smoothing, augmentation, one dropout mask per sequence.
E trials still running, T time, B batch, C channels, K scores, W width.
"""

import copy
import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor
from torch.func import functional_call, vmap

from mistrnn.models import SequenceNetwork
from mistrnn.models._frames import BatchStatistics
from mistrnn.models.ensemble import Answer
from mistrnn.models.standardisation import standardisation_buffers
from mistrnn.training.examples import Augmentation, Batch, Frames
from mistrnn.training.optimizers import Optimizer, Tensors, clip
from mistrnn.training.stacked import StackedTrials
from mistrnn.training.study import seed_of

WARM_UP = 0.1
"""Share of the steps over which the learning rate rises."""
FRAMES_AT_ONCE = 2**16
"""Padded frames of all trials that are evaluated together."""


@dataclass(frozen=True)
class Recipe:
    """The settings of one trial's training."""

    learning_rate: float = 5e-3
    weight_decay: float = 0.05
    dropout: float = 0.1
    label_smoothing: float = 0.1
    augmentation: Augmentation = field(default_factory=Augmentation)
    initialization: str | None = None
    """How the layers start; as the network says if None."""


@dataclass(frozen=True)
class Course:
    """The settings that all trials share."""

    steps: int
    batch_size: int
    validate_every: int
    loss: Answer = "classes"
    piece_length: int | None = None
    """Cases with a target for each step are cut into pieces of at most this length."""
    seed: int = 0
    keep: Literal["best", "last"] = "last"


class NetworkTrials(StackedTrials):
    """Trials of one network with recipes of their own.

    Args:
        make: returns the network of a trial, drawn from torch's default generator; all have the same shape.
        trials: their numbers. Everything about a trial follows from its number and the seed.
        recipes: the recipe of each.
        course: the settings that all trials share.
        train_on: the training cases.
        validate_on: the validation cases; the training loss takes their place if None.
        device: where to compute.
    """

    def __init__(
        self,
        make: Callable[[], SequenceNetwork],
        trials: Sequence[int],
        recipes: Sequence[Recipe],
        course: Course,
        train_on: Frames,
        validate_on: Frames | None,
        device: torch.device,
    ) -> None:
        self.course, self.recipes = course, list(recipes)
        self.train_on, self.validate_on = train_on, validate_on
        self.total_steps, self.validation_interval = course.steps, course.validate_every
        self.keep_last = course.keep == "last"
        starts = [
            _start(make, course.seed, trial, recipe.initialization)
            for trial, recipe in zip(trials, recipes, strict=True)
        ]
        self.network = copy.deepcopy(starts[0]).to("meta")
        """Their common shape; it holds no numbers."""
        parameters = _stacked([dict(one.named_parameters()) for one in starts], device)
        buffers = _stacked([_running(one) for one in starts], device)
        self._fixed = {name: value.to(device) for name, value in standardisation_buffers(starts[0]).items()}
        decay = {name: torch.tensor([recipe.weight_decay for recipe in recipes]) for name in parameters}
        for name, value in parameters.items():
            if value.dim() <= 2:  # biases, gains: only matrices decay
                decay[name] = torch.zeros(len(recipes))
        optimizer = Optimizer("adamw", parameters, {name: value.to(device) for name, value in decay.items()})
        super().__init__(trials, parameters, optimizer, buffers)
        pieces = count_pieces(train_on.lengths.tolist(), course.piece_length)
        self.first_losses = [math.nan] * len(recipes)
        """The loss of each trial on its first minibatch, before it has learnt anything."""
        self._per_epoch = steps_per_epoch(train_on.lengths.tolist(), course.batch_size, course.piece_length)
        self._batch_size = min(course.batch_size, pieces)
        self._rows_changed()

    def network_of(self, record: int) -> SequenceNetwork:
        """Return the network of a record, with the parameters of its best validation."""
        network = copy.deepcopy(self.network)
        state = {name: value[record].detach().clone() for name, value in self.best.items()}
        network.load_state_dict({**{n: v.clone() for n, v in self._fixed.items()}, **state}, assign=True)
        network.set_dropout(self.recipes[record].dropout)
        network.initialization = self.recipes[record].initialization or network.initialization
        return network.requires_grad_(True).eval()

    def measured(self) -> list[dict[str, Any]]:
        """Return the validation error of each record; without validation cases there is none."""
        count = self.network.parameter_count()
        return [
            {
                "val_error": record.best_error
                if self.validate_on is not None and record.best_step is not None
                else None,
                "test_error": None,
                "best_step": record.best_step,
                "parameters": count,
            }
            for record in self.records
        ]

    def best_losses(self, frames: Frames) -> list[float]:
        """Return the mean loss of each record with the parameters of its best validation."""
        parameters = {name: value for name, value in self.best.items() if name in self.parameters}
        buffers = {name: value for name, value in self.best.items() if name in self.buffers}
        return self.evaluate(parameters, buffers, frames)

    def evaluate(self, parameters: Tensors, buffers: Tensors, frames: Frames) -> list[float]:
        """Return the mean loss of each stacked network."""
        count = len(next(iter(parameters.values())))
        total = torch.zeros(count, dtype=torch.float64, device=self.device)
        weight = torch.zeros((), dtype=torch.float64, device=self.device)
        self.network.eval()

        def lost(parameters: Tensors, buffers: Tensors, batch: dict[str, Tensor | None]) -> Tensor:
            inputs, lengths = batch["inputs"], batch["lengths"]
            scores, _ = self._call(parameters, buffers, inputs, lengths=lengths, keep_state=False)
            return (self._losses(scores, batch["targets"], None) * batch["weights"]).sum()  # type: ignore[operator, arg-type]

        with torch.no_grad():
            order = torch.argsort(frames.lengths, descending=True)
            place = 0
            while place < len(order):
                longest = int(frames.lengths[order[place]])
                chosen = order[place : place + max(1, FRAMES_AT_ONCE // (longest * count))]
                place += len(chosen)
                cases = chosen.unsqueeze(0)
                batch = frames.batch(frames.begins[cases], frames.lengths[cases], cases)
                one = {name: None if value is None else value[0] for name, value in vars(batch).items()}
                total += vmap(lost, in_dims=(0, 0, None))(parameters, buffers, one)
                weight += batch.weights.sum()
        found: list[float] = (total / weight).tolist()
        return found

    def _validation_errors(self) -> list[float]:
        if self.validate_on is None:
            means: list[float] = (self._loss_sum / self._loss_steps).tolist()
            return means
        return self.evaluate(self.parameters, self.buffers, self.validate_on)

    def _learning_rate(self) -> Tensor:
        return self._rates * schedule(self.step, self.total_steps)

    def _after_step(self) -> None:
        return

    def _rows_changed(self) -> None:
        own = [self.recipes[k] for k in self.running]
        rates = [recipe.learning_rate for recipe in own]
        self._rates = torch.tensor(rates, dtype=torch.float64, device=self.device)
        self._smoothing = torch.tensor([recipe.label_smoothing for recipe in own], device=self.device)
        self._epoch = -1

    def _gradients_of_all(self) -> tuple[Tensors, Tensor, Tensor]:
        batch, masks = self._next_batch()
        numbers = self._layer_numbers(batch.inputs.size(1), batch.inputs.size(2))
        smoothing = self._smoothing if self.course.loss == "classes" else None
        self.network.train()

        def mean_loss(
            parameters: Tensors,
            batch: dict[str, Tensor],
            masks: list[Tensor],
            numbers: list[Tensor],
            smoothing: Tensor | None,
        ) -> tuple[Tensor, BatchStatistics]:
            statistics: BatchStatistics = []
            scores, _ = self._call(
                parameters,
                {},
                batch["inputs"],
                lengths=batch.get("lengths"),
                keep_state=False,
                dropout_masks=masks,
                layer_numbers=numbers,
                statistics=statistics,
            )
            losses = self._losses(scores, batch["targets"], smoothing) * batch["weights"]
            return losses.sum() / (batch["weights"] > 0).sum().clamp_min(1), statistics

        leaves = {name: value.detach().requires_grad_() for name, value in self.parameters.items()}
        everything = {name: value for name, value in vars(batch).items() if value is not None}
        # Autograd outside of vmap: torch.func.grad inside would take several times as long for small networks.
        if len(self.running) == 1:
            loss, statistics = mean_loss(
                {name: value[0] for name, value in leaves.items()},
                {name: value[0] for name, value in everything.items()},
                [mask[0] for mask in masks],
                [number[0] for number in numbers],
                None if smoothing is None else smoothing[0],
            )
            losses, statistics = loss.unsqueeze(0), [(m.unsqueeze(0), v.unsqueeze(0)) for m, v in statistics]
        else:
            losses, statistics = vmap(mean_loss, in_dims=(0, 0, 0, 0, None if smoothing is None else 0))(
                leaves, everything, masks, numbers, smoothing
            )
        found = torch.autograd.grad(losses.sum(), list(leaves.values()))
        gradients = dict(zip(leaves, found, strict=True))
        self._update_statistics(statistics)
        if self.step == 0:
            self.first_losses = losses.tolist()
        return *clip(gradients), losses.detach()

    def _update_statistics(self, statistics: BatchStatistics) -> None:
        # The first steps are averaged evenly: otherwise a short training would be evaluated with the initial statistics.
        momentum = max(self.network.norm.momentum, 1 / (self.step + 1))
        for name, (mean, variance) in zip(self._norm_names, statistics, strict=True):
            self.buffers[f"{name}.running_mean"].lerp_(mean.detach(), momentum)
            self.buffers[f"{name}.running_var"].lerp_(variance.detach(), momentum)

    @property
    def _norm_names(self) -> list[str]:
        names = {id(module): name for name, module in self.network.named_modules()}
        return [names[id(norm)] for norm in self.network.norms()]

    def _call(self, parameters: Tensors, buffers: Tensors, inputs: Any, **options: Any) -> tuple[Tensor, Any]:
        found: tuple[Tensor, Any] = functional_call(
            self.network, {**parameters, **buffers}, (inputs,), {**options, "standardised": True}
        )
        return found

    def _losses(self, scores: Tensor, targets: Tensor, smoothing: Tensor | None) -> Tensor:
        """Return the loss of each target."""
        if self.course.loss == "numbers":
            return (scores - targets).square().mean(-1)
        logs = scores.log_softmax(-1)
        losses = -logs.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
        if smoothing is None:
            return losses
        return (1 - smoothing) * losses - smoothing * logs.mean(-1)

    def _next_batch(self) -> tuple[Batch, list[Tensor]]:
        """Return the next minibatch of each trial and the dropout masks [E, B, W] of each residual branch."""
        size = self.course.batch_size
        epoch, position = divmod(self.step, self._per_epoch)
        if epoch != self._epoch:
            self._orders, self._epoch = [self._order(self.records[k].trial, epoch) for k in self.running], epoch
        generators = [self._generator(self.records[k].trial, f"step {self.step}") for k in self.running]
        columns = []
        for begins, lengths, cases in self._orders:
            # A last minibatch that is smaller takes cases from the beginning of the order: trials keep one shape.
            chosen = torch.arange(position * size, position * size + self._batch_size) % len(begins)
            columns.append((begins[chosen], lengths[chosen], cases[chosen]))
        begins, lengths, cases = (torch.stack(column) for column in zip(*columns, strict=True))
        own = [self.recipes[k] for k in self.running]
        augmentations = [recipe.augmentation for recipe in own]
        plain = all(augmentation == Augmentation.off() for augmentation in augmentations)
        batch = self.train_on.batch(begins, lengths, cases, None if plain else augmentations, generators)
        branches, width = 2 * len(self.network.blocks), self.network.hidden_size
        masks = []
        for recipe, generator in zip(own, generators, strict=True):
            kept = torch.rand(branches, begins.size(1), width, generator=generator) >= recipe.dropout
            masks.append(kept / (1 - recipe.dropout))
        return batch, list(torch.stack(masks, 1).to(self.device))

    def _layer_numbers(self, steps: int, batch_size: int) -> list[Tensor]:
        """Return the uniform numbers [E, ...] that zoneout and recurrent dropout make their masks from.

        Each has a generator of its own and time first: the first steps of a trial do not depend on how far it is padded.
        """
        shapes = self.network.uniform_shapes(steps, batch_size)
        trials = [self.records[k].trial for k in self.running]
        found = []
        for number, shape in enumerate(shapes):
            generators = [self._generator(trial, f"step {self.step} layer draw {number}") for trial in trials]
            drawn = [torch.rand(shape, generator=generator, dtype=torch.float32) for generator in generators]
            found.append(torch.stack(drawn).to(self.device))
        return found

    def _order(self, trial: int, epoch: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return begins, lengths and cases of all pieces, in the order of an epoch."""
        generator = self._generator(trial, f"epoch {epoch}")
        begins, lengths = self.train_on.pieces(self.course.piece_length, generator)
        cases = torch.searchsorted(self.train_on.begins, begins, right=True) - 1
        order = torch.randperm(len(begins), generator=generator)
        return begins[order], lengths[order], cases[order]

    def _generator(self, trial: int, purpose: str) -> torch.Generator:
        return torch.Generator().manual_seed(seed_of(self.course.seed, trial, purpose))


def steps_per_epoch(lengths: Sequence[int], batch_size: int, piece_length: int | None = None) -> int:
    """Return the minibatches that go once through all pieces of cases of these lengths."""
    return max(1, math.ceil(count_pieces(lengths, piece_length) / batch_size))


def count_pieces(lengths: Sequence[int], piece_length: int | None = None) -> int:
    """Return the fewest pieces that cases of these lengths are cut into; a cut at random may make one more of each.

    >>> count_pieces([10, 25], 10)
    4
    """
    return len(lengths) if piece_length is None else sum(-(-length // piece_length) for length in lengths)


def schedule(step: int, steps: int) -> float:
    """Return the factor of the learning rate at a step, the first being number 1: a linear warm-up, then a cosine to zero.

    >>> [round(schedule(step, 100), 2) for step in (1, 5, 10, 55, 100)]
    [0.1, 0.5, 1.0, 0.5, 0.0]
    """
    warm = max(1, round(WARM_UP * steps))
    if step <= warm:
        return step / warm
    return 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, steps - warm)))


_torch_random = threading.Lock()
"""torch's default generator belongs to the whole process: one network after the other is drawn from it."""


def _start(
    make: Callable[[], SequenceNetwork], seed: int, trial: int, initialization: str | None = None
) -> SequenceNetwork:
    with _torch_random, torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_of(seed, trial, "weights"))
        network = make()
        if initialization is not None and initialization != network.initialization:
            network.initialization = initialization
            network.reset_parameters()
        return network


def _stacked(each: Sequence[Tensors], device: torch.device) -> Tensors:
    return {name: torch.stack([one[name].detach() for one in each]).to(device) for name in each[0]}


def _running(network: SequenceNetwork) -> Tensors:
    """Return the buffers that change in training."""
    fixed = standardisation_buffers(network)
    return {name: value for name, value in network.named_buffers() if name not in fixed}
