"""Table 2: surgical maneuvers on MISTIC-SL, one user held out at a time; mean and deviation of the frame error over users.

The hyperparameters are those of DiPietro et al. 2016, which the paper takes over: 1024 units, dropout of 0.5 (here before the
readout), batches of 5, 80 epochs of plain gradient descent at a learning rate of 1, halved every 5 epochs from the 40th on,
gradient norms of at most 1, weights uniform in ±0.1. One trial for each user, whose last parameters are tested.

MISTIC-SL is not public, and JIGSAWS must be asked for. Gesture Phase Segmentation (UCI, 3 users) stands in, with 64 units and
without dropout: what comes out is about that data, and nothing is published to compare it with.

What else differs from the code of 2016, as far as it is known: its dropout also acts on the inputs, its loss is the mean over a
batch (here 5 times that, before clipping), its error is averaged over sequences (here over frames), its edit distance is a
count (here over the longer sequence), and its LSTM has peepholes.

Hardware and time: not run on MISTIC-SL or JIGSAWS; the stand-in takes minutes on 2 CPU cores.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from mistrnn.paper.comparison import NOT_COMPARABLE, Published, kind_of, words_of
from mistrnn.tasks import IGNORED
from mistrnn.tasks._recordings import RecordingTask
from mistrnn.tasks.surgical import segment_edit_distance
from mistrnn.training import Model, Study

TITLE = "Table 2: surgical maneuver recognition on MISTIC-SL"
DATA = "MISTIC-SL"
STAND_IN = "Gesture Phase Segmentation"
EPOCHS, BATCH, USERS = 80, 5, 15

ROWS = {
    "rnn": ("Simple RNN", Published(0.380, 0.062)),
    "lstm": ("LSTM", Published(0.139, 0.030)),
    "clockwork": ("Clockwork RNN", Published(0.225, 0.050)),
    "mist": ("MIST RNN", Published(0.141, 0.039)),
}


@dataclass(frozen=True)
class Result:
    """One layer over all users."""

    label: str
    frame_errors: tuple[float, ...]
    """By user."""
    edit_distances: tuple[float, ...]

    @property
    def frame_error(self) -> tuple[float, float]:
        """Mean and deviation over users."""
        return _over_users(self.frame_errors)

    @property
    def edit_distance(self) -> tuple[float, float]:
        """Mean and deviation over users."""
        return _over_users(self.edit_distances)


def _over_users(values: Sequence[float]) -> tuple[float, float]:
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0


def study(layer: str, user: str, task: RecordingTask, *, seed: int = 0, steps: int | None = None) -> Study:
    """Return the study of one layer with one user held out; the task says how many recordings an epoch has."""
    per_epoch = max(1, task.sizes["train"] // BATCH)
    total = EPOCHS * per_epoch if steps is None else steps
    made = Study(
        task="surgical",
        layer=layer,
        hidden=1024,
        trials=1,
        steps=total,
        seed=seed,
        task_settings={"user": user},
        learning_rate=1.0,
        batch_size=min(BATCH, task.sizes["train"]),
        momentum=0.0,
        schedule="halving",
        initialization="uniform",
        readout_dropout=0.5,
        keep="last",
        validate_every=max(1, total // 8),
    )
    return replace(made, hidden=64, readout_dropout=0.0) if task.data_name == STAND_IN else made


def mean_edit_distance(model: Model, task: RecordingTask) -> float:
    """Return the mean segment edit distance over the recordings that are tested on."""
    found = []
    for k in range(task.sizes["test"]):
        inputs, targets = task.batch("test", torch.tensor([k]), next(model.parameters()).dtype)
        there = targets[:, 0] != IGNORED
        with torch.no_grad():
            said = model(inputs)[0][:, 0].argmax(-1)
        found.append(segment_edit_distance(targets[there, 0].tolist(), said[there].tolist()))
    return statistics.fmean(found)


def verdict(layer: str, result: Result, *, shortened: bool) -> str:
    """Return what the published spread says about a result on MISTIC-SL."""
    if shortened or len(result.frame_errors) != USERS:
        users = f"{len(result.frame_errors)} of {USERS} users"
        return f"{NOT_COMPARABLE}: {'fewer steps than published' if shortened else users}"
    published = ROWS[layer][1]
    difference = result.frame_error[0] - published.error
    return words_of(kind_of(difference, published), difference)
