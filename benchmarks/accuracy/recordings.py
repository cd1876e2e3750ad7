"""Recordings of people: smartphone activities (HAPT), gestures, speech. Test users are never trained on.

HAPT segments: each labelled segment is cut into windows of 256 steps (5.12 s at 50 Hz) without overlap. A rest of 128 steps or
more is a case, and so is a whole segment that is shorter than 256 (most postural transitions). Of the training windows, 1,500
are drawn by a fixed seed. Owners' split: 21 users to train on, 9 to test; groups are users.

HAPT frames: whole recordings, means of 5 samples (10 Hz), the label of the middle sample; unlabelled steps are None.

Gesture Phase frames: velocities and accelerations (*_va3.csv), 5 phases; users a and b train (5 recordings), user c tests (2).
No groups: with two users to train on, holding one out for validation would cost half of the data.

TIMIT sample frames: cepstral coefficients and 40 folded phones as in `mistrnn.tasks.timit`, without SA sentences; of the 16
speakers in alphabetical order every fourth tests; groups are speakers.
"""

import csv
import json
import re
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

WINDOW, SHORTEST_REST = 256, 128
MOST_WINDOWS = 1_500
DOWNSAMPLED = 5
Cases = list[NDArray[np.float32]]
"""Arrays [channels, time]."""


class Part(NamedTuple):
    """Cases of one part: y is [cases], or a list of [time] with None where a step has no label."""

    x: Cases
    y: Any
    groups: NDArray[Any] | None = None


class Parts(NamedTuple):
    """Train and test part."""

    train: Part
    test: Part


class HaptRecording(NamedTuple):
    """One recording: values [samples, 6] and labelled segments (activity, first sample, sample after the last)."""

    user: int
    test: bool
    values: NDArray[np.float32]
    segments: list[tuple[str, int, int]]


def hapt_recordings(archive: Path) -> Iterator[HaptRecording]:
    """Read HAPT.zip, recording by recording."""
    with zipfile.ZipFile(archive) as file:

        def numbers(name: str, columns: int, kind: type = np.float32) -> NDArray[Any]:
            return np.array(file.read(name).split(), dtype=kind).reshape(-1, columns)

        names = {int(number): name.decode() for number, name in numbers("activity_labels.txt", 2, bytes)}
        test_users = set(numbers("subject_id_test.txt", 1, int)[:, 0].tolist())
        labels = numbers("RawData/labels.txt", 5, int)
        for experiment, user in sorted({(int(row[0]), int(row[1])) for row in labels}):
            stem = f"exp{experiment:02}_user{user:02}.txt"
            values = np.hstack([numbers(f"RawData/{sensor}_{stem}", 3) for sensor in ("acc", "gyro")])
            own = labels[(labels[:, 0] == experiment) & (labels[:, 1] == user)]
            segments = [(names[activity], begin - 1, end) for _, _, activity, begin, end in own.tolist()]
            yield HaptRecording(user, user in test_users, values, segments)


def hapt_segments(archive: Path) -> Parts:
    """Return windows of the labelled segments."""
    found: dict[bool, list[tuple[NDArray[np.float32], str, int]]] = {False: [], True: []}
    for recording in hapt_recordings(archive):
        for activity, begin, end in recording.segments:
            for first in range(begin, end, WINDOW):
                last = min(first + WINDOW, end)
                if first == begin or last - first >= SHORTEST_REST:
                    found[recording.test].append((recording.values[first:last].T.copy(), activity, recording.user))
    drawn = np.sort(np.random.RandomState(0).permutation(len(found[False]))[:MOST_WINDOWS])
    found[False] = [found[False][k] for k in drawn]
    train, test = (
        Part([x for x, _, _ in part], np.array([y for _, y, _ in part]), np.array([user for _, _, user in part]))
        for part in (found[False], found[True])
    )
    return Parts(train, test)


def hapt_frames(archive: Path) -> Parts:
    """Return whole recordings with a label for each step."""
    found: dict[bool, list[tuple[NDArray[np.float32], NDArray[Any], int]]] = {False: [], True: []}
    for recording in hapt_recordings(archive):
        labels = np.full(len(recording.values), None, dtype=object)
        for activity, begin, end in recording.segments:
            labels[begin:end] = activity
        steps = len(labels) // DOWNSAMPLED
        means = recording.values[: steps * DOWNSAMPLED].reshape(steps, DOWNSAMPLED, -1).mean(1)
        middles = labels[DOWNSAMPLED // 2 :: DOWNSAMPLED][:steps]
        found[recording.test].append((means.T.copy(), middles, recording.user))
    train, test = (
        Part([x for x, _, _ in part], [y for _, y, _ in part], np.array([user for _, _, user in part]))
        for part in (found[False], found[True])
    )
    return Parts(train, test)


def gesture_frames(folder: Path) -> Parts:
    """Return the recordings of users a and b, and those of c."""

    def part(users: str) -> Part:
        x, y = [], []
        for path in sorted(folder.glob("*_va3.csv")):
            if path.name[0] in users:
                with path.open(encoding="utf-8-sig") as file:
                    rows = list(csv.reader(file))[1:]
                x.append(np.array([row[:-1] for row in rows], dtype=np.float32).T.copy())
                y.append(np.array([row[-1].strip() for row in rows], dtype=object))
        return Part(x, y)

    return Parts(part("ab"), part("c"))


def timit_frames(archive: Path) -> Parts:
    """Return the sentences of 12 speakers, and those of 4 others."""
    from mistrnn.tasks.timit import prepare_timit

    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "timit"
        prepare_timit(archive, folder)
        described = json.loads((folder / "recordings.json").read_text())
        inputs, labels = np.load(folder / "inputs.npy"), np.load(folder / "labels.npy")
    recordings, classes = described["recordings"], described["classes"]
    ends = np.cumsum([recording["frames"] for recording in recordings])
    x = [frames.T.copy() for frames in np.split(inputs, ends[:-1])]
    y = [np.array([classes[k] for k in own], dtype=object) for own in np.split(labels, ends[:-1])]
    speakers = np.array([re.sub(r"/.*", "", recording["group"]) for recording in recordings])
    test = np.isin(speakers, sorted(set(speakers))[3::4])
    train_part, test_part = (
        Part([x[k] for k in own], [y[k] for k in own], speakers[own])
        for own in (np.flatnonzero(~test), np.flatnonzero(test))
    )
    return Parts(train_part, test_part)
