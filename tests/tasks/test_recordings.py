"""Prepared recordings: complete or not there, resumed, checked, mapped; and batches of unequal lengths."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from mistrnn.errors import UsageError
from mistrnn.tasks import IGNORED
from mistrnn.tasks._recordings import BUCKET, Frames, Item, Recordings, RecordingTask, prepare, standardised

LENGTHS = {"a": 5, "b": 40, "c": 33, "d": 7, "e": 1, "f": 70}


class Own(RecordingTask):
    name = "own"
    summary = "recordings of a test"
    data_command = "mist data own"
    default_steps = 5
    validation_interval = 5


class OwnAtEnd(Own):
    one_label = True


def frames(name: str) -> Frames:
    draw = np.random.RandomState(ord(name))
    length = LENGTHS[name]
    labels = draw.randint(0, 3, length).astype(np.int16)
    labels[: length // 4] = -1
    return draw.randn(length, 2).astype(np.float32), labels


def items(loaded: list[str] | None = None, broken: str | None = None) -> list[Item]:
    def load(name: str) -> Frames:
        if name == broken:
            raise UsageError(f"{name} is broken")
        if loaded is not None:
            loaded.append(name)
        return frames(name)

    splits = {"a": "train", "b": "train", "c": "val", "d": "val", "e": "test", "f": "test"}
    return [Item(name, f"user-{name}", splits[name], "1", lambda name=name: load(name)) for name in LENGTHS]  # type: ignore[arg-type]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    prepare(tmp_path / "set", "Own", ["x", "y", "z"], items(), "here")
    return tmp_path / "set"


def test_what_is_prepared_is_read_back(folder: Path) -> None:
    assert sorted(path.name for path in folder.iterdir()) == ["inputs.npy", "labels.npy", "recordings.json"]
    task = Own(folder)
    assert (task.input_size, task.output_size, task.sizes) == (2, 3, {"train": 2, "val": 2, "test": 2})
    assert task.steps == 96
    for split, names in (("train", "ab"), ("val", "cd"), ("test", "ef")):
        inputs, targets = task.batch(split, torch.tensor([0, 1]))  # type: ignore[arg-type]
        assert inputs.size(0) % BUCKET == 0
        for b, name in enumerate(names):
            values, labels = frames(name)
            length = len(labels)
            assert torch.equal(inputs[:length, b], torch.from_numpy(values))
            assert not inputs[length:, b].any()
            expected = torch.from_numpy(labels).long()
            assert torch.equal(targets[:length, b], torch.where(expected < 0, IGNORED, expected))
            assert (targets[length:, b] == IGNORED).all()


def test_one_label_stands_at_the_last_step(folder: Path) -> None:
    _, targets = OwnAtEnd(folder).batch("train", torch.tensor([[1, 0], [0, 1]]))
    assert targets.shape == (2, 64, 2)
    assert (targets != IGNORED).sum(1).tolist() == [[1, 1], [1, 1]]
    assert targets[0, 39, 0] == frames("b")[1][-1]
    assert targets[1, 4, 0] == frames("a")[1][-1]


def test_an_interrupted_preparation_goes_on_and_leaves_no_folder(tmp_path: Path) -> None:
    place, loaded = tmp_path / "set", []  # type: tuple[Path, list[str]]
    with pytest.raises(UsageError, match="d is broken"):
        prepare(place, "Own", ["x", "y", "z"], items(loaded, broken="d"), "here")
    assert not place.exists()
    half = next((tmp_path / "set.part").glob("*.npz"))
    half.write_bytes(half.read_bytes()[:50])  # as after a crash of the machine
    again: list[str] = []
    prepare(place, "Own", ["x", "y", "z"], items(again), "here")
    assert len(again) == len(LENGTHS) - len(loaded) + 1
    assert not (tmp_path / "set.part").exists()
    undisturbed = tmp_path / "other"
    prepare(undisturbed, "Own", ["x", "y", "z"], items(), "here")
    for name in ("inputs.npy", "labels.npy", "recordings.json"):
        assert (place / name).read_bytes() == (undisturbed / name).read_bytes()


def test_what_was_prepared_from_elsewhere_is_not_taken(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="d is broken"):
        prepare(tmp_path / "set", "Own", ["x", "y", "z"], items(broken="d"), "there")
    again: list[str] = []
    prepare(tmp_path / "set", "Own", ["x", "y", "z"], items(again), "here")
    assert len(again) == len(LENGTHS)


def test_recordings_twice_or_without_labels_are_refused_and_constants_are_zero(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="Own: expected one recording a, and there are several"):
        prepare(tmp_path / "set", "Own", ["x"], [*items(), items()[0]], "here")
    nothing = Item("n", "u", "train", "1", lambda: (np.zeros((3, 2), np.float32), np.full(3, -1, np.int16)))
    with pytest.raises(UsageError, match="Own: no frame of recording n has a label"):
        prepare(tmp_path / "set", "Own", ["x"], [nothing], "here")
    assert not standardised(np.full((7, 3), 0.1)).any()


def test_nothing_is_overwritten(folder: Path) -> None:
    before = (folder / "inputs.npy").read_bytes()
    with pytest.raises(UsageError, match="is there already; remove it to prepare it again, or use another folder"):
        prepare(folder, "Own", ["x"], items(), "here")
    assert (folder / "inputs.npy").read_bytes() == before
    with pytest.raises(UsageError, match="Own: expected recordings, and found none"):
        prepare(folder.with_name("none"), "Own", ["x"], [], "here")


def test_frames_stay_in_their_file_and_the_file_stays_as_it_is(folder: Path) -> None:
    before = (folder / "inputs.npy").read_bytes()
    recordings = Recordings(folder, "")
    assert isinstance(recordings.inputs, np.memmap)
    recordings.inputs[:] = 7
    assert (folder / "inputs.npy").read_bytes() == before


def test_broken_folders_are_named(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"there is no recordings.json. Make it.* mist data own"):
        Own(tmp_path / "nowhere")
    about = json.loads((folder / "recordings.json").read_text())
    (folder / "recordings.json").write_text(json.dumps({**about, "format": 7}))
    with pytest.raises(UsageError, match="expected format 1, got 7; prepare it again"):
        Own(folder)
    (folder / "recordings.json").write_text(json.dumps({"format": 1}))
    with pytest.raises(UsageError, match="not readable as prepared recordings"):
        Own(folder)
    (folder / "recordings.json").write_text(json.dumps({**about, "recordings": about["recordings"][:3]}))
    with pytest.raises(UsageError, match=r"expected 78 frames, got inputs .* truncated"):
        Own(folder)
    for one in about["recordings"]:
        one["split"] = "train"
    (folder / "recordings.json").write_text(json.dumps(about))
    with pytest.raises(UsageError, match="own: expected recordings to val on"):
        Own(folder)
    content = (folder / "inputs.npy").read_bytes()
    (folder / "inputs.npy").write_bytes(content[: len(content) // 2])
    with pytest.raises(UsageError, match="not readable as prepared recordings"):
        Own(folder)


def test_order_is_from_long_to_short(folder: Path) -> None:
    task = Own(folder)
    assert task.order("train").tolist() == [1, 0]
    assert task.order("test").tolist() == [1, 0]
