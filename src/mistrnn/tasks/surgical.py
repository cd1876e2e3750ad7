"""Gestures from the motion of hands: JIGSAWS (Gao et al. 2014), MISTIC-SL, and stand-ins for them.

A label for every frame; one user's recordings are tested on, all others' are trained on. There is no validation set: nothing is
chosen by it, and validation is the error on the training recordings. Each recording is shifted and
scaled to mean 0 and variance 1 in every input.

JIGSAWS, Suturing: 14 of the 76 kinematic columns (position, velocity and gripper angle of both hands on the patient's side),
every 6th frame (5 Hz), frames without a gesture left out; 8 users, 10 gestures.
The standard form, for MISTIC-SL and one's own: a CSV file for each recording, USER_TRIAL.csv, with a column `label` and
columns of numbers.
Gesture Phase Segmentation (Madeo et al. 2013, UCI): 7 recordings of 3 users, 18 coordinates of hands, wrists, head and
spine, 5 phases.
"""

import csv
import io
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from mistrnn.errors import UsageError
from mistrnn.tasks._recordings import Frames, Item, RecordingEntry, RecordingTask, prepare, standardised
from mistrnn.tasks._source import Source, finite_numbers, opened
from mistrnn.tasks._task import Split

JIGSAWS = re.compile(r"(.*/)?Suturing/kinematics/AllGestures/Suturing_([A-Z])(\d{3})\.txt")
JIGSAWS_COLUMNS = [*range(38, 41), *range(50, 53), 56, *range(57, 60), *range(69, 72), 75]
"""Counted from 0."""
JIGSAWS_GESTURES = ("G1", "G2", "G3", "G4", "G5", "G6", "G8", "G9", "G10", "G11")
JIGSAWS_EVERY = 6
JIGSAWS_WITHOUT_LABELS = ("H002",)
STANDARD = re.compile(r"(?:.*/)?([A-Za-z0-9]+)_(\w+)\.csv")
GESTURE_PHASE = re.compile(r"(?:.*/)?([a-z])(\d)_raw\.csv")
PHASES = ("Rest", "Preparation", "Stroke", "Hold", "Retraction")
SPELLINGS = {"Preparação": "Preparation"}
"""One label of the published files is in Portuguese."""


class Surgical(RecordingTask):
    """Name the gesture of every frame of a person that was not trained on."""

    name = "surgical"
    summary = "name the gesture of every frame, with one user held out (JIGSAWS, MISTIC-SL, Gesture Phase)"
    data_command = "mist data surgical --from DIR --dir OUT"
    settings: ClassVar[dict[str, str]] = {
        "user": "whose recordings are tested on (default: the first user)",
        "wrap": "repeat short recordings to the length of the longest in a batch (default: false)",
    }
    default_steps = 560
    validation_interval = 70

    def __init__(self, data: Path, user: str | None = None, wrap: bool = False, seed: int = 0) -> None:
        if not isinstance(wrap, bool):
            raise UsageError(f"surgical: expected wrap to be true or false, got {wrap!r}.")
        self.user, self.wrap = user, wrap
        super().__init__(data, seed)
        self.data_note = f"The recordings are {self.data_name}; validation uses the training recordings."

    def split(self, recordings: Sequence[RecordingEntry]) -> dict[Split, list[int]]:
        """Return one user's recordings to test on, and all others' to train on."""
        users = sorted({recording.group for recording in recordings})
        held_out = users[0] if self.user is None else self.user
        if held_out not in users:
            raise UsageError(f"surgical: expected a user among {', '.join(users)}, got {held_out!r}.")
        others = [k for k, recording in enumerate(recordings) if recording.group != held_out]
        return {"train": others, "val": others, "test": [k for k, r in enumerate(recordings) if r.group == held_out]}


def segments(labels: Sequence[int]) -> list[int]:
    """Return labels with repetitions left out.

    >>> segments([3, 3, 1, 1, 1, 3])
    [3, 1, 3]
    """
    return [label for k, label in enumerate(labels) if k == 0 or label != labels[k - 1]]


def segment_edit_distance(truth: Sequence[int], found: Sequence[int]) -> float:
    """Return how many segments must be inserted, removed or renamed, over the number of segments of the longer of the two.

    >>> segment_edit_distance([1, 1, 2, 2, 3], [1, 2, 2, 2, 2])
    0.3333333333333333
    """
    a, b = segments(truth), segments(found)
    row = list(range(len(b) + 1))
    for i, own in enumerate(a, start=1):
        before, row[0] = row[0], i
        for j, other in enumerate(b, start=1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (own != other))
    return row[-1] / max(len(a), len(b), 1)


def prepare_surgical(place: Path, folder: Path, say: Callable[[str], None] = lambda line: None) -> None:
    """Prepare JIGSAWS, Gesture Phase Segmentation, or recordings in the standard form, from a folder or a zip archive."""
    with opened(place) as source:
        if any(JIGSAWS.fullmatch(name) for name in source.names):
            prepare(
                folder, "JIGSAWS Suturing", JIGSAWS_GESTURES, _jigsaws_items(source, say), str(place.resolve()), say
            )
            return
        raw = [(name, match) for name in source.names if (match := GESTURE_PHASE.fullmatch(name))]
        if raw:
            read = partial(_table, source, column="phase", classes=PHASES, left_out=("timestamp",))
            items = [Item(f"{m[1]}{m[2]}", m[1], None, source.stamp(name), partial(read, name)) for name, m in raw]
            prepare(folder, "Gesture Phase Segmentation", PHASES, items, str(place.resolve()), say)
            return
        found = [(name, match) for name in source.names if (match := STANDARD.fullmatch(name))]
        if not found:
            raise UsageError(
                f"{place}: expected JIGSAWS (Suturing/kinematics/AllGestures/…), Gesture Phase Segmentation (a1_raw.csv …) or "
                "recordings such as USER_TRIAL.csv, and found none of them."
            )
        other = [name for name in source.names if name.lower().endswith(".csv") and not STANDARD.fullmatch(name)]
        if other:
            raise UsageError(
                f"{source.where(other[0])}: expected a name such as USER_TRIAL.csv, in letters and digits."
            )
        columns = _rows(source, found[0][0], "label")[0]
        for name, _ in found:
            if (own := _rows(source, name, "label")[0]) != columns:
                raise UsageError(
                    f"{source.where(name)}: expected the columns {', '.join(columns)}, got {', '.join(own)}."
                )
        classes = sorted({label for name, _ in found for label in _labels(source, name, "label")})
        read = partial(_table, source, column="label", classes=classes, left_out=())
        items = [Item(f"{m[1]}_{m[2]}", m[1], None, source.stamp(name), partial(read, name)) for name, m in found]
        prepare(folder, place.resolve().stem, classes, items, str(place.resolve()), say)


def _jigsaws_items(source: Source, say: Callable[[str], None]) -> list[Item]:
    items = []
    for name in source.names:
        if match := JIGSAWS.fullmatch(name):
            if match[2] + match[3] in JIGSAWS_WITHOUT_LABELS:
                say(f"{match[2]}{match[3]} is left out: it was never labelled")
                continue
            labels = f"{match[1] or ''}Suturing/transcriptions/Suturing_{match[2]}{match[3]}.txt"
            if labels not in source.names:
                raise UsageError(f"{source.where(name)}: its labels are missing ({labels}).")
            items.append(
                Item(
                    f"{match[2]}{match[3]}",
                    match[2],
                    None,
                    source.stamp(name, labels),
                    partial(_jigsaws, source, name, labels),
                )
            )
    return items


def _jigsaws(source: Source, name: str, transcription: str) -> Frames:
    """Return the labelled frames of a trial, every sixth of them."""
    rows = []
    for number, line in enumerate(source.text(name).splitlines(), start=1):
        row = finite_numbers(line.split(), 76, f"{source.where(name)}, line {number}")
        rows.append([row[k] for k in JIGSAWS_COLUMNS])
    labels = np.full(len(rows), -1, dtype=np.int16)
    for number, line in enumerate(source.text(transcription).splitlines(), start=1):
        where = f"{source.where(transcription)}, line {number}"
        words = line.split()
        if not words:
            continue
        if len(words) != 3 or not (words[0].isdigit() and words[1].isdigit()):
            raise UsageError(f"{where}: expected 'begin end gesture', got {line!r}.")
        begin, end = int(words[0]), int(words[1])
        if words[2] not in JIGSAWS_GESTURES:
            raise UsageError(f"{where}: unknown gesture {words[2]!r}.")
        if not 1 <= begin <= end <= len(rows) or (labels[begin - 1 : end] >= 0).any():
            raise UsageError(
                f"{where}: expected frames from 1 to {len(rows)} that have no label yet, got {begin} to {end}."
            )
        labels[begin - 1 : end] = JIGSAWS_GESTURES.index(words[2])
    labelled = labels >= 0
    if not labelled.any():
        raise UsageError(f"{source.where(transcription)}: expected labels, and there are none.")
    return standardised(np.array(rows)[labelled][::JIGSAWS_EVERY]), labels[labelled][::JIGSAWS_EVERY]


def _rows(source: Source, name: str, label: str) -> tuple[list[str], list[list[str]]]:
    """Return the header and the rows of a CSV file that has a column of labels."""
    rows = list(csv.reader(io.StringIO(source.text(name))))
    header = [word.strip() for word in rows[0]] if rows else []
    if label not in header:
        raise UsageError(f"{source.where(name)}: expected a column {label!r}, got {', '.join(header) or 'nothing'}.")
    if len(rows) < 2:
        raise UsageError(f"{source.where(name)}: expected frames, and there are none.")
    for number, row in enumerate(rows[1:], start=2):
        if len(row) != len(header):
            raise UsageError(f"{source.where(name)}, line {number}: expected {len(header)} columns, got {len(row)}.")
    return header, rows[1:]


def _labels(source: Source, name: str, column: str) -> set[str]:
    header, rows = _rows(source, name, column)
    return {row[header.index(column)] for row in rows}


def _table(source: Source, name: str, column: str, classes: Sequence[str], left_out: Sequence[str]) -> Frames:
    """Return the frames of one CSV file: its columns of numbers, and its labels."""
    header, rows = _rows(source, name, column)
    at = header.index(column)
    chosen = [k for k, title in enumerate(header) if k != at and title not in left_out]
    values: list[list[float]] = []
    labels: list[int] = []
    for number, row in enumerate(rows, start=2):
        where = f"{source.where(name)}, line {number}"
        values.append(finite_numbers([row[k] for k in chosen], len(chosen), where))
        label = SPELLINGS.get(row[at], row[at])
        if label not in classes:
            raise UsageError(f"{where}: expected a label among {', '.join(classes)}, got {row[at]!r}.")
        labels.append(list(classes).index(label))
    found: NDArray[np.float64] = np.array(values)
    return standardised(found), np.array(labels, dtype=np.int16)
