"""Recordings of one's own as a task: arrays and files, labels of cases and of steps, splits, and what is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from mistrnn.errors import UsageError
from mistrnn.tasks import IGNORED, SPLITS, Recordings, Split, make_task
from tests.tasks.own_recordings import labels_of_steps, recordings, write_folder


def targets_of(task: Recordings, split: Split) -> list[list[int]]:
    """The targets of each case of a split, up to its end."""
    index = torch.arange(task.sizes[split])
    _, targets = task.batch(split, index)
    lengths = task.lengths(split, index)
    return [targets[:length, k].tolist() for k, length in enumerate(lengths.tolist())]


def test_label_of_a_case_stands_at_its_last_step() -> None:
    x, y, groups = recordings()
    task = Recordings(x, y, groups)
    assert (task.classes, task.one_label, task.input_size, task.output_size) == (["fall", "rise"], True, 3, 2)
    for split in SPLITS:
        for place, targets in zip(task.cases[split], targets_of(task, split), strict=True):
            assert targets == [IGNORED] * (x[place].shape[1] - 1) + [task.classes.index(y[place])]


def test_labels_of_steps_stand_where_they_are_and_steps_without_one_do_not_count() -> None:
    x, _, _ = recordings()
    labels = labels_of_steps(x)
    task = Recordings(x, labels)
    assert task.classes == ["high", "low"]
    for split in SPLITS:
        for place, targets in zip(task.cases[split], targets_of(task, split), strict=True):
            assert targets == [
                IGNORED if label is None else task.classes.index(label) for label in labels[place].tolist()
            ]


def test_inputs_are_standardised_over_the_training_split() -> None:
    x, y, _ = recordings()
    x = [np.concatenate([case, np.full((1, case.shape[1]), 7.0)]) for case in x]  # a channel without news
    task = Recordings(x, y)
    seen = np.concatenate([x[k] for k in task.cases["train"]], axis=1)
    mean, deviation = seen.mean(1), seen.std(1)
    for split in SPLITS:
        inputs, _ = task.batch(split, torch.arange(task.sizes[split]), torch.float64)
        for k, place in enumerate(task.cases[split]):
            case = x[place]
            expected = (case[:3] - mean[:3, None]) / deviation[:3, None]
            found = inputs[: case.shape[1], k].numpy().T
            np.testing.assert_allclose(found[:3], expected, rtol=1e-5, atol=1e-5)
            assert not found[3].any()


def test_no_group_is_in_two_splits() -> None:
    x, y, groups = recordings()
    for seed in range(4):
        task = Recordings(x, y, groups, seed=seed)
        seen = [{groups[k] for k in task.cases[split]} for split in SPLITS]
        assert sum(map(len, seen)) == len(set(groups))
        assert set.union(*seen) == set(groups)
        assert f"{len(task.cases['test'])} test ({', '.join(sorted(seen[2]))})" in task.data_note


def test_without_groups_every_class_is_divided_in_proportion() -> None:
    x, _, _ = recordings(60)
    y = ["rare" if k % 6 == 0 else "common" for k in range(60)]
    task = Recordings(x, y, validation=0.2, test=0.1)
    counts = {split: [sum(y[k] == word for k in task.cases[split]) for word in ("common", "rare")] for split in SPLITS}
    assert counts == {"train": [35, 7], "val": [10, 2], "test": [5, 1]}


def test_class_that_is_not_tested_is_said() -> None:
    x, y, _ = recordings()
    y = ["odd", *y[1:]]
    assert "No test recording has odd." in Recordings(x, y).data_note


def test_cases_without_a_label_are_left_out_and_keep_their_places() -> None:
    x, labels, _ = recordings()
    y: list[Any] = list(labels)
    y[3] = y[17] = None
    y[20] = np.nan
    task = Recordings(x, y)
    assert sorted(place for split in SPLITS for place in task.cases[split]) == sorted(set(range(36)) - {3, 17, 20})


def test_same_data_in_every_form_is_the_same_task() -> None:
    random = np.random.RandomState(0)
    x, y = random.randn(30, 2, 9), np.arange(30) % 3
    expected = Recordings(x, y)
    y_with_gap = pd.Series(y, dtype="Int64")
    for other in (torch.from_numpy(x), list(x), [case.tolist() for case in x], np.ma.masked_array(x)):
        assert Recordings(other, y).data_identity == expected.data_identity
    assert Recordings(x, y_with_gap).data_identity == expected.data_identity
    assert Recordings(x[:, 0], y).data_identity == Recordings(x[:, :1], y).data_identity


def test_other_data_has_another_identity() -> None:
    x, y, groups = recordings()
    changed = [case.copy() for case in x]
    changed[5][0, 3] += 1e-12
    tasks = [
        Recordings(x, y, groups),
        Recordings(changed, y, groups),
        Recordings(x, y),
        Recordings(x, y[::-1]),
        Recordings(x, y, seed=1),
    ]
    assert len({task.data_identity for task in tasks}) == len(tasks)


@pytest.mark.parametrize("rows", [False, True], ids=["table of labels", "labels of rows"])
def test_files_are_the_task_of_their_arrays(tmp_path: Path, rows: bool) -> None:
    x, y, groups = recordings()
    folder = write_folder(tmp_path / "data", rows=rows)
    if rows:
        found = make_task("recordings", {"label_column": "state"}, data=folder)
        expected = Recordings(x, labels_of_steps(x))
    else:
        settings = {"labels": "labels.csv", "group_column": "user"}
        found = make_task("recordings", settings, data=folder)
        expected = Recordings(x, y, groups)
        other = Recordings.from_folder(folder, labels=folder / "labels.csv", group_column="user")
        assert other.data_identity == found.data_identity
    assert isinstance(found, Recordings)
    assert found.data_identity == expected.data_identity
    for split in SPLITS:
        index = torch.arange(expected.sizes[split])
        for mine, own in zip(found.batch(split, index), expected.batch(split, index), strict=True):
            assert torch.equal(mine, own)


def test_long_table_with_a_label_for_each_recording_is_read(tmp_path: Path) -> None:
    x, y, _ = recordings()
    frames = [
        pd.DataFrame({"rec": f"{k:02}", "t": np.arange(case.shape[1]), "a": case[0], "b": case[1], "what": y[k]})
        for k, case in enumerate(x)
    ]
    pd.concat(frames).to_csv(tmp_path / "long.csv", index=False)
    settings = {"label_column": "what", "per_recording": True, "id_column": "rec", "time_column": "t", "columns": ["a"]}
    task = make_task("recordings", settings, data=tmp_path / "long.csv")
    assert task.data_identity == Recordings([case[:1] for case in x], y).data_identity


def test_notices_of_reading_are_warnings(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "data")
    table = pd.read_csv(folder / "labels.csv")
    table.loc[3, "label"] = None
    table.to_csv(folder / "labels.csv", index=False)
    with pytest.warns(UserWarning, match=r"1 recordings have no label and are left out: 03"):
        task = Recordings.from_folder(folder, labels=folder / "labels.csv")
    assert sum(task.sizes.values()) == 35


def test_files_without_labels_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="recordings: expected labels: --labels TABLE with one for each recording, or"):
        make_task("recordings", data=tmp_path)
    with pytest.raises(UsageError, match="recordings: expected no --per-recording with --labels"):
        make_task("recordings", {"labels": "labels.csv", "per_recording": True}, data=tmp_path)
    with pytest.raises(UsageError, match=r"^recordings: expected a data folder; give it with --data DIR\.$"):
        make_task("recordings")


X, Y, GROUPS = recordings()
HOLE = [case.copy() for case in X]
HOLE[2][1, 4] = np.nan


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((7, Y), r"expected X to be \[cases, channels, time\], .* got int"),
        ((np.zeros(3), Y), r"expected X to be .*, got an array \[3\]"),
        (([], []), "expected at least one case, got none"),
        (([np.zeros((2, 5)), np.zeros((5, 2))], "ab"), "expected the same channels in every case, got 2 in case 0 and 5"),
        (([["a", "b"]], ["a"]), r"expected case 0 to be an array \[channels, time\] of real numbers"),
        (([np.ones((1, 3)) * 1j], ["a"]), "expected case 0 to be an array .* of real numbers"),
        (([np.zeros((2, 0))], ["a"]), r"expected case 0 to be \[channels, time\], .* got an array \[2, 0\]"),
        ((HOLE, Y), r"expected finite numbers below 1e\+30, got nan in case 2, channel 1, step 4. Fill gaps"),
        ((X, Y[:-1]), "expected labels for 36 cases, got 35"),
        ((X, [["a"] * 3, *Y[1:]]), "expected one label for each case, or an array of labels for each, got an array for"),
        ((X, [["a"] * 3] * 36), r"expected \d+ labels for case 0, one for each step, got 3"),
        ((X, [1.5] * 36), "expected classes as labels, all of them words, whole numbers or bools, got float"),
        ((X, ["a", 1] * 18), "expected classes as labels, .* got int and str"),
        ((X, ["a"] * 36), r"expected at least 2 classes, because one alone leaves nothing to learn, got \['a'\]"),
        ((X, Y, GROUPS[1:]), "expected a group for each of 36 cases, got 35"),
        ((X, Y, [None, *GROUPS[1:]]), "expected a group for every case, got none for case 0"),
        ((X, Y, ["a", "b"] * 18), "expected at least 3 groups, because training, validation and test need one each, got 2"),
        ((X[:2], Y[:2]), "expected at least 3 cases, because training, validation and test need one each, got 2"),
        ((X[:3], ["a", "b", "c"]), "expected cases to validate and to test on, with every class left"),
    ],
)  # fmt: skip
def test_arrays_that_cannot_be_are_refused(given: Any, message: str) -> None:
    with pytest.raises(UsageError, match=f"^Recordings: {message}"):
        Recordings(*given)


@pytest.mark.parametrize(
    ("shares", "message"),
    [
        ({"validation": 0.0}, "expected validation to be a share between 0 and 1, got 0.0"),
        ({"test": True}, "expected test to be a share between 0 and 1, got True"),
        ({"validation": 0.5, "test": 0.5}, "expected validation .* test < 1, because the rest is trained on, got 0.5"),
    ],
)
def test_shares_that_cannot_be_are_refused(shares: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Recordings(X, Y, **shares)


def test_number_far_from_the_training_split_is_refused() -> None:
    random = np.random.RandomState(0)
    x = random.randn(30, 1, 5) * 1e-5
    place = Recordings(x, [0, 1] * 15).cases["test"][0]
    x[place, 0, 2] = 1e29
    with pytest.raises(
        UsageError, match=r"expected numbers less than 1e\+30 deviations from the training split's mean"
    ):
        Recordings(x, [0, 1] * 15)
