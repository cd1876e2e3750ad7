"""HAPT (Reyes-Ortiz et al. 2016): activities of a person with a smartphone at the waist, from accelerometer and gyroscope.

30 users, 61 recordings at 50 Hz, 6 inputs, 12 activities and postural transitions. Users are split by the owners' list: 9 test;
of the other 21, users 27 to 30 validate and the rest trains. `hapt` classifies each labelled segment as a whole, at its end;
`hapt-frames` labels every moment of whole recordings, of which unlabelled ones count neither way.
Each sequence is shifted and scaled to mean 0 and variance 1 in every input.
"""

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from mistrnn.errors import UsageError
from mistrnn.tasks._recordings import Item, RecordingTask, prepare, standardised
from mistrnn.tasks._source import Source, finite_numbers, opened
from mistrnn.tasks._task import Split

VALIDATION_USERS = frozenset({27, 28, 29, 30})
SENSORS = ("acc", "gyro")
FILE = re.compile(r"(.*/)?RawData/(acc|gyro)_exp(\d+)_user(\d+)\.txt")
Segment = tuple[int, int, int]
"""Activity from 0 on, first sample, sample after the last."""


class Hapt(RecordingTask):
    """Name the activity of a segment at its end."""

    name = "hapt"
    summary = "name the activity of a segment of smartphone sensors (HAPT, users apart)"
    data_command = "mist data hapt --from HAPT.zip --dir OUT"
    settings: ClassVar[dict[str, str]] = {}
    data_names = ("HAPT",)
    default_steps = 2_000
    validation_interval = 10
    one_label = True


class HaptFrames(RecordingTask):
    """Name the activity at every moment of a recording."""

    name = "hapt-frames"
    summary = "name the activity at every moment of whole smartphone recordings (HAPT, users apart)"
    data_command = "mist data hapt --frames --from HAPT.zip --dir OUT"
    settings: ClassVar[dict[str, str]] = {}
    data_names = ("HAPT frames",)
    default_steps = 2_000
    validation_interval = 10


def prepare_hapt(
    place: Path, folder: Path, *, frames: bool, downsample: int = 1, say: Callable[[str], None] = lambda line: None
) -> None:
    """Prepare segments, or with `frames` whole recordings, from a folder or a zip archive; samples by the mean of so many."""
    if downsample < 1:
        raise UsageError(f"expected to downsample by a whole number >= 1, got {downsample}.")
    with opened(place) as source:
        names = {
            tuple(map(str.strip, match.groups()[1:])): name for name in source.names if (match := FILE.fullmatch(name))
        }
        if not names:
            raise UsageError(
                f"{place}: expected HAPT, with files such as RawData/acc_exp01_user01.txt, and found none."
            )
        base = next(iter(names.values())).rsplit("RawData/", 1)[0]
        classes = _classes(source, f"{base}activity_labels.txt")
        segments = _segments(source, f"{base}RawData/labels.txt", len(classes))
        test_users = {int(word) for word in source.text(f"{base}subject_id_test.txt").split()}
        items = []
        for experiment, user in sorted({key[1:] for key in names}, key=lambda pair: (int(pair[0]), int(pair[1]))):
            missing = [sensor for sensor in SENSORS if (sensor, experiment, user) not in names]
            if missing:
                raise UsageError(
                    f"{place}: {missing[0]}_exp{experiment}_user{user}.txt is missing; the file of the other sensor is present."
                )
            number = int(user)
            split: Split = "test" if number in test_users else "val" if number in VALIDATION_USERS else "train"
            own = segments.get((int(experiment), number), [])
            stamp = source.stamp(*(names[s, experiment, user] for s in SENSORS), f"{base}RawData/labels.txt")
            if not own:
                raise UsageError(f"{place}: experiment {experiment} of user {user} has no labels.")
            recording = _SensorFile(source, [names[s, experiment, user] for s in SENSORS], own, downsample)
            if frames:
                items.append(Item(f"exp{experiment}", f"user{user}", split, stamp, recording.whole))
            else:
                items += [
                    Item(f"exp{experiment}/{k}", f"user{user}", split, stamp, partial(recording.segment, k))
                    for k in range(len(own))
                ]
        origin = f"{place.resolve()}, downsampled by {downsample}"
        prepare(folder, "HAPT frames" if frames else "HAPT", classes, items, origin, say)


class _SensorFile:
    """One recording of both sensors, read once for all its segments."""

    newest: "ClassVar[_SensorFile | None]" = None
    """The one that is in memory: recordings come one after the other."""

    def __init__(self, source: Source, names: list[str], segments: list[Segment], downsample: int) -> None:
        self._source, self._names, self._segments, self._every = source, names, segments, downsample
        self._values: NDArray[np.float64] | None = None

    def _read(self) -> NDArray[np.float64]:  # [samples, 6]
        if self._values is None:
            if _SensorFile.newest is not None:
                _SensorFile.newest._values = None
            _SensorFile.newest = self
            parts = [_numbers(self._source, name) for name in self._names]
            if len(parts[0]) != len(parts[1]):
                raise UsageError(
                    f"{self._source.where(self._names[1])}: expected {len(parts[0])} samples, as many as {self._names[0]} "
                    f"has, got {len(parts[1])}."
                )
            self._values = np.concatenate(parts, axis=1)
            beyond = [segment for segment in self._segments if segment[2] > len(self._values)]
            if beyond:
                raise UsageError(
                    f"{self._source.where(self._names[0])}: expected at least {beyond[0][2]} samples, because a label ends "
                    f"there, got {len(self._values)}."
                )
        return self._values

    def segment(self, number: int) -> tuple[NDArray[np.float32], NDArray[np.int16]]:
        activity, begin, end = self._segments[number]
        values = _mean_of(self._read()[begin:end], self._every)
        return standardised(values), np.full(len(values), activity, dtype=np.int16)

    def whole(self) -> tuple[NDArray[np.float32], NDArray[np.int16]]:
        values = self._read()
        labels = np.full(len(values), -1, dtype=np.int16)
        for activity, begin, end in self._segments:
            labels[begin:end] = activity
        kept = _mean_of(values, self._every)
        return standardised(kept), labels[self._every // 2 :: self._every][: len(kept)]


def _mean_of(values: NDArray[np.float64], every: int) -> NDArray[np.float64]:
    """Return the means of so many samples each; a shorter rest at the end is left out, unless it is all there is."""
    if every == 1 or len(values) < every:
        return values
    count = len(values) // every
    found: NDArray[np.float64] = values[: count * every].reshape(count, every, -1).mean(1)
    return found


def _numbers(source: Source, name: str) -> NDArray[np.float64]:  # [samples, 3]
    lines = enumerate(source.text(name).splitlines(), start=1)
    rows = [finite_numbers(line.split(), 3, f"{source.where(name)}, line {number}") for number, line in lines]
    if not rows:
        raise UsageError(f"{source.where(name)}: expected samples, and there are none.")
    return np.array(rows)


def _classes(source: Source, name: str) -> list[str]:
    words = [line.split() for line in source.text(name).splitlines() if line.strip()]
    if [word[0] for word in words] != [str(k + 1) for k in range(len(words))] or any(len(word) != 2 for word in words):
        raise UsageError(f"{source.where(name)}: expected lines such as '1 WALKING', numbered from 1 on.")
    return [word[1] for word in words]


def _segments(source: Source, name: str, classes: int) -> dict[tuple[int, int], list[Segment]]:
    """Return the labelled segments by (experiment, user), in the order of time."""
    found: dict[tuple[int, int], list[Segment]] = {}
    for number, line in enumerate(source.text(name).splitlines(), start=1):
        where = f"{source.where(name)}, line {number}"
        words = line.split()
        if not words:
            continue
        if len(words) != 5 or not all(word.isdigit() for word in words):
            raise UsageError(f"{where}: expected 'experiment user activity begin end', got {line!r}.")
        experiment, user, activity, begin, end = map(int, words)
        if not 1 <= activity <= classes:
            raise UsageError(f"{where}: expected an activity from 1 to {classes}, got {activity}.")
        own = found.setdefault((experiment, user), [])
        if not 1 <= begin <= end or (own and begin <= own[-1][2]):
            raise UsageError(
                f"{where}: expected a label that begins after {own[-1][2] if own else 0}, got {begin} to {end}."
            )
        own.append((activity - 1, begin - 1, end))
    return found
