"""Figure 2: how much of the gradient of the loss arrives at states tau steps before it, on permuted MNIST.

The paper draws the norms of the gradients by the hidden states of a simple RNN, an LSTM, a Clockwork RNN and a MIST RNN,
averaged over a batch, "early in training". Here: the sizes of table 1, each at the best learning rate that the paper gives
there; before the first step and at four points of the training; the mean over a validation batch, and median and quartiles
over 10 trials with different weights and data orders. NARX and GRU, of which the paper draws no gradients, have as many
parameters as the LSTM; NARX trains at the rate of the simple RNN, the GRU at that of the LSTM.

The reach of a trial is the largest tau at which its norm is at least some share (10%, 1%, 0.1%) of its largest.

Time: about 30 minutes on 2 CPU cores. The results and what they say about the paper are in results/figure2.
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

STEPS, TRIALS = 200, 10
MEASUREMENTS = 4
"""How often the norms are measured in training; and once before it."""
SHARES = (0.1, 0.01, 0.001)
"""Shares of the largest norm whose reach is reported."""


@dataclass(frozen=True)
class Row:
    """A layer of the figure: its size, and its learning rate, as in table 1 of the paper if the paper draws it."""

    layer: str
    hidden: int
    log10_learning_rate: float

    @property
    def label(self) -> str:
        """The layer's name and size."""
        return f"{LAYERS[self.layer].__name__}, {self.hidden} units"


PAPER_ROWS = (Row("rnn", 198, -2.27), Row("lstm", 100, -1.11), Row("clockwork", 256, -1.91), Row("mist", 139, -1.35))
OTHER_ROWS = (Row("narx", 71, -2.27), Row("gru", 115, -1.11))
ROWS = (*PAPER_ROWS, *OTHER_ROWS)


@dataclass(frozen=True)
class Spread:
    """Median and quartiles over trials."""

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class Curve:
    """The gradient norms of one layer's trials, at every point of training at which they were measured."""

    row: Row
    by_step: dict[int, Tensor]
    """[trials, tau] by the number of steps trained."""

    @property
    def norms(self) -> Tensor:
        """[trials, tau] after training."""
        return self.by_step[max(self.by_step)]

    @property
    def median(self) -> Tensor:
        """[tau], over the trials after training."""
        return self.norms.quantile(0.5, 0)

    @property
    def quartiles(self) -> Tensor:
        """[2, tau], over the trials after training."""
        return self.norms.quantile(torch.tensor([0.25, 0.75], dtype=self.norms.dtype), 0)

    def reach(self, share: float = 0.01, step: int | None = None) -> Spread:
        """Return how far back a trial's norm is at least this share of its largest, after `step` steps or all."""
        found = self.norms if step is None else self.by_step[step]
        reaches = torch.tensor([reach(norms, share) for norms in found], dtype=torch.float64)
        low, median, high = reaches.quantile(torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64)).tolist()
        return Spread(median, low, high)


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
        gradients_every=max(1, steps // MEASUREMENTS),
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
    """Run the missing trials of the rows' studies and return their curves."""
    curves = []
    for row in rows:
        own, place = study(row, steps=steps, trials=trials, seed=seed), folder / row.layer
        say(f"{row.label}: {trials} trials, {steps} steps at learning rate {own.learning_rate:.4f}")
        run_study(own, place, row=f"figure2/{row.layer}", device=device, task=task, say=say, report=report, stop=stop)
        curve = read(row, Recorded(place))
        if curve is None or steps not in curve.by_step:
            raise UsageError(f"{row.label}: no trial came to step {steps}; see {place / 'trials.jsonl'}")
        if len(curve.norms) < trials:
            say(f"{row.label}: {trials - len(curve.norms)} of {trials} trials diverged or crashed and are left out")
        curves.append(curve)
    return curves


def read(row: Row, recorded: Recorded) -> Curve | None:
    """Return the curve of a recorded study, of the trials with finite norms; None if none was measured."""
    measured = recorded.gradients()
    by_step = {}
    for step in sorted(set(measured["step"].tolist())) if measured else []:
        norms = measured["norms"][measured["step"] == step]
        if len(finite := norms[norms.isfinite().all(1)]):
            by_step[step] = finite
    return Curve(row, by_step) if by_step else None


def sentence(curves: Sequence[Curve], steps: int) -> str:
    """Return a one-sentence summary of the figure."""
    parts = []
    for curve in curves:
        found = curve.reach()
        name = curve.row.label.replace(", ", " with ")
        parts.append(f"{found.median:.0f} steps in {name} (quartiles {found.low:.0f} and {found.high:.0f})")
    return (
        f"After {steps} steps of training, at least 1% of the largest gradient norm still arrives, in the median trial, "
        f"{', '.join(parts[:-1])} and {parts[-1]} before the loss."
    )


def reach_rows(curves: Sequence[Curve]) -> list[dict[str, object]]:
    """Return the reach of each layer by step and share as rows of a table: median and quartiles over the trials."""
    rows: list[dict[str, object]] = []
    for curve in curves:
        for step, norms in curve.by_step.items():
            for share in SHARES:
                found = curve.reach(share, step)
                spread = {"median": found.median, "low_quartile": found.low, "high_quartile": found.high}
                rows.append(
                    {"layer": curve.row.layer, "step": step, "share": share, "trials": len(norms)}
                    | {name: f"{value:g}" for name, value in spread.items()}
                )
    return rows
