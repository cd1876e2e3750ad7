"""The recordings that `mist fit` and `mist tune` read, what is to be predicted of them, and which are held out."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mistrnn.cli._flags import names
from mistrnn.cli._model_flags import DataFlags
from mistrnn.cli._model_folder import Kept, Kind
from mistrnn.cli._notices import say, say_doubtful_inputs, say_untested_classes, say_words_for_nothing
from mistrnn.errors import UsageError
from mistrnn.tables import (
    LabelTable,
    Reading,
    Recording,
    as_numbers,
    classes_of,
    hold_out,
    known_classes_of,
    read_labelled,
)

MOST_CLASSES_NAMED = 30
MOST_GROUPS_NAMED = 10


@dataclass(frozen=True)
class Part:
    """The recordings that are trained on, or those that are held out."""

    recordings: list[Recording]
    targets: list[Any]
    """A class, a number, or classes [time] for each."""
    group_column: str | None

    @property
    def inputs(self) -> list[NDArray[np.float64]]:
        """[channels, time] for each recording."""
        return [one.values.T for one in self.recordings]

    @property
    def ids(self) -> list[str]:
        """Their names."""
        return [one.id for one in self.recordings]

    @property
    def groups(self) -> list[str | None] | None:
        """The group of each, if they have any."""
        return None if self.group_column is None else [one.group for one in self.recordings]

    @property
    def of_groups(self) -> str:
        """The groups in words, in brackets, or nothing."""
        if self.group_column is None:
            return ""
        found = sorted({str(one.group) for one in self.recordings})
        more = f" and {len(found) - MOST_GROUPS_NAMED} more" if len(found) > MOST_GROUPS_NAMED else ""
        return f" ({self.group_column} {', '.join(found[:MOST_GROUPS_NAMED])}{more})"


@dataclass(frozen=True)
class TrainingData:
    """All that is read for a model."""

    kept: Kept
    """How new tables are to be read."""
    training: Part
    held_out: Part


def check_test_share(share: float) -> None:
    """Refuse a share that leaves nothing to train on."""
    if not 0 <= share < 1:
        raise UsageError(f"expected --test-share from 0 to below 1, got {share}.")


def reading_of(data: DataFlags) -> Reading:
    """Return which columns are what."""
    return Reading(
        columns=None if data.columns is None else names("columns", data.columns),
        id_column=data.id_column,
        time_column=data.time_column,
        label_column=data.label_column or "label",
        group_column=data.group_column,
    )


def read_training_data(data: DataFlags, reading: Reading, kind: Kind, seed: int) -> TrainingData:
    """Read the recordings and hold some out; say how many there are, and what may not be meant."""
    found, reading, table = read_labelled(
        data.recordings, reading, labels=data.labels, per_recording=kind == "recordings", say=say
    )
    targets = targets_of(found, kind, table, reading)
    contents = _contents(targets, kind)
    classes = sum(contents, Counter()) if kind != "numbers" else Counter()
    _print_summary(found, reading, classes)
    say_words_for_nothing(classes, kind)
    held = np.zeros(len(found), dtype=bool)
    if data.test_share > 0:
        if len(found) < 2:
            raise UsageError(
                f"{data.recordings}: expected several recordings, because --test-share {data.test_share} of them are held out, "
                "got one. A long table needs --id-column; --test-share 0 trains on all, without a report."
            )
        groups = [str(one.group) for one in found] if data.group_column is not None else None
        held = hold_out(data.test_share, contents, groups, seed)

    def part(chosen: NDArray[np.bool_]) -> Part:
        own = np.flatnonzero(chosen)
        return Part([found[k] for k in own], [targets[k] for k in own], data.group_column)

    training, held_out = part(~held), part(held)
    _print_split(training, held_out)
    say_untested_classes(contents, held, data.group_column)
    say_doubtful_inputs(training.recordings, reading)
    return TrainingData(_kept(reading, kind, data.labels, data.recordings), training, held_out)


def targets_of(
    recordings: Sequence[Recording],
    kind: Kind,
    table: LabelTable | None,
    reading: Reading,
    known: Sequence[Any] | None = None,
) -> list[Any]:
    """Return a class, a number or classes [time] for each recording; `known` are the classes of a model, if there is one."""
    if kind == "numbers":
        assert table is not None
        return list(as_numbers(recordings, table))
    if known is not None:
        classes = known_classes_of(recordings, known, table)
    else:
        advice = "Predict numbers with --regress, or write words for them."
        classes = classes_of(recordings, str(reading.label_column), advice=advice)
    return [own[0] for own in classes] if kind == "recordings" else list(classes)


def _contents(targets: Sequence[Any], kind: Kind) -> list[Counter[Any]]:
    """Return how much of each class a recording holds; of numbers, one for each recording."""
    if kind == "rows":
        return [Counter(label for label in own if label is not None) for own in targets]
    return [Counter({"" if kind == "numbers" else own: 1}) for own in targets]


def _kept(reading: Reading, kind: Kind, labels: Path | None, recordings: Path) -> Kept:
    """Return what new tables are read by: with the place of the labels, if they lay among the recordings."""
    if labels is None:
        return Kept(reading, kind, None)
    beside, folder = labels.parent.resolve(), recordings.resolve()  # the file itself may be a link to somewhere else
    if beside.is_relative_to(folder):
        return Kept(reading, kind, (beside.relative_to(folder) / labels.name).as_posix())
    return Kept(reading, kind, labels.name, labels_elsewhere=True)


def _print_summary(recordings: Sequence[Recording], reading: Reading, classes: Counter[Any]) -> None:
    rows = [len(one.values) for one in recordings]
    print(f"{len(recordings):,} recordings of {min(rows):,} to {max(rows):,} rows, {sum(rows):,} in all")
    print(f"inputs: {', '.join(reading.columns or ())}")
    if classes:
        words = ", ".join(f"{label} {count:,}" for label, count in sorted(classes.items())[:MOST_CLASSES_NAMED])
        print(f"{len(classes)} classes: {words}{', …' if len(classes) > MOST_CLASSES_NAMED else ''}")


def _print_split(training: Part, held_out: Part) -> None:
    if not held_out.recordings:
        print(f"trained on: all {len(training.recordings):,} recordings", flush=True)
        return
    print(f"trained on: {len(training.recordings):,} recordings{training.of_groups}")
    print(f"held out:   {len(held_out.recordings):,} recordings{held_out.of_groups}", flush=True)
