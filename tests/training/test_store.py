"""The study's folder: what it refuses, and what survives failures."""

import errno
import json
import os
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import torch
from hypothesis import strategies

from mistrnn.errors import UsageError
from mistrnn.training import Study
from mistrnn.training.provenance import code_digest, command_line, commit_of
from mistrnn.training.recorded import Recorded
from mistrnn.training.store import Store

STUDY = Study(task="copy", layer="mist", hidden=8, trials=2, steps=5, task_settings={"delay": 10})
ROW: dict[str, Any] = {
    "trial": 0,
    "status": "ok",
    "learning_rate": 0.01,
    "val_error": 0.1,
    "test_error": 0.2,
    "best_step": 5,
    "steps": 10,
    "parameters": 7,
    "seconds": 1.5,
    "group": 1,
    "device": "cpu",
}


def test_same_settings_open_again_and_others_are_refused_by_name(tmp_path: Path) -> None:
    with Store(tmp_path, STUDY):
        pass
    with Store(tmp_path, STUDY):
        pass
    other = Study(task="copy", layer="lstm", hidden=8, trials=2, steps=9, task_settings={"delay": 20})
    with pytest.raises(UsageError) as caught:
        Store(tmp_path, other)
    message = str(caught.value)
    assert "layer: 'mist' there, 'lstm' here" in message
    assert "steps: 5 there, 9 here" in message
    assert "task_settings: {'delay': 10} there, {'delay': 20} here" in message
    assert message.endswith("Use another folder, or --fresh to start over.")


def test_fresh_forgets_the_old_study(tmp_path: Path) -> None:
    with Store(tmp_path, STUDY) as store:
        store.finish([ROW], {0: [(5, 1.0, 0.1)]}, {0: {"w": torch.ones(2)}})
        store.save_checkpoint(0, {"a": torch.ones(1)}, {"step": 1})
    other = Study(task="copy", layer="lstm", hidden=8, trials=2, steps=9)
    with Store(tmp_path, other, fresh=True) as store:
        assert store.trials() == []
        assert store.load_checkpoint(0) is None
        assert store.curves()["step"].numel() == 0
        assert list((tmp_path / "models").iterdir()) == []


def test_finished_trials_are_ordered_and_keep_their_curves_and_models(tmp_path: Path) -> None:
    with Store(tmp_path, STUDY) as store:
        store.finish([{**ROW, "trial": 1}], {1: [(5, 1.0, 0.1), (10, 0.5, 0.05)]}, {1: {"w": torch.ones(2)}})
        store.finish([ROW], {0: [(5, 2.0, 0.2)]}, {0: {"w": torch.zeros(2)}})
        store.finish([ROW], {0: [(5, 2.0, 0.2)]}, {0: {"w": torch.zeros(2)}})  # a repetition changes nothing
        assert [row["trial"] for row in store.trials()] == [0, 1]
        curves = store.curves()
    assert curves["trial"].tolist() == [0, 1, 1]
    assert curves["step"].tolist() == [5, 5, 10]
    assert curves["val_error"].tolist() == [0.2, 0.1, 0.05]
    assert sorted(path.name for path in (tmp_path / "models").iterdir()) == [
        "trial-000.safetensors",
        "trial-001.safetensors",
    ]


Points = dict[int, list[tuple[int, float, float]]]


@hypothesis.given(
    strategies.lists(
        strategies.dictionaries(
            strategies.integers(0, 4),
            strategies.lists(
                strategies.tuples(strategies.integers(0, 5), strategies.floats(0, 1), strategies.floats(0, 1))
            ),
        ),
        max_size=4,
    )
)
def test_finished_curves_and_gradients_are_those_of_points_merged_one_by_one(finished: list[Points]) -> None:
    points: dict[tuple[int, int], tuple[float, float]] = {}
    with tempfile.TemporaryDirectory() as folder, Store(Path(folder), STUDY) as store:
        for curves in finished:
            points |= {(trial, step): (loss, error) for trial, curve in curves.items() for step, loss, error in curve}
            gradients = {
                trial: [(step, torch.tensor([loss, error], dtype=torch.float64)) for step, loss, error in curve]
                for trial, curve in curves.items()
            }
            store.finish([], curves, {}, gradients)
        found, norms = store.curves(), store.gradients()
    ordered = sorted(points)
    assert {name: column.dtype for name, column in found.items()} == {
        "trial": torch.int64,
        "step": torch.int64,
        "train_loss": torch.float64,
        "val_error": torch.float64,
    }
    assert list(zip(found["trial"].tolist(), found["step"].tolist(), strict=True)) == ordered
    values = [points[key] for key in ordered]
    assert list(zip(found["train_loss"].tolist(), found["val_error"].tolist(), strict=True)) == values
    assert ("norms" in norms) == bool(points)
    if points:
        assert list(zip(norms["trial"].tolist(), norms["step"].tolist(), strict=True)) == ordered
        assert [tuple(row) for row in norms["norms"].tolist()] == values


def test_checkpoints_are_listed_by_their_first_trials(tmp_path: Path) -> None:
    with Store(tmp_path, STUDY) as store:
        assert store.checkpoints() == []
        for first in (1000, 20, 0):
            store.save_checkpoint(first, {"a": torch.ones(1)}, {"step": 1})
        (tmp_path / "checkpoint-007.safetensors.part").write_bytes(b"half")
        assert store.checkpoints() == [0, 20, 1000]
        store.drop_checkpoint(20)
        assert store.checkpoints() == [0, 1000]


def test_second_process_on_the_folder_is_refused(tmp_path: Path) -> None:
    with (
        Store(tmp_path, STUDY),
        pytest.raises(UsageError, match=rf"is in use by another process \(process {os.getpid()}\)"),
    ):
        Store(tmp_path, STUDY)
    with Store(tmp_path, STUDY):
        pass  # and free again afterwards


def test_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"cannot write to the folder .*file/study"):
        Store(tmp_path / "file" / "study", STUDY)


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_full_disk_is_named_and_leaves_the_last_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    with Store(tmp_path, STUDY) as store:
        store.save_checkpoint(0, {"a": torch.ones(3)}, {"step": 1})

        def no_space(*_: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(os, call, no_space)
        with pytest.raises(
            UsageError, match=r"checkpoint-000.safetensors: the disk is full. What was written before is intact"
        ):
            store.save_checkpoint(0, {"a": torch.zeros(3)}, {"step": 2})
        monkeypatch.undo()
        checkpoint = store.load_checkpoint(0)
    assert checkpoint is not None
    assert checkpoint[1] == {"step": 1}
    assert checkpoint[0]["a"].tolist() == [1, 1, 1]
    assert not list(tmp_path.rglob("*.part"))


def test_real_full_device_is_named(tmp_path: Path) -> None:
    """/dev/full answers every write with 'no space left'."""
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    with Store(tmp_path, STUDY) as store:
        (tmp_path / "checkpoint-000.safetensors.part").symlink_to("/dev/full")
        with pytest.raises(UsageError, match="the disk is full"):
            store.save_checkpoint(0, {"a": torch.zeros(3)}, {"step": 2})
        assert store.load_checkpoint(0) is None


def test_leftovers_of_a_killed_write_are_removed(tmp_path: Path) -> None:
    with Store(tmp_path, STUDY):
        pass
    (tmp_path / "checkpoint-000.safetensors.part").write_bytes(b"half")
    (tmp_path / "models" / "trial-000.safetensors.part").write_bytes(b"half")
    with Store(tmp_path, STUDY) as store:
        assert store.load_checkpoint(0) is None
    assert not list(tmp_path.rglob("*.part"))


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("study.json", "{", "study.json: not readable as JSON"),
        ("study.json", "[]", "study.json: expected a JSON object, got list"),
        ("study.json", json.dumps({"format": 99}), "study.json: expected a study of format 1, got 99"),
        ("trials.jsonl", "{\n", "trials.jsonl, line 1: not JSON"),
        ("trials.jsonl", "5\n", "trials.jsonl, line 1: expected a trial with its status"),
        ("trials.jsonl", (json.dumps(ROW) + "\n") * 2, "trials.jsonl, line 2: trial 0 once more"),
        ("curves.safetensors", "garbage", "curves.safetensors: not readable"),
        ("groups.json", '{"group_size": 0}', "groups.json: expected a group_size >= 1, got 0"),
        ("checkpoint-000.safetensors", "garbage", "checkpoint-000.safetensors: not a checkpoint"),
    ],
)
def test_damaged_files_are_named(tmp_path: Path, name: str, content: str, expected: str) -> None:
    with Store(tmp_path, STUDY):
        pass
    (tmp_path / name).write_text(content)

    def read() -> None:
        with Store(tmp_path, STUDY) as store:
            store.trials()
            store.curves()
            store.group_size()
            store.load_checkpoint(0)

    with pytest.raises(UsageError, match=expected):
        read()


def test_trials_without_settings_are_refused(tmp_path: Path) -> None:
    (tmp_path / "trials.jsonl").write_text("")
    with pytest.raises(UsageError, match=r"holds other things than a study \(trials.jsonl\)"):
        Store(tmp_path, STUDY)


def test_other_data_is_refused_by_name(tmp_path: Path) -> None:
    with Store(tmp_path, STUDY, "abc"):
        pass
    with pytest.raises(UsageError, match="data: 'abc' there, 'xyz' here"):
        Store(tmp_path, STUDY, "xyz")


def test_only_the_studys_own_files_are_removed(tmp_path: Path) -> None:
    with Store(tmp_path, STUDY) as store:
        store.finish([ROW], {}, {0: {"w": torch.ones(2)}})
    for name in ("notes.txt", "film.part", "models/mine.py"):
        (tmp_path / name).write_text("mine")
    with Store(tmp_path, STUDY, fresh=True) as store:
        assert store.trials() == []
    assert (tmp_path / "notes.txt").exists()
    assert (tmp_path / "film.part").exists()
    assert [path.name for path in (tmp_path / "models").iterdir()] == ["mine.py"]


def test_row_of_a_new_folder_is_stored_and_stays(tmp_path: Path) -> None:
    with Store(tmp_path, STUDY, row="table1/mist-139") as store:
        assert store.row() == "table1/mist-139"
    with Store(tmp_path, STUDY) as store:
        assert store.row() == "table1/mist-139"


def test_row_of_a_folder_without_one_is_none(tmp_path: Path) -> None:
    with Store(tmp_path, STUDY):
        pass
    assert "row" not in json.loads((tmp_path / "study.json").read_text())
    assert Recorded(tmp_path).row() is None


def test_row_that_is_no_name_is_refused(tmp_path: Path) -> None:
    with Store(tmp_path, STUDY) as store:
        stored = json.loads((tmp_path / "study.json").read_text()) | {"row": 3}
        (tmp_path / "study.json").write_text(json.dumps(stored))
        with pytest.raises(UsageError, match="expected the name of a row, got 3"):
            store.row()


def test_group_size_is_remembered(tmp_path: Path) -> None:
    with Store(tmp_path, STUDY) as store:
        assert store.group_size() is None
        store.set_group_size(7)
    with Store(tmp_path, STUDY) as store:
        assert store.group_size() == 7


def test_study_says_what_made_it(tmp_path: Path) -> None:
    with Store(tmp_path, STUDY):
        about = json.loads((tmp_path / "study.json").read_text())["about"]
    assert about["torch"] == torch.__version__
    assert about["began"].startswith("20")
    assert about["code"] == code_digest()
    assert about["command"]
    assert about["cpu"]
    assert about["cores"] >= 1
    assert about["threads"] == torch.get_num_threads()


def test_study_resumed_by_another_command_says_so_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["mist", "sweep", "copy"])
    with Store(tmp_path, STUDY) as store:
        store.note_continuation()
        assert "continued" not in store.settings()
    monkeypatch.setattr("sys.argv", ["mist", "sweep", "copy", "--only", "1"])
    for _ in range(2):
        with Store(tmp_path, STUDY) as store:
            store.note_continuation()
    (again,) = store.settings()["continued"]
    assert again["command"] == "mist sweep copy --only 1"


def test_commit_of_a_checkout_names_it_and_says_if_files_differ(tmp_path: Path) -> None:
    package = tmp_path / "src" / "package"
    package.mkdir(parents=True)
    assert commit_of(package) is None

    def git(*arguments: str) -> None:
        who = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
        subprocess.run(["git", "-C", str(tmp_path), *who, *arguments], check=True, capture_output=True)

    (package / "a.py").write_text("1")
    git("init")
    git("add", ".")
    git("commit", "-m", "first")
    commit_of.cache_clear()
    clean = commit_of(package)
    assert clean is not None
    assert re.fullmatch("[0-9a-f]{12}", clean)
    (package / "a.py").write_text("2")
    commit_of.cache_clear()
    assert commit_of(package) == f"{clean}+changes"
    commit_of.cache_clear()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["/x/pytest/__main__.py", "-q"], "python -m pytest -q"),
        (["/x/examples/hapt.py", "a b"], "python hapt.py 'a b'"),
        (["/x/bin/pytest"], "pytest"),
    ],
)
def test_command_line_has_the_program_by_its_short_name(arguments: list[str], expected: str) -> None:
    assert command_line(arguments) == expected


def test_code_is_known_by_its_sources_wherever_it_lies(tmp_path: Path) -> None:
    def digest(place: str, **files: str) -> str:
        for name, text in files.items():
            path = tmp_path / place / "kernels" / name.replace("_", ".")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return code_digest(tmp_path / place)

    first = digest("a", a_py="1", b_cuh="2")
    assert digest("b", a_py="1", b_cuh="2", compiled_so="x") == first
    assert len({first, digest("c", a_py="1", b_cuh="3"), digest("d", a_py="1", c_cuh="2")}) == 3
