"""The training of an estimator's network, epoch by epoch, and its scores.

T time, B batch, K scores.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mistrnn.errors import UsageError
from mistrnn.estimators._sequences import batches, pad
from mistrnn.estimators.network import AnyNetwork
from mistrnn.models import SequenceNetwork
from mistrnn.training.examples import Case, Frames
from mistrnn.training.fitting import Course, NetworkTrials, Recipe, schedule

FRAMES_AT_ONCE = 2**17
"""Padded frames that are run together without gradients: their states fill some 100 MB."""
CASES_AT_ONCE = 256
RUINED = 2.0
"""A network whose loss on the training cases is so many times that of guesses has diverged."""
MOST_ATTEMPTS = 5
"""How often a training that diverges is begun again, each time with a quarter of the learning rate."""


@dataclass(frozen=True)
class Epoch:
    """The results of an epoch."""

    epoch: int
    epochs: int
    learning_rate: float
    train_loss: float | None
    """The mean over its minibatches, with regularisation. None where it was not finite."""
    validation_loss: float | None
    best_epoch: int
    """The epoch whose parameters are kept so far."""
    stage: str = "fit"
    """fit; or race and refit, the stages of a search. In a race `validation_loss` is the lowest of all trials."""


Report = Callable[[Epoch], bool | None]
"""Called after each epoch; the training ends where it returns True."""


def train(
    make: Callable[[], SequenceNetwork],
    train_on: Frames,
    validate_on: Frames | None,
    recipe: Recipe,
    course: Course,
    device: torch.device,
    report: Report,
    patience: int | None = None,
) -> tuple[SequenceNetwork, list[Epoch]]:
    """Train one network and return it with all epochs.

    The network has the parameters of the lowest validation loss, or without validation those of the last step. A training that
    diverges begins again with a quarter of the learning rate. Where the report ends it, the network may be as bad as it is.
    """
    for attempt in range(MOST_ATTEMPTS):
        slower = replace(recipe, learning_rate=recipe.learning_rate / 4**attempt)
        trials = NetworkTrials(make, [0], [slower], course, train_on, validate_on, device)
        epochs, ended = _epochs(trials, slower, report, patience)
        record = trials.records[0]
        finite = record.best_step is not None and record.diverged_step is None
        if finite and (ended or not _is_ruined(trials)):
            return trials.network_of(0), epochs
        if ended:
            raise UsageError("the training was ended after it had diverged: try a lower learning_rate.")
    raise UsageError(
        f"the training diverged {MOST_ATTEMPTS} times, with learning rates from {recipe.learning_rate:g} down to "
        f"{recipe.learning_rate / 4 ** (MOST_ATTEMPTS - 1):g}: try a lower learning_rate."
    )


def _is_ruined(trials: NetworkTrials) -> bool:
    """Whether the trained network is far worse on its training cases than uniform guesses and the untrained network are."""
    # 1 is the variance of standardised numbers.
    guesses = math.log(trials.network.output_size) if trials.course.loss == "classes" else 1.0
    return not trials.best_losses(trials.train_on)[0] <= RUINED * max(guesses, trials.first_losses[0])


def _epochs(trials: NetworkTrials, recipe: Recipe, report: Report, patience: int | None) -> tuple[list[Epoch], bool]:
    """Train to the end, or as long as the report and the patience allow; return whether the report ended it, too."""
    interval, record = trials.validation_interval, trials.records[0]
    count = math.ceil(trials.total_steps / interval)
    found: list[Epoch] = []
    while not trials.done:
        if not trials.advance():
            continue
        diverged = record.diverged_step is not None
        _, loss, error = (0, None, None) if diverged else record.curve[-1]
        best = 0 if record.best_step is None else math.ceil(record.best_step / interval)
        rate = recipe.learning_rate * schedule(trials.step, trials.total_steps)
        validation = None if trials.validate_on is None else error
        found.append(Epoch(len(found) + 1, count, rate, loss, validation, best))
        if report(found[-1]):
            return found, True
        if patience is not None and validation is not None and len(found) - best >= patience:
            break
    return found, False


@torch.no_grad()
def scores_of(network: AnyNetwork, cases: Sequence[Case], *, every_step: bool | None = None) -> list[Tensor]:
    """Return the scores of each case, [K], or [time, K] at every step; the network's own setting if None."""
    every_step = network.every_step if every_step is None else every_step
    device = network.standardisation.mean.device
    found: list[Tensor] = [torch.empty(0)] * len(cases)
    for chosen in batches(cases, CASES_AT_ONCE, FRAMES_AT_ONCE):
        inputs, lengths = pad([cases[k] for k in chosen])
        options = {"lengths": lengths.to(device), "every_step": every_step, "keep_state": False}
        scores = network(inputs.to(device), **options)[0].cpu()
        for place, k in enumerate(chosen):
            found[k] = scores[: len(cases[k]), place].clone() if every_step else scores[place]
    return found
