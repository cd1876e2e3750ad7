"""Rivals: plain recurrent networks and convolutions in an ordinary training loop, and classifiers of aeon.

The loop: channels standardised by the training part; AdamW, learning rate 3e-3 falling to 0 along a cosine, weight decay
1e-2; gradients clipped to norm 1; a fixed number of minibatches, no validation; the last weights are tested.
Frames are trained on in pieces of 500 steps, cut anew in every epoch, and tested on whole recordings.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from data import SMALL
from networks import Convolutional, Recurrent, TemporalConvolutional, nearest_width, parameter_count
from numpy.typing import NDArray
from recordings import Cases
from torch import Tensor, nn

LEARNING_RATE, WEIGHT_DECAY, MOST_GRADIENT = 3e-3, 1e-2, 1.0
PIECE = 500
UNLABELLED = -1
Build = Callable[[int, int, int], nn.Module]
"""(channels, classes, width) -> network."""


class TorchRival:
    """A network trained by the loop above.

    Args:
        build: returns how to build the network, given the longest training case.
        seed: all that is random follows from it.
        parameters: weights to aim at.
        minibatches: number of training steps.
    """

    def __init__(self, build: Callable[[int], Build], seed: int, parameters: int, minibatches: int) -> None:
        self.build, self.seed, self.parameters, self.minibatches = build, seed, parameters, minibatches

    def fit(self, x: Cases, y: Any) -> "TorchRival":
        """Train on cases [channels, time] with a label each, or an array of labels [time] each."""
        torch.manual_seed(self.seed)
        random = np.random.RandomState(self.seed)
        self.every_step = np.ndim(y[0]) > 0
        labels = np.concatenate(y).tolist() if self.every_step else np.asarray(y).tolist()
        self.classes = sorted({label for label in labels if label is not None})
        frames = np.concatenate(x, axis=1).astype(np.float64)
        self.mean, scale = frames.mean(1, keepdims=True), frames.std(1, keepdims=True)
        self.scale = np.where(scale > 0, scale, 1.0)
        cases, targets = self._standardised(x), self._encoded(y)
        self.batch_size = 16 if len(cases) < SMALL else 32
        longest = max(case.shape[1] for case in cases)
        build = partial(self.build(min(longest, PIECE) if self.every_step else longest), len(x[0]), len(self.classes))
        width = nearest_width(lambda width: parameter_count(build(width)), self.parameters)
        torch.manual_seed(self.seed)  # whatever the search has drawn
        self.network = build(width).train()
        optimizer = torch.optim.AdamW(self.network.parameters(), LEARNING_RATE, weight_decay=WEIGHT_DECAY)
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: 0.5 * (1 + math.cos(math.pi * min(1.0, step / self.minibatches)))
        )
        batches = self._batches(cases, targets, random)
        for _ in range(self.minibatches):
            inputs, lengths, wanted = next(batches)
            scores = self.network(inputs, lengths).flatten(0, -2)
            loss = nn.functional.cross_entropy(scores, wanted.flatten(), ignore_index=UNLABELLED)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(self.network.parameters(), MOST_GRADIENT)
            optimizer.step()
            schedule.step()
        return self

    def predict(self, x: Cases) -> Any:
        """Return the most probable label of each case, or an array of them for each step."""
        cases = self._standardised(x)
        order = np.argsort([case.shape[1] for case in cases], kind="stable")
        size = 8 if self.every_step else 64
        found: list[Any] = [None] * len(cases)
        names = np.array(self.classes)
        self.network.eval()
        with torch.inference_mode():
            for begin in range(0, len(order), size):
                chosen = order[begin : begin + size]
                inputs, lengths = _padded([cases[k] for k in chosen])
                best = self.network(inputs, lengths).argmax(-1)
                for k, own in zip(chosen, best, strict=True):
                    found[k] = names[own[: cases[k].shape[1]].numpy()] if self.every_step else names[int(own)]
        return found if self.every_step else np.array(found)

    def parameter_count(self) -> int:
        """Return the number of weights."""
        return parameter_count(self.network)

    def _standardised(self, x: Cases) -> list[Tensor]:
        return [torch.from_numpy(((case - self.mean) / self.scale).astype(np.float32)) for case in x]

    def _encoded(self, y: Any) -> list[Tensor]:
        numbers: dict[Any, int] = {label: k for k, label in enumerate(self.classes)} | {None: UNLABELLED}
        if self.every_step:
            return [torch.tensor([numbers[label] for label in own.tolist()]) for own in y]
        return [torch.tensor(numbers[label]) for label in np.asarray(y).tolist()]

    def _batches(
        self, cases: list[Tensor], targets: list[Tensor], random: np.random.RandomState
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield padded inputs, lengths and targets without end, epoch after epoch."""
        while True:
            x, y = _pieces(cases, targets, random) if self.every_step else (cases, targets)
            order = random.permutation(len(x))
            for begin in range(0, len(order), self.batch_size):
                chosen = order[begin : begin + self.batch_size]
                inputs, lengths = _padded([x[k] for k in chosen])
                own = [y[k] for k in chosen]
                if self.every_step:
                    wanted = nn.utils.rnn.pad_sequence(own, batch_first=True, padding_value=UNLABELLED)
                    if not bool((wanted != UNLABELLED).any()):
                        continue
                else:
                    wanted = torch.stack(own)
                yield inputs, lengths, wanted


def _padded(cases: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Return cases [C, T] as [B, C, T], zero past their ends, and their lengths."""
    lengths = torch.tensor([case.shape[1] for case in cases])
    rows = nn.utils.rnn.pad_sequence([case.T for case in cases], batch_first=True)
    return rows.transpose(1, 2).contiguous(), lengths


def _pieces(
    cases: list[Tensor], targets: list[Tensor], random: np.random.RandomState
) -> tuple[list[Tensor], list[Tensor]]:
    """Cut all cases into pieces of at most PIECE steps, the first cut of each at random."""
    x, y = [], []
    for case, target in zip(cases, targets, strict=True):
        steps = case.shape[1]
        first = random.randint(1, PIECE + 1) if steps > PIECE else steps
        cuts = [0, *range(first, steps, PIECE), steps]
        for begin, end in pairwise(cuts):
            x.append(case[:, begin:end])
            y.append(target[begin:end])
    return x, y


class AeonRival:
    """A classifier of aeon on one core; unequal lengths are padded with zeros to the longest case."""

    def __init__(self, name: str, seed: int) -> None:
        from aeon.classification import convolution_based

        self.model = getattr(convolution_based, name)(random_state=seed, n_jobs=1)

    def fit(self, x: Cases, y: Any) -> "AeonRival":
        """Train on cases [channels, time] with a label each."""
        self.longest = max(case.shape[1] for case in x)
        self.model.fit(self._stacked(x), np.asarray(y))
        return self

    def predict(self, x: Cases) -> Any:
        """Return the label of each case; steps past the length of the longest training case are cut off."""
        return self.model.predict(self._stacked(x))

    def warm_up(self, x: Cases, y: Any) -> None:
        """Compile the code for cases like these, so that the time to compile is not counted."""
        y = np.asarray(y)
        few = np.concatenate([np.flatnonzero(y == label)[:3] for label in np.unique(y)[:2]])
        longest = max(case.shape[1] for case in x)
        stacked = _stacked([x[k] for k in few], longest)
        self.model.clone().fit(stacked, y[few]).predict(stacked)

    def _stacked(self, x: Cases) -> NDArray[np.float64]:
        return _stacked(x, self.longest)


def _stacked(x: Cases, steps: int) -> NDArray[np.float64]:
    out = np.zeros((len(x), x[0].shape[0], steps))
    for row, case in zip(out, x, strict=True):
        row[:, : case.shape[1]] = case[:, :steps]
    return out


def recurrent(kind: type[nn.LSTM] | type[nn.GRU], readout: str) -> Callable[[int], Build]:
    """Return how to build a plain recurrent network."""
    return lambda steps: partial(Recurrent, kind, readout)


def cnn(every_step: bool) -> Callable[[int], Build]:
    """Return how to build the convolutional network."""
    return lambda steps: partial(Convolutional, every_step)


def tcn(every_step: bool) -> Callable[[int], Build]:
    """Return how to build the TCN."""
    return lambda steps: partial(TemporalConvolutional, every_step, steps)
