"""Files that are whole or absent, and folders on a disk, in an object store and on other file systems."""

import errno
import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from mistrnn import files
from mistrnn.errors import UsageError
from mistrnn.files import Folder, LocalFolder, RemoteFolder, folder_at, write_whole, written_together
from mistrnn.report.collected import collect
from mistrnn.tasks import Task, make_task
from mistrnn.training import Interrupted, Recorded, Study, run_study
from mistrnn.training.store import Store

STUDY = Study(
    task="copy",
    layer="rnn",
    hidden=4,
    trials=3,
    steps=6,
    batch_size=10,
    validate_every=2,
    gradients_every=3,
    task_settings={"delay": 10},
)


@pytest.fixture(scope="module")
def task() -> Task:
    return make_task("copy", {"delay": 10})


@pytest.fixture
def address() -> Iterator[str]:
    """A place in fsspec's memory, which all tests of a process share."""
    name = uuid.uuid4().hex
    yield f"memory://{name}/study"
    system = MemoryFileSystem()
    if system.exists(name):
        system.rm(name, recursive=True)


def moving_folder(place: Path) -> RemoteFolder:
    """A folder on a file system that can move files, which most that are no object stores can."""
    system = DirFileSystem(path=str(place), fs=LocalFileSystem())
    return RemoteFolder(f"shelf://{place.name}", system, "study")


@pytest.fixture(params=["local", "objects", "moving"])
def folder(request: pytest.FixtureRequest, tmp_path: Path, address: str) -> Folder:
    if request.param == "local":
        return folder_at(tmp_path / "study")
    return folder_at(address) if request.param == "objects" else moving_folder(tmp_path)


class Clock:
    """Stands in for the module `time`; its hands are moved by the test."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1_000_000.0
        monkeypatch.setattr(files, "time", SimpleNamespace(time=lambda: self.now, monotonic=lambda: self.now))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def fail(error: BaseException) -> Any:
    def failing(*_: object, **__: object) -> None:
        raise error

    return failing


# Whole files.


def test_files_that_belong_together_take_their_places_at_once(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    with written_together(folder) as place:
        (place / "a").write_text("1")
        (place / "b").write_text("2")
        assert not (folder / "a").exists()
    assert {path.name: path.read_text() for path in folder.iterdir()} == {"a": "1", "b": "2"}


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt(), None])
def test_after_an_error_none_of_them_does(tmp_path: Path, error: BaseException | None) -> None:
    (tmp_path / "a").write_text("old")

    def write() -> None:
        with written_together(tmp_path) as place:
            (place / "a").write_text("new")
            raise error or UsageError(f"cannot write {place / 'b'}: too long.")

    with pytest.raises((UsageError, KeyboardInterrupt)) as raised:
        write()
    assert [path.read_text() for path in tmp_path.iterdir()] == ["old"]
    if isinstance(error, OSError):
        assert str(raised.value) == f"cannot write to the folder {tmp_path}: No space left on device."
    if error is None:
        assert str(raised.value) == f"cannot write {tmp_path / 'b'}: too long."


def test_write_whole_old_file_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old and longer")
    write_whole(path, b"new")
    assert path.read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize("call", ["fsync", "replace"])
@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_write_whole_failure_leaves_the_old_file_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, error: BaseException
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    monkeypatch.setattr(os, call, fail(error))
    with pytest.raises(type(error)):
        write_whole(path, b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize("place", ["missing/file", "file/inside", "."])
def test_write_whole_impossible_place_is_an_os_error(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OSError, match=r"No such file|Not a directory|busy|Is a directory|not empty"):
        write_whole(tmp_path / place, b"new")
    assert os.listdir(tmp_path) == ["file"]


def test_write_whole_is_on_the_disk_before_it_takes_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    sync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda file: (calls.append("fsync"), sync(file)))
    monkeypatch.setattr(os, "replace", lambda *paths: (calls.append("replace"), replace(*paths)))
    write_whole(tmp_path / "file", b"new", suffix=".7.part")
    assert calls == ["fsync", "replace"]


# Where a folder is.


@pytest.mark.parametrize("form", ["{}", "file://{}", "local://{}"])
def test_folder_at_a_path_or_a_file_address_is_local(tmp_path: Path, form: str) -> None:
    folder = folder_at(form.format(tmp_path))
    assert isinstance(folder, LocalFolder)
    assert folder.place == tmp_path
    assert folder.at("models/a") == f"{tmp_path}/models/a"


def test_folder_at_an_address_names_it_in_full() -> None:
    folder = folder_at("memory://a/b/")
    assert isinstance(folder, RemoteFolder)
    assert folder.place == "memory://a/b"
    assert folder.at("models/a") == "memory://a/b/models/a"


def test_folder_at_a_protocol_without_its_package_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(UsageError, match=r"s3://bucket/study: this kind of address needs .*s3fs"):
        folder_at("s3://bucket/study")


def test_folder_at_an_unknown_protocol_names_it() -> None:
    with pytest.raises(UsageError, match=r"expected a folder or an address that fsspec knows: .*nowhere"):
        folder_at("nowhere://study")


def test_fsspec_is_not_loaded_for_folders_on_this_machine() -> None:
    code = "import sys, mistrnn, mistrnn.files as f; f.folder_at('here'); sys.exit('fsspec' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# What all forms do.


def test_folder_files_are_written_read_listed_and_removed(folder: Folder) -> None:
    assert folder.names() == []
    assert not folder.exists("a")
    folder.make("models")
    folder.write("b", b"1")
    folder.write("a", b"2")
    folder.write("models/c", b"3")
    folder.write("a", b"4")
    assert folder.names() == ["a", "b", "models"]
    assert folder.names("models") == ["c"]
    assert folder.read("a") == b"4"
    assert folder.exists("models/c")
    folder.remove("models/c")
    folder.remove("models/c")
    assert not folder.exists("models/c")
    with pytest.raises(FileNotFoundError, match="No such file or directory"):
        folder.read("models/c")


def test_folder_folders_with_a_file_are_found_at_any_depth(folder: Folder) -> None:
    for inside in ("", "deep/er", "other"):
        folder.make(inside)
        folder.write(f"{inside}/study.json".lstrip("/"), b"{}")
    folder.write("other/my-study.json", b"{}")
    found = [str(place) for place in folder.folders_with("study.json")]
    assert found == [str(folder.place), f"{folder.place}/deep/er", f"{folder.place}/other"]


def test_folder_in_use_is_refused_and_free_afterwards(folder: Folder, tmp_path: Path) -> None:
    folder.make()
    other = moving_folder(tmp_path) if str(folder.place).startswith("shelf") else folder_at(folder.place)
    folder.lock()
    with pytest.raises(UsageError, match=rf"is in use by another process \(process {os.getpid()}.*\); wait for it"):
        other.lock()
    other.unlock()  # which does not hold it
    with pytest.raises(UsageError, match="is in use by another process"):
        other.lock()
    folder.unlock()
    other.lock()
    other.unlock()


# What addresses do.


def test_remote_lock_names_its_owner_and_is_removed_at_the_end(address: str, clock: Clock) -> None:
    folder, other = folder_at(address), folder_at(address)
    folder.lock()
    assert json.loads(folder.read("lock")).keys() == {"process", "host", "id", "time"}
    clock.now += 119
    with pytest.raises(UsageError, match=r", 119 s ago\); .* A process that was killed holds it for 120 s\."):
        other.lock()
    folder.unlock()
    assert folder.names() == []


def test_remote_lock_is_refreshed_by_writes_but_not_by_every_one(address: str, clock: Clock) -> None:
    folder, began = folder_at(address), clock.now
    folder.lock()
    for seconds, said in ((19, 0), (20, 20), (39, 20), (100, 100)):
        clock.now = began + seconds
        folder.write("a", b"")
        assert json.loads(folder.read("lock"))["time"] == began + said


def test_remote_lock_left_behind_is_taken_over_and_its_owner_stops(address: str, clock: Clock) -> None:
    slow, quick = folder_at(address), folder_at(address)
    slow.lock()
    slow.write("a", b"1")
    clock.now += 120
    quick.lock()
    quick.write("a", b"2")
    for change in (lambda: slow.write("a", b"3"), lambda: slow.remove("a")):
        with pytest.raises(UsageError, match=r"taken over by another process, because .* silent for 120 s"):
            change()
    slow.unlock()
    assert quick.read("a") == b"2"
    clock.now += 30
    quick.write("a", b"4")  # the lock is still there, and still its own


def test_remote_lock_that_says_nothing_is_taken_over(address: str) -> None:
    folder = folder_at(address)
    for nonsense in (b"", b"[]", b'{"time": "soon", "process": 1, "host": "a", "id": 1}'):
        folder.write("lock", nonsense)
        folder.lock()
        folder.unlock()
        assert folder.names() == []


@pytest.mark.parametrize("call", ["pipe_file", "mv"])
def test_remote_write_that_fails_leaves_the_old_file_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    folder = moving_folder(tmp_path)
    folder.make()
    folder.write("a", b"old")
    monkeypatch.setattr(DirFileSystem, call, fail(RuntimeError("no credentials")))
    with pytest.raises(OSError, match="no credentials") as caught:
        folder.write("a", b"new")
    assert caught.value.strerror == "no credentials"
    assert folder.read("a") == b"old"
    assert folder.names() == ["a"]


def test_remote_connection_that_breaks_is_not_a_missing_file(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = folder_at(address)
    folder.write("a", b"")
    monkeypatch.setattr(MemoryFileSystem, "info", fail(ConnectionError()))
    with pytest.raises(OSError, match="ConnectionError"):
        folder.exists("a")


class KeptListings(MemoryFileSystem):
    """Remembers what it has listed until it is told to forget, as the file systems of object stores do."""

    kept: ClassVar[dict[str, Any]] = {}

    def ls(self, path: str, **options: Any) -> Any:
        if path not in self.kept:
            self.kept[path] = super().ls(path, **options)
        return self.kept[path]

    def invalidate_cache(self, path: str | None = None) -> None:
        self.kept.clear()


def test_remote_names_are_those_that_are_there_now(address: str) -> None:
    folder = RemoteFolder(address, KeptListings(), address.removeprefix("memory:/"))
    folder.write("a", b"")
    assert folder.names() == ["a"]
    folder_at(address).write("b", b"")  # by another process, say
    assert folder.names() == ["a", "b"]


# Studies at an address.


def outcome(place: Path | str) -> tuple[list[dict[str, Any]], dict[str, bytes]]:
    """Everything that a finished study holds, bit for bit, timings aside."""
    folder = folder_at(place)
    rows = [json.loads(line) for line in folder.read("trials.jsonl").splitlines()]
    for row in rows:
        row.pop("seconds")
    names = ["curves.safetensors", "gradients.safetensors", "groups.json"]
    names += [f"models/{name}" for name in folder.names("models")]
    return rows, {name: folder.read(name) for name in names}


@pytest.fixture(scope="module")
def on_disk(tmp_path_factory: pytest.TempPathFactory, task: Task) -> Path:
    place = tmp_path_factory.mktemp("disk")
    run_study(STUDY, place, device="cpu", group_size=2, task=task)
    return place


def test_study_at_an_address_equals_one_on_the_disk(address: str, on_disk: Path, task: Task) -> None:
    returned = run_study(STUDY, address, device="cpu", group_size=2, task=task)
    assert outcome(address) == outcome(on_disk)
    assert set(folder_at(address).names()) == set(os.listdir(on_disk)) - {"lock"}
    there, here = Recorded(address), Recorded(on_disk)
    assert there.trials() == returned
    assert there.study() == STUDY
    assert there.folder == address
    models = there.model(1, task).state_dict(), here.model(1, task).state_dict()
    assert all(torch.equal(value, models[1][name]) for name, value in models[0].items())


@pytest.mark.parametrize("stopped_after", [1, 4, 8])
def test_study_at_an_address_goes_on_where_it_was_stopped(
    address: str, on_disk: Path, task: Task, stopped_after: int
) -> None:
    asked = iter([False] * stopped_after + [True])
    with pytest.raises(Interrupted):
        run_study(STUDY, address, device="cpu", group_size=2, task=task, stop=lambda: next(asked))
    lines: list[str] = []
    run_study(STUDY, address, device="cpu", group_size=2, task=task, say=lines.append)
    assert f"from step {stopped_after % 6 + 1}" in lines[-1]
    assert outcome(address) == outcome(on_disk)


def test_study_at_an_address_other_settings_are_refused_and_fresh_starts_over(address: str) -> None:
    with Store(address, STUDY) as store:
        store.save_checkpoint(0, {"a": torch.ones(1)}, {"step": 1})
    other = Study(**{**STUDY.as_dict(), "hidden": 5})
    with pytest.raises(UsageError, match=r"memory://.*/study holds another study; what differs:\s+hidden: 4 there, 5"):
        Store(address, other)
    assert folder_at(address).names() == ["checkpoint-000.safetensors", "study.json"]  # and no lock
    with Store(address, other, fresh=True) as store:
        assert store.load_checkpoint(0) is None


def test_study_at_an_address_in_use_is_refused(address: str) -> None:
    with Store(address, STUDY), pytest.raises(UsageError, match="study is in use by another process"):
        Store(address, STUDY)
    with Store(address, STUDY):
        pass


def test_study_lock_that_was_left_half_written_is_no_foreign_thing(address: str) -> None:
    folder_at(address).write("lock.part", b"")
    with Store(address, STUDY) as store:
        assert store.trials() == []


def test_study_at_an_address_with_other_things_is_refused(address: str) -> None:
    folder_at(address).write("film", b"")
    with pytest.raises(UsageError, match=r"memory://.* holds other things than a study \(film\)"):
        Store(address, STUDY)
    assert folder_at(address).names() == ["film"]


def test_study_at_an_address_damaged_files_are_named(address: str, task: Task) -> None:
    with Store(address, STUDY):
        pass
    for name in ("checkpoint-000.safetensors", "curves.safetensors", "trials.jsonl"):
        folder_at(address).write(name, b"garbage")
    with Store(address, STUDY) as store:
        with pytest.raises(UsageError, match=r"memory://.*/checkpoint-000.safetensors: not a checkpoint"):
            store.load_checkpoint(0)
        with pytest.raises(UsageError, match=r"memory://.*/curves.safetensors: not readable"):
            store.curves()
        with pytest.raises(UsageError, match=r"memory://.*/trials.jsonl, line 1: not JSON"):
            store.trials()
        with pytest.raises(UsageError, match=r"memory://.*/models/trial-000.safetensors: there is no model of trial 0"):
            store.model(0, task)


def test_study_at_an_address_that_cannot_be_written_is_named(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(MemoryFileSystem, "pipe_file", fail(PermissionError(errno.EACCES, "Permission denied")))
        with pytest.raises(UsageError, match=r"cannot write to the folder memory://.*/study: Permission denied\."):
            Store(address, STUDY)
    with Store(address, STUDY) as store:
        store.save_checkpoint(0, {"a": torch.ones(1)}, {"step": 1})
        monkeypatch.setattr(MemoryFileSystem, "pipe_file", fail(TimeoutError("no answer")))
        monkeypatch.setattr(MemoryFileSystem, "rm_file", fail(TimeoutError("no answer")))
        with pytest.raises(
            UsageError, match=r"cannot write memory://.*/groups.json: no answer. What was written before"
        ):
            store.set_group_size(2)
        with pytest.raises(UsageError, match=r"cannot remove memory://.*/checkpoint-000.safetensors: no answer"):
            store.drop_checkpoint(0)


def test_study_at_an_address_that_cannot_be_read_is_named(
    address: str, on_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store(address, STUDY) as store:
        store.save_checkpoint(0, {"a": torch.ones(1)}, {"step": 1})
        folder_at(address).write("trials.jsonl", b"")
        with monkeypatch.context() as patch:
            patch.setattr(MemoryFileSystem, "cat_file", fail(TimeoutError("no answer")))
            with pytest.raises(UsageError, match=r"memory://.*/checkpoint-000.safetensors: not readable \(.*no answer"):
                store.load_checkpoint(0)
            with pytest.raises(UsageError, match=r"memory://.*/trials.jsonl: no answer"):
                store.trials()
        with monkeypatch.context() as patch:
            patch.setattr(MemoryFileSystem, "info", fail(TimeoutError("no answer")))
            with pytest.raises(UsageError, match=r"memory://.*/trials.jsonl: no answer"):
                store.trials()
        with monkeypatch.context() as patch:
            patch.setattr(MemoryFileSystem, "ls", fail(TimeoutError("no answer")))
            with pytest.raises(UsageError, match=r"memory://.*/study: no answer"):
                store.checkpoints()


def test_studies_below_an_address_are_collected_with_their_names(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "deep/b"):
        with Store(f"{address}/{name}", STUDY):
            pass
    found = collect([address])
    assert [one.name for one in found.studies] == ["a", "deep/b"]
    assert found.problems == []
    found = collect([f"{address}/a", f"{address}/deep", f"{address}/nothing", "nowhere://a"])
    assert [one.name for one in found.studies] == ["a", "deep/b"]
    assert found.problems[0] == f"{address}/nothing: there is no study in this folder (no study.json)."
    assert "nowhere" in found.problems[1]
    monkeypatch.setattr(MemoryFileSystem, "find", fail(TimeoutError("no answer")))
    assert collect([address]).problems == [f"{address}: no answer."]
