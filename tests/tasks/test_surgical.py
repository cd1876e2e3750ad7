"""JIGSAWS, the standard form and Gesture Phase Segmentation from small files of their exact layouts; users held out."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mistrnn.errors import UsageError
from mistrnn.tasks import IGNORED, make_task
from mistrnn.tasks._recordings import PreparedRecordings, RecordingTask
from mistrnn.tasks.surgical import prepare_surgical, segment_edit_distance
from tests.tasks.recorded_files import shorten, write_gesture_phase, write_jigsaws, write_standard

KINEMATICS = "Suturing/kinematics/AllGestures/Suturing_B001.txt"
TRANSCRIPT = "Suturing/transcriptions/Suturing_B001.txt"


def test_jigsaws_takes_labelled_frames_and_the_columns_of_both_hands(tmp_path: Path) -> None:
    source = write_jigsaws(tmp_path / "jigsaws")
    prepare_surgical(source, tmp_path / "out")
    task = make_task("surgical", {"user": "C"}, data=tmp_path / "out")
    assert isinstance(task, RecordingTask)
    assert (task.input_size, task.output_size, task.data_name) == (14, 10, "JIGSAWS Suturing")
    assert task.groups == ["B", "C", "D"]
    assert task.sizes == {"train": 4, "val": 4, "test": 2}
    table = np.loadtxt(source / KINEMATICS)
    columns = [39, 40, 41, 51, 52, 53, 57, 58, 59, 60, 70, 71, 72, 76]  # counted from 1
    kept = table[10:70][:, [c - 1 for c in columns]][::6]  # frames 11 to 70 have a label
    prepared = PreparedRecordings(tmp_path / "out", "")
    assert prepared.recordings[0].frames == 10
    np.testing.assert_allclose(prepared.inputs[:10], (kept - kept.mean(0)) / kept.std(0), rtol=1e-4, atol=1e-5)
    assert [prepared.classes[k] for k in prepared.labels[:10]] == ["G1"] * 5 + ["G8"] * 5


def test_one_user_is_tested_on_and_all_others_trained(tmp_path: Path) -> None:
    prepare_surgical(write_gesture_phase(tmp_path / "phase"), tmp_path / "out")
    recordings = PreparedRecordings(tmp_path / "out", "").recordings
    for user, count in (("a", 3), ("b", 2), ("c", 2)):
        task = make_task("surgical", {"user": user}, data=tmp_path / "out")
        assert task.sizes == {"train": 7 - count, "val": 7 - count, "test": count}
        tested = [r for r in recordings if r.group == user]
        _, targets = task.batch("test", torch.arange(count))
        assert (targets != IGNORED).sum(0).tolist() == [r.frames for r in tested]
    assert make_task("surgical", data=tmp_path / "out").sizes["test"] == 3  # the first user
    with pytest.raises(UsageError, match="surgical: expected a user among a, b, c, got 'd'"):
        make_task("surgical", {"user": "d"}, data=tmp_path / "out")


def test_wrapped_recordings_repeat_up_to_the_longest_of_their_batch(tmp_path: Path) -> None:
    source = write_gesture_phase(tmp_path / "phase")
    shorten(source / "a2_raw.csv", 17)
    prepare_surgical(source, tmp_path / "out")
    padded, wrapped = (
        make_task("surgical", {"user": "c", "wrap": wrap}, data=tmp_path / "out") for wrap in (False, True)
    )
    lengths = padded.lengths("train", torch.arange(5))
    assert len(set(lengths.tolist())) > 1
    short, long = int(lengths.argmin()), int(lengths.argmax())
    index = torch.tensor([[short, long], [short, short]])  # two trials
    inputs, targets = wrapped.batch("train", index)
    resets = wrapped.resets("train", index)
    assert resets is not None
    assert resets.shape == targets.shape == (2, inputs.size(1), 2)
    own, own_targets = padded.batch("train", index)
    length, longest = int(lengths.min()), int(lengths.max())
    for step in range(longest):
        assert torch.equal(inputs[0, step, 0], own[0, step % length, 0])
        assert targets[0, step, 0] == own_targets[0, step % length, 0]
        assert resets[0, step, 0] == (step % length == 0)
    assert torch.equal(inputs[0, :, 1], own[0, :, 1])
    assert (targets[0, longest:] == IGNORED).all()
    assert (targets[1, length:] == IGNORED).all()  # padded to the other trial's longest, not wrapped
    for split in ("val", "test"):
        assert wrapped.resets(split, index) is None
        assert torch.equal(wrapped.batch(split, index)[1], padded.batch(split, index)[1])
    assert padded.resets("train", index) is None
    with pytest.raises(UsageError, match="surgical: expected wrap to be true or false, got 1"):
        make_task("surgical", {"wrap": 1}, data=tmp_path / "out")


def test_gesture_phase_takes_coordinates_and_both_spellings(tmp_path: Path) -> None:
    prepare_surgical(write_gesture_phase(tmp_path / "phase"), tmp_path / "out")
    prepared = PreparedRecordings(tmp_path / "out", "")
    assert (prepared.name, prepared.classes[1], prepared.inputs.shape[1]) == (
        "Gesture Phase Segmentation",
        "Preparation",
        18,
    )
    assert 1 in prepared.labels[: prepared.recordings[0].frames]


def test_the_standard_form_is_called_by_its_folder(tmp_path: Path) -> None:
    prepare_surgical(write_standard(tmp_path / "MISTIC-SL"), tmp_path / "out")
    task = make_task("surgical", {"user": "u2"}, data=tmp_path / "out")
    assert isinstance(task, RecordingTask)
    assert (task.data_name, task.classes, task.input_size) == ("MISTIC-SL", ["knot", "throw"], 2)
    assert task.sizes["test"] == 2


@pytest.mark.parametrize(
    ("file", "edit", "expected"),
    [
        (KINEMATICS, lambda t: "1 2 3\n" + t, "line 1: expected 76 finite numbers, got '1 2 3'"),
        (
            TRANSCRIPT,
            lambda t: t.replace("41 70", "30 70"),
            "line 2: expected frames from 1 to 80 that have no label yet",
        ),
        (TRANSCRIPT, lambda t: t.replace("41 70", "41 99"), "line 2: expected frames from 1 to 80"),
        (TRANSCRIPT, lambda t: t.replace("G8", "G7"), "line 2: unknown gesture 'G7'"),
        (TRANSCRIPT, lambda t: "hello\n", "line 1: expected 'begin end gesture', got 'hello'"),
        (TRANSCRIPT, lambda t: "\n", "expected labels, and there are none"),
    ],
)
def test_broken_jigsaws_files_are_named(tmp_path: Path, file: str, edit: Any, expected: str) -> None:
    source = write_jigsaws(tmp_path / "jigsaws")
    (source / file).write_text(edit((source / file).read_text()))
    with pytest.raises(UsageError, match=expected) as raised:
        prepare_surgical(source, tmp_path / "out")
    assert file in str(raised.value)
    assert not (tmp_path / "out").exists()


def test_other_doubts_are_named(tmp_path: Path) -> None:
    source = write_jigsaws(tmp_path / "jigsaws")
    (source / TRANSCRIPT).unlink()
    with pytest.raises(UsageError, match=r"Suturing_B001.txt: its labels are missing"):
        prepare_surgical(source, tmp_path / "out")
    own = write_standard(tmp_path / "own")
    for text, expected in (
        ("x,y\n1,2\n", "expected a column 'label', got x, y"),
        ("x,label\n", "expected frames, and there are none"),
        ("x,label\n1,a\n2\n", "line 3: expected 2 columns, got 1"),
        ("x,y,label\n1,2,knot\nnan,1,knot\n", "line 3: expected 2 finite numbers, got 'nan 1'"),
    ):
        (own / "u1_1.csv").write_text(text)
        with pytest.raises(UsageError, match=expected):
            prepare_surgical(own, tmp_path / "out")
    (own / "u1_1.csv").write_text("y,x,label\n1,2,knot\n")
    with pytest.raises(UsageError, match=r"u1_2.csv: expected the columns y, x, label, got x, y, label"):
        prepare_surgical(own, tmp_path / "out")
    (own / "u-4_1.csv").write_text("x,y,label\n1,2,knot\n")
    with pytest.raises(UsageError, match=r"u-4_1.csv: expected a name such as USER_TRIAL.csv"):
        prepare_surgical(own, tmp_path / "out")
    phase = write_gesture_phase(tmp_path / "phase")
    change = phase / "b1_raw.csv"
    change.write_text(change.read_text().replace("Stroke", "Strike"))
    with pytest.raises(
        UsageError, match="expected a label among Rest, Preparation, Stroke, Hold, Retraction, got 'Strike'"
    ):
        prepare_surgical(phase, tmp_path / "out")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match=r"expected JIGSAWS .* and found none of them"):
        prepare_surgical(tmp_path / "empty", tmp_path / "out")


@pytest.mark.parametrize(
    ("truth", "found", "distance"),
    [
        ([1, 1, 2, 2], [1, 2, 2, 2], 0.0),
        ([1, 2, 3], [1, 3], 1 / 3),
        ([1, 2], [2, 1], 1.0),
        ([1], [1, 2, 1, 2], 3 / 4),
        ([], [1], 1.0),
        ([], [], 0.0),
    ],
)
def test_segment_edit_distance(truth: list[int], found: list[int], distance: float) -> None:
    assert segment_edit_distance(truth, found) == pytest.approx(distance)
    assert segment_edit_distance(found, truth) == pytest.approx(distance)
