"""Recordings as people have them, in memory and in files, and a task of one's own on such arrays."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from mistrnn.tasks import Recordings

CHANNELS = ("ax", "ay", "az")
GROUPS = 6


def recordings(count: int = 36, *, seed: int = 0) -> tuple[list[NDArray[Any]], list[str], list[str]]:
    """Return cases [channels, time], which rise or fall, whether they do, and whose they are."""
    random = np.random.RandomState(seed)
    words = ["fall", "rise"]
    labels = [words[k % 2] for k in range(count)]
    x = []
    for label in labels:
        slope = np.linspace(-1, 1, random.randint(8, 20)) * (1 if label == "rise" else -1)
        x.append(np.stack([random.randn(len(slope)), 5 + slope + 0.1 * random.randn(len(slope)), 3 * slope**2]))
    return x, labels, [f"user-{k // 2 % GROUPS}" for k in range(count)]


def labels_of_steps(x: list[NDArray[Any]]) -> list[NDArray[Any]]:
    """Return a label for each step, none for the first two."""
    found = []
    for case in x:
        labels = np.where(case[1] > 5, "high", "low").astype(object)
        labels[:2] = None
        found.append(labels)
    return found


def write_folder(place: Path, *, rows: bool = False) -> Path:
    """Write the recordings as CSV files, with a label for each row or a table of labels beside them."""
    x, y, groups = recordings()
    place.mkdir(parents=True)
    for number, (case, steps) in enumerate(zip(x, labels_of_steps(x), strict=True)):
        frame = pd.DataFrame(dict(zip(CHANNELS, case, strict=True)))
        if rows:
            frame["state"] = steps
        frame.to_csv(place / f"{number:02}.csv", index=False)
    if not rows:
        names = [f"{number:02}.csv" for number in range(len(x))]
        pd.DataFrame({"file": names, "label": y, "user": groups}).to_csv(place / "labels.csv", index=False)
    return place


class OwnRecordings(Recordings):
    """A task on arrays that the class makes or reads by itself."""

    name, summary = "own-recordings", "recordings of a test"
    needs_data, settings = False, {"count": "how many there are"}
    default_steps, validation_interval = 6, 3

    def __init__(self, count: int = 36, seed: int = 0) -> None:
        x, _, groups = recordings(count)
        super().__init__(x, labels_of_steps(x), groups, seed=seed)
