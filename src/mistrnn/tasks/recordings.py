"""The caller's own recordings under the paper's protocol: one class for each recording, or one for each step.

The recordings are divided once, by the seed: whole groups (people, machines, days) train, validate or test; without groups,
every class is divided in proportion. Each channel is shifted and scaled to mean 0 and variance 1 over the training split.
"""

import hashlib
import json
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from mistrnn.errors import UsageError
from mistrnn.tasks._cases import LARGEST, Case, as_cases, as_groups, as_targets
from mistrnn.tasks._holding_out import three_splits
from mistrnn.tasks._recordings import FrameTask
from mistrnn.tasks._task import SPLITS, Split

MOST_NAMED = 10


class Recordings(FrameTask):
    """Classify recordings of one's own.

    Args:
        X: [cases, channels, time], [cases, time] for one channel, or a list of arrays [channels, time].
        y: one label for each case, or [time] labels for each; None or NaN where there is none. Cases without any are left
            out.
        groups: the group of each case, such as a person: no group is in two splits.
        validation: the share of the validation split.
        test: the share of the test split.
        seed: of the division into splits.

    After that: `classes`, and `cases`, the places in X of the cases of each split.

    >>> X = np.random.RandomState(0).randn(40, 3, 25)
    >>> task = Recordings(X, np.repeat(["walk", "run"], 20), groups=np.arange(40) % 8)
    >>> task.sizes, task.input_size, task.classes
    ({'train': 30, 'val': 5, 'test': 5}, 3, ['run', 'walk'])
    """

    name = "recordings"
    summary = (
        "classify recordings of your own, as wholes or at every step (CSV, Parquet, NPZ; see docs/how-to/own-data.md)"
    )
    settings: ClassVar[dict[str, str]] = {
        "labels": "a table with a label for each recording",
        "label_column": "the labels, in the table (default: label) or, without one, in the recordings",
        "per_recording": "the label column has one label for each recording, not one for each row",
        "columns": "the inputs (default: all other columns)",
        "id_column": "the id of the recording, in a long table and in the table of labels",
        "time_column": "puts the rows in order; is not an input",
        "group_column": "the group of the recording, such as a person: no group is in two splits",
    }
    needs_data = True
    default_steps = 2_000
    validation_interval = 10

    def __init__(
        self,
        X: Any,  # noqa: N803 (scikit-learn's name)
        y: Any,
        groups: Any = None,
        *,
        validation: float = 0.15,
        test: float = 0.15,
        seed: int = 0,
    ) -> None:
        owner = type(self).__name__
        cases = as_cases(owner, X)
        targets, self.classes, self.one_label = as_targets(owner, y, cases)
        whose = None if groups is None else as_groups(owner, groups, len(cases))
        kept = [number for number, own in enumerate(targets) if (own >= 0).any()]
        cases, targets = [cases[k] for k in kept], [targets[k] for k in kept]
        whose = None if whose is None else [whose[k] for k in kept]
        self.input_size, self.output_size = cases[0].shape[1], len(self.classes)
        contents = np.stack([np.bincount(own[own >= 0], minlength=self.output_size) for own in targets])
        splits = three_splits(owner, contents, whose, validation=validation, test=test, seed=seed)
        self.cases = {split: [kept[k] for k in chosen] for split, chosen in splits.items()}
        self.data_identity = f"{self.name}|{_digest(cases, targets, self.classes, splits)}"
        self.data_note = _note(splits, whose, contents, self.classes)
        self._set_frames(
            torch.from_numpy(_standardised(owner, cases, splits["train"])),
            torch.from_numpy(np.concatenate([_frame_labels(*pair) for pair in zip(targets, cases, strict=True)])),
            torch.tensor([len(case) for case in cases]),
            splits,
        )

    @classmethod
    def from_folder(
        cls,
        folder: Path | str,
        *,
        labels: Path | str | None = None,
        label_column: str | None = None,
        per_recording: bool = False,
        columns: Sequence[str] | None = None,
        id_column: str | None = None,
        time_column: str | None = None,
        group_column: str | None = None,
        validation: float = 0.15,
        test: float = 0.15,
        seed: int = 0,
    ) -> "Recordings":
        """Return the task on files of recordings, read as `mist fit` reads them; notices are warnings.

        Args:
            folder: every file in it is a recording (CSV, Parquet, NPZ); or one long table, with an id column.
            labels: a table with a label for each recording.
            label_column: of that table ("label" if left out), or of the recordings if there is no table.
            per_recording: whether that column of the recordings has one label for each recording, not one for each row.
            columns: the inputs; all other columns if left out.
            id_column: the id of the recording, in a long table and in the table of labels.
            time_column: puts the rows in order; is not an input.
            group_column: the group of a recording, such as a person, in the table of labels or in the recordings.
            validation: the share of the validation split.
            test: the share of the test split.
            seed: of the division into splits.
        """
        try:
            from mistrnn.tables import Reading
            from mistrnn.tables.labelled import classes_of, read_labelled
        except ModuleNotFoundError as error:
            raise UsageError(
                f"{cls.name}: reading tables needs {error.name}, which is not installed: pip install 'mistrnn[estimators]'."
            ) from error
        if labels is None and label_column is None:
            raise UsageError(
                f"{cls.name}: expected labels: --labels TABLE with one for each recording, or --label-column NAME, a column of "
                "the recordings."
            )
        if labels is not None and per_recording:
            raise UsageError(
                f"{cls.name}: expected no --per-recording with --labels, because a table has one label for each recording "
                "anyway."
            )
        reading = Reading(
            columns=None if columns is None else tuple(columns),
            id_column=id_column,
            time_column=time_column,
            label_column=label_column or "label",
            group_column=group_column,
        )
        found, reading, _ = read_labelled(
            Path(folder),
            reading,
            labels=None if labels is None else Path(labels),
            per_recording=per_recording,
            say=lambda text: warnings.warn(text, stacklevel=2),
        )
        classes = classes_of(found, str(reading.label_column))
        one_each = labels is not None or per_recording
        return cls(
            [one.values.T for one in found],
            [own[0] for own in classes] if one_each else classes,
            None if group_column is None else [str(one.group) for one in found],
            validation=validation,
            test=test,
            seed=seed,
        )

    @classmethod
    def from_data(cls, data: Path, *, labels: str | None = None, **settings: Any) -> "Recordings":
        """Return the task of a study: a relative path of `labels` begins at the data, wherever the study is run from."""
        return cls.from_folder(data, labels=None if labels is None else beside(data) / labels, **settings)


def beside(data: Path) -> Path:
    """Return the folder at which a relative path of the labels begins: the data, or where its one file is."""
    return data.parent if data.is_file() else data


def _digest(
    cases: Sequence[Case], targets: Sequence[NDArray[np.int64]], classes: list[Any], splits: dict[Split, list[int]]
) -> str:
    """Return a digest of the data, the labels and the split, of the numbers as given."""
    digest = hashlib.sha256(json.dumps([classes, splits, [case.shape for case in cases]]).encode())
    for values in (*cases, *targets):
        digest.update(np.ascontiguousarray(values).astype(f"<{values.dtype.kind}8").tobytes())
    return digest.hexdigest()[:16]


def _standardised(owner: str, cases: Sequence[Case], train: Sequence[int]) -> NDArray[np.float32]:  # [frames, I]
    """Return all frames, by the means and deviations of the training split; channels that are constant there become 0."""
    seen = np.concatenate([cases[k] for k in train])
    mean, deviation = seen.mean(0), seen.std(0)
    varies = seen.max(0) > seen.min(0)  # the deviation of a constant may be the rounding of its mean
    scale = np.where(varies & (deviation > 0), deviation, 1.0)
    frames = (np.concatenate(list(cases)) - mean) / scale
    far = ~(np.abs(frames) < LARGEST)
    if far.any():
        channel = int(np.argwhere(far)[0, 1])
        raise UsageError(
            f"{owner}: expected numbers less than {LARGEST:g} deviations from the training split's mean, got "
            f"{np.abs(frames[:, channel]).max():g} in channel {channel}."
        )
    found: NDArray[np.float32] = frames.astype(np.float32)
    return found


def _frame_labels(targets: NDArray[np.int64], case: Case) -> NDArray[np.int32]:
    """Return the class of each frame; of a case with one label, every frame has it."""
    return np.broadcast_to(targets, len(case)).astype(np.int32)


def _note(
    splits: dict[Split, list[int]], groups: Sequence[str] | None, contents: NDArray[np.int64], classes: list[Any]
) -> str:
    """Return how the recordings are divided, and which classes are not tested."""
    parts = []
    for split, word in zip(SPLITS, ("train", "validate", "test"), strict=True):
        own = sorted({groups[k] for k in splits[split]}) if groups is not None and split != "train" else []
        more = f" and {len(own) - MOST_NAMED} more" if len(own) > MOST_NAMED else ""
        parts.append(f"{len(splits[split])} {word}" + (f" ({', '.join(own[:MOST_NAMED])}{more})" if own else ""))
    untested = [str(classes[k]) for k in np.flatnonzero(contents[splits["test"]].sum(0) == 0)]
    missing = f" No test recording has {', '.join(untested)}." if untested else ""
    return f"Of {len(contents)} recordings, {', '.join(parts)}.{missing}"
