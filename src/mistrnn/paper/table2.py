"""Table 2: surgical maneuvers on MISTIC-SL, one user held out at a time; mean and deviation of the frame error over users.

The hyperparameters are those of DiPietro et al. 2016, which the paper takes over: 1024 units, dropout of 0.5 (here before the
readout), batches of 5, 80 epochs of plain gradient descent at a learning rate of 1, halved every 5 epochs from the 40th on,
gradient norms of at most 1, weights uniform in ±0.1. One trial for each user, whose last parameters are tested.

MISTIC-SL is not public, and JIGSAWS must be asked for. Gesture Phase Segmentation (UCI, 3 users) stands in, with 64 units and
without dropout: the results are about that data, and no published values exist for it.

The LSTM of 2016 has peepholes: `peephole_lstm` repeats it. The paper's own LSTM, `lstm`, has none.

The protocol of the code of 2016 differs, and `Options` has its choices: docs/explanation/protocol.md lists them.

Hardware and time: not run on MISTIC-SL or JIGSAWS; the stand-in takes minutes on 2 CPU cores.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from mistrnn.errors import UsageError
from mistrnn.paper.comparison import NOT_COMPARABLE, Published, kind_of, words_of
from mistrnn.tasks import IGNORED, RecordingTask
from mistrnn.tasks.surgical import segment_edit_distance
from mistrnn.training import Model, Study
from mistrnn.training.study import WITH_FORGET_GATE

TITLE = "Table 2: surgical maneuver recognition on MISTIC-SL"
DATA = "MISTIC-SL"
STAND_IN = "Gesture Phase Segmentation"
EPOCHS, BATCH, USERS = 80, 5, 15
VALIDATION_USERS = ("03", "04", "10", "30")
"""The users of MISTIC-SL on whom the hyperparameters were chosen in 2016."""

ROWS = {
    "rnn": ("Simple RNN", Published(0.380, 0.062)),
    "lstm": ("LSTM", Published(0.139, 0.030)),
    "peephole_lstm": ("LSTM with peepholes", Published(0.122, 0.027)),
    "clockwork": ("Clockwork RNN", Published(0.225, 0.050)),
    "mist": ("MIST RNN", Published(0.141, 0.039)),
}


@dataclass(frozen=True)
class Options:
    """Choices of the code of 2016; the defaults are the paper's.

    Args:
        validation_users: users who are trained on and never held out.
        forget_bias: the initial bias of the forget gate; the paper has 1, the code of 2016 has 0.
        wrap: repeat short recordings of a batch up to the longest, each time from a fresh state, instead of padding them.
        sweeps: batches to train on, with the learning rate halved at every 12th of them in the second half; 80 epochs, with
            a halving at every 5th, if left out.
    """

    validation_users: tuple[str, ...] = ()
    forget_bias: float | None = None
    wrap: bool = False
    sweeps: int | None = None

    def held_out(self, users: Sequence[str]) -> list[str]:
        """Return the users who are held out in turn."""
        unknown = [user for user in self.validation_users if user not in users]
        if unknown:
            raise UsageError(f"expected validation users among {', '.join(users)}, got {', '.join(unknown)}.")
        return [user for user in users if user not in self.validation_users]


PAPER_OPTIONS = Options()
OPTIONS_OF_2016 = Options(VALIDATION_USERS, forget_bias=0.0, wrap=True, sweeps=600)


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


def study(
    layer: str,
    user: str,
    task: RecordingTask,
    *,
    seed: int = 0,
    steps: int | None = None,
    options: Options = PAPER_OPTIONS,
) -> Study:
    """Return the study of one layer with one user held out; the task says how many recordings an epoch has."""
    per_epoch = max(1, task.sizes["train"] // BATCH)
    total = steps or options.sweeps or EPOCHS * per_epoch
    made = Study(
        task="surgical",
        layer=layer,
        hidden=1024,
        trials=1,
        steps=total,
        seed=seed,
        task_settings={"user": user} | ({"wrap": True} if options.wrap else {}),
        learning_rate=1.0,
        batch_size=min(BATCH, task.sizes["train"]),
        momentum=0.0,
        schedule="halving" if options.sweeps is None else "halving-in-12ths",
        initialization="uniform",
        forget_bias=options.forget_bias if layer in WITH_FORGET_GATE else None,
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


def protocol_of(layer: str) -> Options:
    """Return the options behind a row's published number: that of the LSTM with peepholes is the one of 2016."""
    return OPTIONS_OF_2016 if layer == "peephole_lstm" else PAPER_OPTIONS


def verdict(layer: str, result: Result, *, shortened: bool, options: Options = PAPER_OPTIONS) -> str:
    """Return the verdict on a result on MISTIC-SL."""
    theirs = protocol_of(layer)
    users = USERS - len(theirs.validation_users)
    if shortened:
        return f"{NOT_COMPARABLE}: fewer steps than published"
    if options != theirs:
        source = "2016" if theirs == OPTIONS_OF_2016 else "the paper"
        return f"{NOT_COMPARABLE}: the published number has the options of {source}"
    if len(result.frame_errors) != users:
        return f"{NOT_COMPARABLE}: {len(result.frame_errors)} of {users} users"
    published = ROWS[layer][1]
    difference = result.frame_error[0] - published.error
    return words_of(kind_of(difference, published), difference)
