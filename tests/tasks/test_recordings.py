"""Prepared recordings: complete or not there, resumed, checked, mapped; and batches of unequal lengths."""

import json
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch

from mistrnn.errors import UsageError
from mistrnn.tasks import IGNORED, SPLITS, _recordings
from mistrnn.tasks._recordings import BUCKET, Frames, Item, PreparedRecordings, RecordingTask, prepare, standardised

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
    recordings = PreparedRecordings(folder, "")
    for mapped in (recordings.inputs, recordings.labels):
        assert isinstance(mapped, np.memmap)
        with pytest.raises(ValueError, match="read-only"):
            mapped[:] = 7
    task = Own(folder)
    inputs, targets = task.batch("train", torch.tensor([0, 1]))
    inputs.fill_(7)  # a batch is the caller's own
    targets.fill_(7)
    assert not torch.equal(task.batch("train", torch.tensor([0, 1]))[0], inputs)
    assert (folder / "inputs.npy").read_bytes() == before


def test_view_of_a_read_only_array_silences_that_warning_alone() -> None:
    values = np.zeros(3, np.float32)
    values.flags.writeable = False
    # Torch warns once in a process, unless told to warn always.
    torch.set_warn_always(True)
    try:
        with pytest.warns(UserWarning, match="not writable"):
            torch.from_numpy(values)
        assert torch.equal(_recordings._view(values), torch.zeros(3))
        with pytest.warns(UserWarning, match="not writable"):  # as before
            torch.from_numpy(values)
    finally:
        torch.set_warn_always(False)


@pytest.mark.parametrize("kind", [Own, OwnAtEnd])
def test_class_counts_equal_those_of_all_batches_and_read_no_inputs(
    kind: type[Own], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = kind(folder)
    expected = {}
    for split in SPLITS:
        _, targets = task.batch(split, torch.arange(task.sizes[split]))
        expected[split] = torch.bincount(targets[targets != IGNORED], minlength=3).tolist()
    monkeypatch.setattr(task, "_inputs", None)
    assert {split: task._class_counts(split).tolist() for split in SPLITS} == expected


def test_lengths_of_recordings_are_their_frames_without_padding(folder: Path) -> None:
    task = Own(folder)
    assert task.lengths("train", torch.tensor([[1, 0], [0, 0]])).tolist() == [[40, 5], [5, 5]]
    assert task.lengths("test", torch.tensor([1])).tolist() == [70]


def test_preparing_holds_few_recordings_in_memory(tmp_path: Path) -> None:
    frames, inputs = 1_000, 250  # a recording of 1 MB

    def load(k: int) -> Frames:
        return np.full((frames, inputs), k, np.float32), np.zeros(frames, np.int16)

    many = [Item(str(k), "u", "train", "1", lambda k=k: load(k)) for k in range(40)]  # type: ignore[misc]
    tracemalloc.start()
    try:
        prepare(tmp_path / "set", "Own", ["x"], many, "here")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert 1e6 < peak < 6e6
    assert PreparedRecordings(tmp_path / "set", "").inputs[::frames, 0].tolist() == list(range(40))


def bytes_of(task: RecordingTask) -> int:
    return sum(values.nbytes for values in task._mapped)


# torch takes "cpu:0" for another device than "cpu", and moves data there by a copy: so it stands for a GPU here.
@pytest.mark.parametrize(("room", "moved"), [(4, True), (3.9, False)])
def test_frames_move_to_a_device_that_has_four_times_their_size_free(
    room: float, moved: bool, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, index = Own(folder), torch.tensor([[0, 1], [1, 1]])
    before = task.batch("train", index)
    asked = []
    monkeypatch.setattr(_recordings, "free_memory", lambda device: asked.append(device) or room * bytes_of(task))
    assert task.to("cpu:0") is task
    for values, mapped in zip((task._inputs, task._labels), task._mapped, strict=True):
        assert (values.data_ptr() != mapped.data_ptr()) is moved
    found = task.batch("train", index.to("cpu:0"))
    assert all(torch.equal(a, b) for a, b in zip(before, found, strict=True))
    monkeypatch.setattr(_recordings, "free_memory", lambda device: 0)
    task.to("cpu:0")  # once there, they stay, though there is less room now
    assert (task._inputs.data_ptr() != task._mapped[0].data_ptr()) is moved
    task.to("cpu")  # and back they are in their file, not copied from the device
    assert task._inputs.data_ptr() == task._mapped[0].data_ptr()
    assert asked == [torch.device("cpu:0")]


def test_batches_go_to_the_device_when_frames_stay_in_their_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_recordings, "free_memory", lambda device: 0)
    task = Own(folder).to("meta")
    assert not task._inputs.is_meta
    assert all(values.is_meta for values in task.batch("train", torch.tensor([0, 1])))
    assert task.lengths("train", torch.tensor([0, 1])).tolist() == [5, 40]


@pytest.mark.gpu
def test_batches_on_a_gpu_are_the_same_from_the_file_and_from_its_memory(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = torch.tensor([[0, 1], [1, 1]])
    expected = Own(folder).batch("train", index)
    held = Own(folder).to("cuda")
    monkeypatch.setattr(_recordings, "free_memory", lambda device: 0)
    mapped = Own(folder).to("cuda")
    assert held._inputs.is_cuda
    assert not mapped._inputs.is_cuda
    for task in (held, mapped):
        found = task.batch("train", index.cuda())
        assert all(values.is_cuda for values in found)
        assert all(torch.equal(a, b.cpu()) for a, b in zip(expected, found, strict=True))
        assert task.lengths("train", index.cuda()).is_cuda


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
