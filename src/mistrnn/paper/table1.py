"""Table 1: sequential permuted MNIST, test error of the top 5 of 50 trials by validation error.

Hardware and time: one row of 40,000 to 80,000 parameters takes 4 to 9 minutes on one NVIDIA H200, the rows with 512 units an
hour or so; on 2 CPU cores a row takes days, so shorten it there: `--rows mist-139,lstm-100 --trials 4 --steps 30`. Expect the
published errors within half a percent or so from seed to seed.
"""

from collections.abc import Sequence
from typing import Any

from mistrnn.paper.comparison import Comparison, Published, Row, StudyResults, compare
from mistrnn.tasks import PUBLISHED_MNIST
from mistrnn.training import Study

TITLE = "Table 1: sequential permuted MNIST"


def _row(
    layer: str, hidden: int, name: str, error: float, deviation: float | None, *rate: float, **settings: Any
) -> Row:
    last = settings.get("last_pixels")
    return Row(
        table="table1",
        key=f"{layer}-{hidden}" + (f"-last-{last}" if last else ""),
        label=f"{name}, {hidden} units" + (f", last {last} pixels" if last else ""),
        study=Study(task="pmnist", layer=layer, hidden=hidden, task_settings=settings),
        published=Published(error / 100, None if deviation is None else deviation / 100, _pair(rate)),
    )


def _pair(values: tuple[float, ...]) -> tuple[float, float] | None:
    return (values[0], values[1]) if values else None


ROWS = (
    _row("rnn", 198, "Simple RNN", 12.9, 0.8, -2.27, 0.10),
    _row("lstm", 100, "LSTM", 10.4, 0.7, -1.11, 0.11),
    _row("clockwork", 256, "Clockwork RNN", 15.7, 1.2, -1.91, 0.23),
    _row("mist", 139, "MIST RNN", 5.5, 0.2, -1.35, 0.08),
    _row("lstm", 139, "LSTM", 8.8, 0.6, -0.90, 0.26),
    _row("lstm", 512, "LSTM", 7.6, 0.7, -1.08, 0.18),
    _row("mist", 512, "MIST RNN", 4.5, 0.1, -1.19, 0.13),
)

CONTROL_ROWS = (
    _row("lstm", 512, "LSTM", 7.4, None, last_pixels=200),
    _row("mist", 512, "MIST RNN", 6.0, None, last_pixels=200),
)
"""The control in the paper's text: only the last 200 pixels are read. It gives no spread."""


def comparison(row: Row, seeds: Sequence[StudyResults]) -> Comparison:
    """Compare a row with the published one."""
    return compare(row, seeds, PUBLISHED_MNIST)
