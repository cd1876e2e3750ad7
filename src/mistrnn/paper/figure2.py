"""Figure 2: how much of the gradient of the loss arrives at states tau steps before it, on permuted MNIST.

The paper draws the norms of the gradients by the hidden states of a simple RNN, an LSTM, a Clockwork RNN and a MIST RNN,
averaged over a batch, during training. Here: the sizes of table 1, each at the best learning rate that the paper gives there,
after the same number of steps; the mean over a validation batch and over trials with different weights and data orders.

Time: about 10 minutes on 2 CPU cores. Expect (results/figure2): LSTM falls by six orders of magnitude over the image, a simple
RNN by two to three; MIST falls to some permille at once, with peaks of ten times that at its delays and their sums, and falls
no further; Clockwork stays above 10%.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from mistrnn.analysis import reach
from mistrnn.errors import UsageError
from mistrnn.layers import LAYERS
from mistrnn.tasks import Task
from mistrnn.training import Progress, Recorded, Study, run_study

STEPS, TRIALS = 200, 3


@dataclass(frozen=True)
class Row:
    """A layer of the figure: its size and best learning rate as in table 1 of the paper."""

    layer: str
    hidden: int
    log10_learning_rate: float

    @property
    def label(self) -> str:
        """The layer's name and size."""
        return f"{LAYERS[self.layer].__name__}, {self.hidden} units"


ROWS = (Row("rnn", 198, -2.27), Row("lstm", 100, -1.11), Row("clockwork", 256, -1.91), Row("mist", 139, -1.35))


@dataclass(frozen=True)
class Curve:
    """What one layer's trials measured at the end."""

    row: Row
    norms: Tensor
    """[trials, tau]"""

    @property
    def mean(self) -> Tensor:
        """[tau], over the trials."""
        return self.norms.mean(0)

    @property
    def reach(self) -> int:
        """The largest tau that still gets 1% of the largest norm."""
        return reach(self.mean)


def study(row: Row, *, steps: int = STEPS, trials: int = TRIALS, seed: int = 0) -> Study:
    """Return the study behind one curve."""
    return Study(
        task="pmnist",
        layer=row.layer,
        hidden=row.hidden,
        trials=trials,
        steps=steps,
        seed=seed,
        learning_rate=10**row.log10_learning_rate,
        validate_every=steps,
        gradients_every=steps,
    )


def run(
    folder: Path,
    task: Task,
    *,
    steps: int = STEPS,
    trials: int = TRIALS,
    seed: int = 0,
    device: str = "auto",
    rows: Sequence[Row] = ROWS,
    say: Callable[[str], None] = lambda line: None,
    report: Callable[[Progress], None] = lambda progress: None,
    stop: Callable[[], bool] = lambda: False,
) -> list[Curve]:
    """Run what is missing of the four studies and return their curves."""
    curves = []
    for row in rows:
        own, place = study(row, steps=steps, trials=trials, seed=seed), folder / row.layer
        say(f"{row.label}: {trials} trials, {steps} steps at learning rate {own.learning_rate:.4f}")
        run_study(own, place, device=device, task=task, say=say, report=report, stop=stop)
        measured = Recorded(place).gradients()
        norms = measured["norms"][measured["step"] == steps] if measured else torch.zeros(0, task.steps)
        finite = norms[norms.isfinite().all(1)]
        if not len(finite):
            raise UsageError(f"{row.label}: no trial came to step {steps}; see {place / 'trials.jsonl'}")
        if len(finite) < trials:
            say(f"{row.label}: {trials - len(finite)} of {trials} trials diverged or crashed and are left out")
        curves.append(Curve(row, finite))
    return curves


def sentence(curves: Sequence[Curve], steps: int) -> str:
    """Return what the figure shows in one sentence."""
    parts = [f"{curve.reach} steps in {curve.row.label.replace(', ', ' with ')}" for curve in curves]
    return (
        f"After {steps} steps of training, at least 1% of the largest gradient norm still arrives "
        f"{', '.join(parts[:-1])} and {parts[-1]} before the loss."
    )
