"""Table 3: TIMIT, phones frame by frame; test error of the top 5 of 50 trials by validation error.

TIMIT must be asked for (LDC93S1). With the sample of it that comes with NLTK, 16 speakers, the same studies run as a stand-in:
the results are about that sample, and no published values exist for it.

Hardware and time: not run in full yet; the stand-in, 10 trials × 300 steps of each row, takes 9 minutes on 2 CPU cores.
"""

from collections.abc import Sequence
from dataclasses import replace

from mistrnn.paper.comparison import Comparison, Published, Row, StudyResults, compare
from mistrnn.training import Study

TITLE = "Table 3: phoneme recognition on TIMIT"
DATA = "TIMIT"
STAND_IN = "TIMIT sample (NLTK)"


def _row(layer: str, hidden: int, name: str, error: float, deviation: float, rate: tuple[float, float]) -> Row:
    study = Study(task="timit", layer=layer, hidden=hidden)
    return Row(
        "table3", f"{layer}-{hidden}", f"{name}, {hidden} units", study, Published(error / 100, deviation / 100, rate)
    )


ROWS = (
    _row("rnn", 197, "Simple RNN", 34.1, 0.3, (-1.09, 0.25)),
    _row("lstm", 100, "LSTM", 32.1, 0.2, (-0.63, 0.06)),
    _row("clockwork", 248, "Clockwork RNN", 38.2, 0.4, (-1.03, 0.31)),
    _row("mist", 139, "MIST RNN", 32.0, 0.3, (-0.91, 0.16)),
)
STAND_IN_ROWS = tuple(replace(row, table="table3-stand-in", study=replace(row.study, batch_size=20)) for row in ROWS)
"""The same inputs and classes, so the same sizes; smaller batches, because the sample has 80 sentences to train on."""


def comparison(row: Row, seeds: Sequence[StudyResults]) -> Comparison:
    """Compare a row with the published one."""
    return compare(row, seeds, f"{DATA}|")
