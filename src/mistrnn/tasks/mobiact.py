"""MobiAct v2.0 (Chatzaki et al. 2016): activities of a person with a smartphone in the pocket, one label per sequence.

67 subjects; inputs are acceleration, gyroscope and orientation (9 numbers), each sequence shifted and scaled to mean 0 and
variance 1 in every input. Subjects in the order of their numbers: the first 47 train, the next 10 validate, the last 10 test.
Read are the annotated files (one CSV for each trial), or, where there are none, the raw ones (a text file for each sensor,
brought to the times of the accelerometer's samples).
"""

import csv
import io
import re
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from mistrnn.errors import UsageError
from mistrnn.tasks._recordings import Frames, Item, RecordingTask, prepare, standardised
from mistrnn.tasks._source import Source, finite_numbers, opened
from mistrnn.tasks._task import Split

COLUMNS = ("acc_x", "acc_y", "acc_z", "gyro_x", "gyro_y", "gyro_z", "azimuth", "pitch", "roll")
SENSORS = ("acc", "gyro", "ori")
TRAIN, VALIDATION, TEST = 47, 10, 10
ANNOTATED = re.compile(r"(?:.*/)?Annotated Data/([A-Z]{3})/[A-Z]{3}_(\d+)_(\d+)_annotated\.csv")
RAW = re.compile(r"(?:.*/)?Raw Data/([A-Z]{3})/[A-Z]{3}_(acc|gyro|ori)_(\d+)_(\d+)\.txt")

Trials = dict[tuple[str, int, int], tuple[str, Callable[[], NDArray[np.float64]]]]
"""By (activity, subject, trial): a stamp that changes with its files, and the function that reads them."""


class MobiAct(RecordingTask):
    """Name the activity of a sequence at its end."""

    name = "mobiact"
    summary = "name the activity in a sequence of smartphone sensors (MobiAct, subjects apart)"
    data_command = "mist data mobiact --from DIR --dir OUT"
    settings: ClassVar[dict[str, str]] = {}
    data_names = ("MobiAct",)
    default_steps = 2_000
    validation_interval = 10
    one_label = True


def prepare_mobiact(place: Path, folder: Path, say: Callable[[str], None] = lambda line: None) -> None:
    """Prepare MobiAct from a folder or a zip archive."""
    with opened(place) as source:
        loads: Trials = {}
        for name in source.names:
            if match := ANNOTATED.fullmatch(name):
                key = match[1], int(match[2]), int(match[3])
                loads[key] = source.stamp(name), partial(_annotated, source, name)
        if not loads:
            loads = _raw_trials(source)
        if not loads:
            raise UsageError(
                f"{place}: expected MobiAct, with files such as 'Annotated Data/WAL/WAL_1_1_annotated.csv' or "
                "'Raw Data/WAL/WAL_acc_1_1.txt', and found neither."
            )
        subjects = sorted({subject for _, subject, _ in loads})
        if len(subjects) != TRAIN + VALIDATION + TEST:
            raise UsageError(f"{place}: expected {TRAIN + VALIDATION + TEST} subjects, got {len(subjects)}.")
        classes = sorted({activity for activity, _, _ in loads})
        items = []
        for activity, subject, trial in sorted(loads, key=lambda key: (key[1], key[0], key[2])):
            stamp, load = loads[activity, subject, trial]
            place_of_subject = subjects.index(subject)
            split: Split = "train"
            if place_of_subject >= TRAIN:
                split = "val" if place_of_subject < TRAIN + VALIDATION else "test"
            label = classes.index(activity)
            items.append(Item(f"{activity}_{subject}_{trial}", str(subject), split, stamp, partial(_one, load, label)))
        prepare(folder, "MobiAct", classes, items, str(place.resolve()), say)


def _one(load: Callable[[], NDArray[np.float64]], label: int) -> Frames:
    values = load()
    return standardised(values), np.full(len(values), label, dtype=np.int16)


def _annotated(source: Source, name: str) -> NDArray[np.float64]:  # [samples, 9]
    reader = csv.reader(io.StringIO(source.text(name)))
    header = [word.strip() for word in next(reader, [])]
    missing = [column for column in COLUMNS if column not in header]
    if missing:
        raise UsageError(
            f"{source.where(name)}: expected the columns {', '.join(COLUMNS)}; {', '.join(missing)} missing."
        )
    places = [header.index(column) for column in COLUMNS]
    return _rows(
        source, name, ([row[p] for p in places if p < len(row)] for row in reader), first=2, width=len(COLUMNS)
    )


def _rows(source: Source, name: str, rows: Iterable[list[str]], first: int, width: int) -> NDArray[np.float64]:
    lines = enumerate(rows, start=first)
    found = [finite_numbers(words, width, f"{source.where(name)}, line {number}") for number, words in lines]
    if not found:
        raise UsageError(f"{source.where(name)}: expected samples, and there are none.")
    return np.array(found)


def _raw_trials(source: Source) -> Trials:
    files: dict[tuple[str, int, int], dict[str, str]] = {}
    for name in source.names:
        if match := RAW.fullmatch(name):
            files.setdefault((match[1], int(match[3]), int(match[4])), {})[match[2]] = name
    for key, own in files.items():
        missing = [sensor for sensor in SENSORS if sensor not in own]
        if missing:
            raise UsageError(
                f"{source.where(next(iter(own.values())))}: the file of {missing[0]} of trial {key} is missing."
            )
    return {key: (source.stamp(*own.values()), partial(_raw, source, own)) for key, own in files.items()}


def _raw(source: Source, names: dict[str, str]) -> NDArray[np.float64]:  # [samples, 9]
    """Return all sensors at the times of the accelerometer's samples, each by its sample nearest in time."""
    tables = {}
    for sensor in SENSORS:
        lines = source.text(names[sensor]).splitlines()
        begin = next((k for k, line in enumerate(lines) if line.strip().upper() == "@DATA"), None)
        if begin is None:
            raise UsageError(f"{source.where(names[sensor])}: expected a line @DATA before the samples.")
        rows = [line.split(",") for line in lines[begin + 1 :] if line.strip()]
        tables[sensor] = _rows(source, names[sensor], rows, first=begin + 2, width=4)
    times = tables["acc"][:, 0]
    parts = []
    for sensor in SENSORS:
        own = tables[sensor][np.argsort(tables[sensor][:, 0], kind="stable")]
        if own[-1, 0] < times.min() or own[0, 0] > times.max():
            raise UsageError(
                f"{source.where(names[sensor])}: its times have nothing in common with those of {names['acc']}."
            )
        later = (
            np.clip(np.searchsorted(own[:, 0], times), 1, len(own) - 1) if len(own) > 1 else np.zeros(len(times), int)
        )
        earlier = np.maximum(later - 1, 0)
        nearer = np.where(times - own[earlier, 0] <= own[later, 0] - times, earlier, later)
        parts.append(own[nearer, 1:])
    return np.concatenate(parts, axis=1)
