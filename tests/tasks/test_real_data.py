"""TIMIT, MobiAct and HAPT from small files of the exact official layouts, and every doubt about them in words."""

import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mistrnn.errors import UsageError
from mistrnn.tasks import IGNORED, make_task, timit
from mistrnn.tasks._mfcc import mfcc
from mistrnn.tasks._recordings import PreparedRecordings
from mistrnn.tasks.hapt import prepare_hapt
from mistrnn.tasks.mobiact import prepare_mobiact
from mistrnn.tasks.timit import prepare_timit
from tests.tasks.recorded_files import (
    TIMIT_TRAIN_SPEAKERS,
    riff,
    sentence,
    write_hapt,
    write_mobiact,
    write_timit,
    write_timit_sample,
)


@pytest.fixture(autouse=True)
def few_speakers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timit, "TRAIN_SPEAKERS", TIMIT_TRAIN_SPEAKERS)


LABELS, GYRO = "RawData/labels.txt", "RawData/gyro_exp01_user01.txt"
ANNOTATED, ORI = "Annotated Data/WAL/WAL_3_1_annotated.csv", "Raw Data/WAL/WAL_ori_3_1.txt"


def zipped(folder: Path) -> Path:
    place = folder.with_suffix(".zip")
    with zipfile.ZipFile(place, "w") as archive:
        for path in sorted(folder.rglob("*")):
            archive.write(path, path.relative_to(folder))
    return place


def test_phones_fold_to_forty_classes() -> None:
    assert len(timit.CLASSES) == 40
    assert set(timit.FOLDED.values()) <= set(timit.CLASSES)
    assert not set(timit.FOLDED) & set(timit.CLASSES)
    assert len(set(timit.FOLDED) | set(timit.CLASSES)) == 62  # TIMIT's 61 and "sil", which none of them is called
    assert len(set(timit.CORE_TEST)) == 24
    assert len(set(timit.VALIDATION)) == 50
    assert not set(timit.CORE_TEST) & set(timit.VALIDATION)


@pytest.mark.parametrize(("upper", "nist"), [(True, True), (False, False)])
def test_timit_in_any_case_and_both_formats(tmp_path: Path, upper: bool, nist: bool) -> None:
    source = write_timit(tmp_path / "timit", upper, nist)
    prepare_timit(source, tmp_path / "out")
    task = make_task("timit", data=tmp_path / "out")
    assert task.sizes == {"train": 6, "val": 100, "test": 48}  # two sentences of each speaker: SA is left out
    assert (task.input_size, task.output_size, task.data_note) == (13, 40, "")
    recordings = PreparedRecordings(tmp_path / "out", "").recordings
    groups = {split: {r.group for r in recordings if r.split == split} for split in ("train", "val", "test")}
    assert groups["test"] == set(timit.CORE_TEST)
    assert groups["val"] == set(timit.VALIDATION)
    assert not any(r.id.endswith("/sa1") for r in recordings)


@pytest.mark.parametrize(("label_at", "offset"), [({}, 0), ({"label_at": "start"}, 0), ({"label_at": "middle"}, 200)])
def test_timit_frames_are_standardised_coefficients_with_the_label_asked_for(
    tmp_path: Path, label_at: dict[str, str], offset: int
) -> None:
    place = tmp_path / "timit" / "dr1-fabc0"
    write_timit_sample(tmp_path / "timit")
    samples, labels = sentence(3, ["sh", "ix", "h#", "q"])
    (place / "sx37.phn").write_text(labels.replace("0 800 sh", "100 800 sh"))
    (place / "sx37.wav").write_bytes(riff(samples))
    prepare_timit(tmp_path / "timit", tmp_path / "out", **label_at)
    prepared = PreparedRecordings(tmp_path / "out", "")
    at = 0
    for recording in prepared.recordings:
        if recording.id == "fabc0/sx37":
            break
        at += recording.frames
    features = mfcc(samples[100:], 16_000)  # from the first labelled sample on
    expected = (features - features.mean(0)) / features.std(0)
    assert recording.frames == len(features) == 17
    np.testing.assert_allclose(prepared.inputs[at : at + 17], expected, rtol=1e-5, atol=1e-5)
    places = 100 + 160 * np.arange(17) + offset
    names = np.array(["sh", "ih", "sil", "q"])[places // 800]
    assert [timit.CLASSES[k] for k in prepared.labels[at : at + 17]] == names.tolist()


def test_timit_labels_at_an_unknown_place_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="expected label_at among start, middle, got 'end'"):
        prepare_timit(write_timit_sample(tmp_path / "timit"), tmp_path / "out", label_at="end")


def test_timit_sample_is_called_by_its_name_and_split_by_speaker(tmp_path: Path) -> None:
    archive = zipped(write_timit_sample(tmp_path / "sample"))
    prepare_timit(archive, tmp_path / "out")
    task = make_task("timit", data=tmp_path / "out")
    assert task.data_note == "The data is the TIMIT sample of NLTK (16 speakers), not TIMIT."
    assert task.sizes == {"train": 20, "val": 6, "test": 6}
    splits = {r.group: r.split for r in PreparedRecordings(tmp_path / "out", "").recordings}
    assert Counter(splits.values()) == {"train": 10, "val": 3, "test": 3}


def change(path: Path, edit: Callable[[str], str]) -> None:
    path.write_text(edit(path.read_text()))


@pytest.mark.parametrize(
    ("file", "edit", "expected"),
    [
        (
            "sx37.phn",
            lambda text: text.replace("800 1600", "900 1600"),
            r"line 2: expected a label that begins at 800, without gap",
        ),
        (
            "sx37.phn",
            lambda text: text.replace("800 1600", "700 1600"),
            r"line 2: expected a label that begins at 800, without gap",
        ),
        ("sx37.phn", lambda text: "0 800 xyz\n", r"line 1: unknown phone 'xyz'"),
        ("sx37.phn", lambda text: "0 800\n", r"line 1: expected 'begin end phone', got '0 800'"),
        ("sx37.phn", lambda text: "", r"expected labels, and there are none"),
        ("sx37.phn", lambda text: "0 300 sh\n", r"expected at least 25 ms of labelled sound"),
        ("sx37.phn", lambda text: text + "4000 9000 sh\n", r"labels go on to sample 9000, and the sound has 4000"),
        ("sx37.wav", lambda text: "no sound", r"sx37.wav: not readable as NIST SPHERE or RIFF sound"),
    ],
)
def test_broken_sentences_are_named_with_file_and_line(tmp_path: Path, file: str, edit: Any, expected: str) -> None:
    place = write_timit_sample(tmp_path / "sample") / "dr1-fabc0" / file
    place.write_text(edit(place.read_text() if file.endswith("phn") else ""))
    with pytest.raises(UsageError, match=expected) as raised:
        prepare_timit(tmp_path / "sample", tmp_path / "out")
    assert "dr1-fabc0/sx37" in str(raised.value)
    assert not (tmp_path / "out").exists()


def test_missing_files_and_speakers_are_named(tmp_path: Path) -> None:
    sample = write_timit_sample(tmp_path / "sample")
    (sample / "dr1-fabc0" / "sx37.wav").unlink()
    with pytest.raises(UsageError, match=r"dr1-fabc0/sx37.phn: expected its sound file \(sx37.wav\)"):
        prepare_timit(sample, tmp_path / "out")
    whole = write_timit(tmp_path / "timit")
    for path in (whole / "TEST/DR1/MDAB0").iterdir():
        path.unlink()
    with pytest.raises(UsageError, match="1 speakers of the TEST folder are missing, such as mdab0"):
        prepare_timit(whole, tmp_path / "out")
    for path in (whole / "TRAIN/DR1/FCJF0").iterdir():
        path.unlink()
    with pytest.raises(UsageError, match="expected 3 speakers in the TRAIN folder, got 2"):
        prepare_timit(whole, tmp_path / "out")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match=r"expected TIMIT, with files such as .* and found neither"):
        prepare_timit(tmp_path / "empty", tmp_path / "out")


def test_archives_that_are_truncated_or_reach_outside_are_refused(tmp_path: Path) -> None:
    archive = zipped(write_timit_sample(tmp_path / "sample"))
    content = archive.read_bytes()
    archive.write_bytes(content[: len(content) // 2])
    with pytest.raises(UsageError, match=r"sample.zip: truncated, or no zip archive"):
        prepare_timit(archive, tmp_path / "out")
    damaged = bytearray(content)
    at = content.index(b"sx37.wav") + 5_000
    damaged[at : at + 50] = b"\xff" * 50
    archive.write_bytes(bytes(damaged))
    with pytest.raises(UsageError, match=r"cannot be read from the archive"):
        prepare_timit(archive, tmp_path / "out")
    with zipfile.ZipFile(archive, "w") as outside:
        outside.writestr("../../evil.phn", "0 1 sh")
    with pytest.raises(UsageError, match=r"an archive with files outside its folder \(../../evil.phn\) is not read"):
        prepare_timit(archive, tmp_path / "out")
    with pytest.raises(UsageError, match="nowhere: there is no such folder or archive"):
        prepare_timit(tmp_path / "nowhere", tmp_path / "out")


def test_hapt_segments_and_frames(tmp_path: Path) -> None:
    archive = zipped(write_hapt(tmp_path / "hapt"))
    prepare_hapt(archive, tmp_path / "segments", frames=False)
    task = make_task("hapt", data=tmp_path / "segments")
    assert task.sizes == {"train": 34, "val": 8, "test": 18}
    assert (task.input_size, task.output_size) == (6, 3)
    inputs, targets = task.batch("train", torch.tensor([0, 1]))
    acc, gyro = (np.loadtxt(tmp_path / f"hapt/RawData/{s}_exp01_user01.txt") for s in ("acc", "gyro"))
    values = np.concatenate([acc, gyro], 1)[4:24]  # samples 5 to 24, counted from 1
    np.testing.assert_allclose(inputs[:20, 0].numpy(), (values - values.mean(0)) / values.std(0), rtol=1e-4, atol=1e-5)
    assert targets[19, 0] == 1
    assert targets[15, 1] == 2
    assert (targets != IGNORED).sum() == 2
    prepare_hapt(archive, tmp_path / "frames", frames=True, downsample=5)
    whole = make_task("hapt-frames", data=tmp_path / "frames")
    assert whole.sizes == {"train": 17, "val": 4, "test": 9}
    _, targets = whole.batch("train", torch.tensor([0]))
    assert targets[:12, 0].tolist() == [IGNORED, 1, 1, 1, 1, 2, 2, 2, IGNORED, IGNORED, IGNORED, IGNORED]


@pytest.mark.parametrize(
    ("file", "edit", "expected"),
    [
        (
            LABELS,
            lambda t: t.replace("1 1 2 5 24", "1 1 9 5 24", 1),
            "line 1: expected an activity from 1 to 3, got 9",
        ),
        (
            LABELS,
            lambda t: t.replace("25 40", "20 40", 1),
            "line 2: expected a label that begins after 24, got 20 to 40",
        ),
        (
            LABELS,
            lambda t: t.replace("25 40", "25 99", 1),
            "expected at least 99 samples, because a label ends there",
        ),
        (LABELS, lambda t: "1 1 1\n" + t, "line 1: expected 'experiment user activity begin end'"),
        (GYRO, lambda t: t + "1 2 3\n", "expected 60 samples, as many as .* has, got 61"),
        (GYRO, lambda t: "1 2\n" + t, "line 1: expected 3 finite numbers, got '1 2'"),
        (GYRO, lambda t: "nan 1 2\n" + t, "line 1: expected 3 finite numbers"),
        ("activity_labels.txt", lambda t: "2 WALKING\n", "expected lines such as '1 WALKING', numbered from 1 on"),
    ],
)
def test_broken_hapt_files_are_named(tmp_path: Path, file: str, edit: Any, expected: str) -> None:
    folder = write_hapt(tmp_path / "hapt")
    change(folder / file, edit)
    with pytest.raises(UsageError, match=expected):
        prepare_hapt(folder, tmp_path / "out", frames=False)
    assert not (tmp_path / "out").exists()


def test_a_task_refuses_other_data_and_goes_to_a_device_and_back(tmp_path: Path) -> None:
    folder = write_hapt(tmp_path / "hapt")
    prepare_hapt(folder, tmp_path / "out", frames=False)
    with pytest.raises(UsageError, match="mobiact is about MobiAct, and these recordings are HAPT"):
        make_task("mobiact", data=tmp_path / "out")
    with pytest.raises(UsageError, match="Prepare them with: mist data hapt --frames --from"):
        make_task("hapt-frames", data=tmp_path / "out")
    task = make_task("hapt", data=str(tmp_path / "out"))
    before = task.batch("test", torch.tensor([0, 1]))
    task.to("meta")
    assert all(value.is_meta for value in (task._inputs, task._labels, task._starts["test"]))  # type: ignore[attr-defined]
    again = make_task("hapt", data=tmp_path / "out").to("cpu").batch("test", torch.tensor([0, 1]))
    assert all(torch.equal(a, b) for a, b in zip(before, again, strict=True))


def test_other_hapt_doubts_are_named(tmp_path: Path) -> None:
    folder = write_hapt(tmp_path / "hapt")
    with pytest.raises(UsageError, match="expected to downsample by a whole number >= 1, got 0"):
        prepare_hapt(folder, tmp_path / "out", frames=False, downsample=0)
    archive = zipped(folder)
    with zipfile.ZipFile(archive) as whole, zipfile.ZipFile(tmp_path / "less.zip", "w") as less:
        for name in whole.namelist():
            if name != "activity_labels.txt":
                less.writestr(name, whole.read(name))
    with pytest.raises(UsageError, match=r"activity_labels.txt: No such file in the archive"):
        prepare_hapt(tmp_path / "less.zip", tmp_path / "out", frames=False)
    (folder / "RawData" / "acc_exp03_user03.txt").unlink()
    with pytest.raises(UsageError, match=r"acc_exp03_user03.txt is missing; the file of the other sensor is present"):
        prepare_hapt(folder, tmp_path / "out", frames=False)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="expected HAPT, with files such as"):
        prepare_hapt(tmp_path / "empty", tmp_path / "out", frames=False)


@pytest.mark.parametrize("raw", [False, True])
def test_mobiact_annotated_and_raw(tmp_path: Path, raw: bool) -> None:
    source = write_mobiact(tmp_path / "MobiAct", raw)
    prepare_mobiact(source, tmp_path / "out")
    task = make_task("mobiact", data=tmp_path / "out")
    assert task.sizes == {"train": 94, "val": 20, "test": 20}
    assert (task.input_size, task.output_size, task.every_step) == (9, 2, True)
    recordings = PreparedRecordings(tmp_path / "out", "").recordings
    assert {r.group for r in recordings if r.split == "val"} == {str(k) for k in range(48, 58)}
    inputs, targets = task.batch("train", torch.tensor([0]))
    assert (targets != IGNORED).sum() == 1
    length = recordings[0].frames
    assert targets[length - 1, 0] == 0  # JOG comes before WAL
    np.testing.assert_allclose(inputs[:length, 0].mean(0), 0, atol=1e-5)


def test_mobiact_raw_sensors_meet_at_the_nearest_times(tmp_path: Path) -> None:
    source = write_mobiact(tmp_path / "MobiAct", raw=True)
    prepare_mobiact(source, tmp_path / "out")
    place = source / "Raw Data" / "JOG"
    tables = {
        s: np.loadtxt((place / f"JOG_{s}_1_1.txt").read_text().splitlines()[3:], delimiter=",")
        for s in ("acc", "gyro", "ori")
    }
    nearest = {s: np.abs(t[:, None, 0] - tables["acc"][None, :, 0]).argmin(0) for s, t in tables.items()}
    values = np.concatenate([tables[s][nearest[s], 1:] for s in ("acc", "gyro", "ori")], 1)
    inputs, _ = make_task("mobiact", data=tmp_path / "out").batch("train", torch.tensor([0]))
    expected = (values - values.mean(0)) / values.std(0)
    np.testing.assert_allclose(inputs[: len(values), 0].numpy(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("raw", "file", "edit", "expected"),
    [
        (False, ANNOTATED, lambda t: t.replace("gyro_y", "gyro"), "gyro_y missing"),
        (
            False,
            ANNOTATED,
            lambda t: t + "1,2,nan,1,1,1,1,1,1,1,1,WAL\n",
            "expected 9 finite numbers",
        ),
        (
            False,
            ANNOTATED,
            lambda t: t.splitlines()[0] + "\n",
            "expected samples, and there are none",
        ),
        (
            True,
            "Raw Data/WAL/WAL_acc_3_1.txt",
            lambda t: t.replace("@DATA", ""),
            "expected a line @DATA before the samples",
        ),
        (
            True,
            ORI,
            lambda t: t.replace("@DATA\n", "@DATA\n1,2\n"),
            "line 4: expected 4 finite numbers",
        ),
        (
            True,
            ORI,
            lambda t: "@DATA\n9,1,1,1\n",
            "its times have nothing in common with those of",
        ),
    ],
)
def test_broken_mobiact_files_are_named(tmp_path: Path, raw: bool, file: str, edit: Any, expected: str) -> None:
    folder = write_mobiact(tmp_path / "MobiAct", raw)
    change(folder / file, edit)
    with pytest.raises(UsageError, match=expected) as raised:
        prepare_mobiact(folder, tmp_path / "out")
    assert Path(file).name in str(raised.value)


def test_missing_mobiact_parts_are_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="expected 67 subjects, got 5"):
        prepare_mobiact(write_mobiact(tmp_path / "few", subjects=5), tmp_path / "out")
    raw = write_mobiact(tmp_path / "raw", raw=True)
    (raw / "Raw Data/WAL/WAL_gyro_3_1.txt").unlink()
    with pytest.raises(UsageError, match=r"the file of gyro of trial .*'WAL', 3, 1.* is missing"):
        prepare_mobiact(raw, tmp_path / "out")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="expected MobiAct, with files such as"):
        prepare_mobiact(tmp_path / "empty", tmp_path / "out")
