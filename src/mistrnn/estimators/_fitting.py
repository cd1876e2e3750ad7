"""The training of one network on cases of any length: minibatches, AdamW, a cosine schedule, early stopping.

T time, B batch, K outputs.
"""

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mistrnn.errors import UsageError
from mistrnn.estimators._sequences import Case, batches, pad
from mistrnn.estimators.network import Network

MAX_NORM = 1.0
"""The global norm that gradients are clipped to, as in the paper."""
MOST_BRAKES = 10
"""How often the learning rate is halved before a training ends."""
FRAMES_AT_ONCE = 2**17
"""Padded frames that are run together without gradients: their states fill some 100 MB."""
CASES_AT_ONCE = 256

Loss = Callable[[Tensor, Tensor], Tensor]
"""(scores, targets) -> the loss of each target."""


@dataclass(frozen=True)
class Examples:
    """Cases with what is to be learnt: one target each, or one for each step."""

    cases: Sequence[Case]
    targets: Sequence[Tensor]
    """A number, a class, [K] numbers, or [time] classes for each case."""
    weights: Sequence[Tensor]
    """How much each target counts, as the targets; 0 for a step that has none."""
    case_weights: Sequence[float]
    """How much each case counts, whatever its classes do."""

    def batch(self, chosen: NDArray[np.int64], device: torch.device) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return inputs [T, B, C], their lengths [B], targets and weights [B, ...] or [T, B]."""
        inputs, lengths = pad([self.cases[k] for k in chosen])
        over_time = self.weights[0].dim() == 1
        together = _padded if over_time else torch.stack
        targets = together([self.targets[k] for k in chosen])
        weights = together([self.weights[k] for k in chosen])
        return inputs.to(device), lengths.to(device), targets.to(device), weights.to(device)

    def subset(self, chosen: NDArray[np.int64]) -> "Examples":
        """Return some of the cases."""
        columns = (self.cases, self.targets, self.weights, self.case_weights)
        return Examples(*([values[k] for k in chosen] for values in columns))


def _padded(values: list[Tensor]) -> Tensor:  # [T, B], zero past the ends
    return torch.nn.utils.rnn.pad_sequence(values)


@dataclass(frozen=True)
class Epoch:
    """What an epoch came to."""

    epoch: int
    epochs: int
    learning_rate: float
    train_loss: float | None
    """While it lasted; without a validation, or with one minibatch, of the parameters that it ended with. None where it
    was not finite."""
    validation_loss: float | None
    best_epoch: int
    overflows: int = 0
    """Minibatches that were passed over, because their gradients were not finite."""
    undone: bool = False
    """Whether training fell over in it, and went back to the best epoch."""


@dataclass(frozen=True)
class Plan:
    """How to train."""

    epochs: int
    batch_size: int
    learning_rate: float
    weight_decay: float
    patience: int
    """Epochs without a lower validation loss after which to stop, once the training loss has fallen by a tenth."""
    piece: int | None = None
    """Cut cases with a target for each step into pieces of at most this length."""


def train(
    network: Network,
    train_on: Examples,
    validate_on: Examples | None,
    loss: Loss,
    plan: Plan,
    random: np.random.RandomState,
    report: Callable[[Epoch], bool | None],
) -> list[Epoch]:
    """Train the network in place, leave it with the parameters of the epoch with the lowest loss, and return all epochs.

    That is the loss in validation, or without one that in training. An epoch in which the training fell over is undone: it
    goes on from the best parameters so far (the initial ones, if all that came after are worse) with half the learning
    rate, ten times at most. It ends early where `report` returns True.
    """
    optimizer = _new_optimizer(network, plan)
    epochs: list[Epoch] = []
    untrained, untrained_loss = copy.deepcopy(network.state_dict()), mean_loss(network, train_on, loss)
    untrained_reached = untrained_loss if validate_on is None else mean_loss(network, validate_on, loss)
    if not math.isfinite(untrained_loss + untrained_reached):
        raise UsageError(
            "the loss is not finite before anything has been learnt: inputs, targets or weights are too large for float32."
        )
    best_loss, best_epoch, best = math.inf, 0, untrained
    first_loss, lowest_loss, brakes = math.inf, math.inf, 0
    learning_since: int | None = None
    for number in range(1, plan.epochs + 1):
        rate = plan.learning_rate * 0.5 * (1 + math.cos(math.pi * (number - 1) / plan.epochs)) / 2**brakes
        for group in optimizer.param_groups:
            group["lr"] = rate
        train_loss, overflows, steps = _epoch(network, optimizer, _minibatches(train_on, plan, random), loss)
        if validate_on is None or steps == 1:  # the loss of a single minibatch is that before its step
            train_loss = mean_loss(network, train_on, loss)
        # It fell over: nothing to go by any more, or a loss as before it had learnt anything.
        as_before = max(2 * lowest_loss, 1.1 * max(first_loss, untrained_loss))
        most = _ruined(untrained_loss) if first_loss == math.inf else as_before
        fell = not math.isfinite(train_loss) or 2 * overflows > steps or train_loss > most
        validation_loss = None
        if fell:
            brakes += 1
            network.load_state_dict(best if best_loss < untrained_reached else untrained)
            optimizer = _new_optimizer(network, plan)
        else:
            first_loss = train_loss if first_loss == math.inf else first_loss
            lowest_loss = min(lowest_loss, train_loss)
            validation_loss = mean_loss(network, validate_on, loss) if validate_on is not None else None
            reached = train_loss if validation_loss is None else validation_loss
            if reached < best_loss:
                best_loss, best_epoch, best = reached, number, copy.deepcopy(network.state_dict())
        finite_loss = train_loss if math.isfinite(train_loss) else None
        epochs.append(Epoch(number, plan.epochs, rate, finite_loss, validation_loss, best_epoch, overflows, fell))
        if report(epochs[-1]) or brakes == MOST_BRAKES:
            break
        if learning_since is None and not fell and train_loss < 0.9 * first_loss:
            learning_since = number
        # A long memory may take long to be found: there is nothing to stop before anything is learnt.
        waited = 0 if learning_since is None else number - max(best_epoch, learning_since)
        if validate_on is not None and waited >= plan.patience:
            break
    if not best_epoch or (brakes == MOST_BRAKES and best_loss > _ruined(untrained_reached)):
        raise UsageError(
            f"the training diverged, none of {len(epochs)} epochs is as good as an untrained network: try a lower "
            f"learning_rate than {plan.learning_rate}."
        )
    network.load_state_dict(best)
    network.eval()
    return epochs


def _ruined(untrained_loss: float) -> float:
    """Return the loss from which on a network is worse than an untrained one: far above its loss, and above a guess's."""
    return 2 * max(untrained_loss, 1.0)


def _new_optimizer(network: Network, plan: Plan) -> torch.optim.Optimizer:
    return torch.optim.AdamW(network.parameters(), plan.learning_rate, weight_decay=plan.weight_decay)


def _epoch(
    network: Network, optimizer: torch.optim.Optimizer, minibatches: Iterator[Examples], loss: Loss
) -> tuple[float, int, int]:
    """Go through all minibatches once and return the mean loss, how many gradients were not finite, and of how many."""
    network.train()
    device = network.readout.weight.device
    total, counted, overflows, steps = 0.0, 0.0, 0, 0
    for examples in minibatches:
        inputs, lengths, targets, weights = examples.batch(np.arange(len(examples.cases)), device)
        there = (weights > 0).sum()
        if not there:
            continue  # a piece without a label
        scores, _ = network(inputs, lengths=lengths)
        lost = (loss(scores, targets) * weights).sum()
        optimizer.zero_grad(set_to_none=True)
        (lost / there).backward()  # type: ignore[no-untyped-call]
        norm = torch.nn.utils.clip_grad_norm_(network.parameters(), MAX_NORM)
        if torch.isfinite(norm):
            optimizer.step()
        else:
            overflows += 1  # over very many steps a gradient may overflow: then there is nothing to go by
        total, counted, steps = total + lost.item(), counted + weights.sum().item(), steps + 1
    return total / counted, overflows, steps


def _minibatches(examples: Examples, plan: Plan, random: np.random.RandomState) -> Iterator[Examples]:
    """Go through all examples once, in random order."""
    if plan.piece is not None:
        examples = _pieces(examples, plan.piece, random)
    order = random.permutation(len(examples.cases))
    for start in range(0, len(order), plan.batch_size):
        yield examples.subset(order[start : start + plan.batch_size])


def _pieces(examples: Examples, length: int, random: np.random.RandomState) -> Examples:
    """Cut every case into pieces of at most `length` steps, elsewhere each time, so that no cut is seen twice."""
    pieces = []
    for case, target, weight in zip(examples.cases, examples.targets, examples.weights, strict=True):
        first = len(case) if len(case) <= length else int(random.randint(1, length + 1))
        edges = [0, *range(first, len(case), length), len(case)]
        for start, end in pairwise(edges):
            if start < end:
                pieces.append((case[start:end], target[start:end], weight[start:end], 1.0))
    return Examples(*map(list, zip(*pieces, strict=True)))


@torch.no_grad()
def mean_loss(network: Network, examples: Examples, loss: Loss) -> float:
    """Return the weighted mean of the loss over all targets."""
    network.eval()
    device = network.readout.weight.device
    total, counted = 0.0, 0.0
    for chosen in batches(examples.cases, CASES_AT_ONCE, FRAMES_AT_ONCE):
        inputs, lengths, targets, weights = examples.batch(chosen, device)
        total += (loss(network(inputs, lengths=lengths)[0], targets) * weights).sum().item()
        counted += weights.sum().item()
    return total / counted


@torch.no_grad()
def scores_of(network: Network, cases: Sequence[Case], *, every_step: bool | None = None) -> list[Tensor]:
    """Return the scores of each case, [K], or [time, K] at every step; as the network reads out if left open."""
    every_step = network.every_step if every_step is None else every_step
    device = network.readout.weight.device
    found: list[Tensor] = [torch.empty(0)] * len(cases)
    for chosen in batches(cases, CASES_AT_ONCE, FRAMES_AT_ONCE):
        inputs, lengths = pad([cases[k] for k in chosen])
        scores = network(inputs.to(device), lengths=lengths.to(device), every_step=every_step)[0].cpu()
        for place, k in enumerate(chosen):
            found[k] = scores[: len(cases[k]), place].clone() if every_step else scores[place]
    return found
