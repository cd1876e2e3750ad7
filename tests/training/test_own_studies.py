"""Studies of one's own data and tasks: from arrays, from files, by the command, with the report."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from mistrnn.cli import _app
from mistrnn.errors import UsageError
from mistrnn.tasks import TASKS, Recordings, register_task
from mistrnn.training import Recorded, Study, run_study, summarise
from tests.cli.command import Mist
from tests.tasks.own_recordings import OwnRecordings, labels_of_steps, recordings, write_folder
from tests.tasks.own_regression import Sums
from tests.training.test_sweep import outcome

SMALL: dict[str, Any] = {
    "layer": "mist",
    "hidden": 6,
    "trials": 3,
    "steps": 8,
    "validate_every": 4,
    "batch_size": 5,
    "layer_options": {"delays": 3},
}
FLAGS = [
    "--hidden",
    "6",
    "--trials",
    "3",
    "--steps",
    "8",
    "--validate-every",
    "4",
    "--batch-size",
    "5",
    "--delays",
    "3",
    "--device",
    "cpu",
]


@pytest.fixture(autouse=True)
def only_built_in_tasks() -> Iterator[None]:
    before = dict(TASKS)
    yield
    TASKS.clear()
    TASKS.update(before)


@pytest.fixture
def mist(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Mist:
    monkeypatch.setattr(_app.console, "_width", 200)
    return Mist(monkeypatch, capsys)


def of_arrays(*, every_step: bool = False) -> Recordings:
    x, y, groups = recordings()
    return Recordings(x, labels_of_steps(x) if every_step else y, groups)


@pytest.mark.parametrize("every_step", [False, True], ids=["label of a case", "labels of steps"])
def test_study_of_arrays_trains_tests_and_resumes(tmp_path: Path, every_step: bool) -> None:
    study, task = Study(task="recordings", **SMALL), of_arrays(every_step=every_step)
    rows = run_study(study, tmp_path, task=task, device="cpu")
    assert [row["status"] for row in rows] == ["ok"] * 3
    assert 0 <= summarise(rows).test_error[0] <= 1
    model = Recorded(tmp_path).model(summarise(rows).top[0], task)
    inputs, _ = task.batch("test", torch.arange(2))
    scores, _ = model(inputs)
    assert scores.shape == (inputs.size(0), 2, 2)
    again = run_study(study, tmp_path, task=of_arrays(every_step=every_step), report=lambda _: pytest.fail("a step"))
    assert again == rows


def test_study_learns_what_the_recordings_say(tmp_path: Path) -> None:
    study = Study(task="recordings", **{**SMALL, "steps": 60, "trials": 2, "learning_rate": 0.1})
    task = of_arrays(every_step=True)
    rows = run_study(study, tmp_path, task=task, device="cpu")
    assert summarise(rows).test_error[0] < 0.5 * task.trivial_error


def test_other_recordings_in_the_same_folder_are_refused(tmp_path: Path) -> None:
    study = Study(task="recordings", **SMALL)
    run_study(study, tmp_path, task=of_arrays(), device="cpu", only=[0])
    with pytest.raises(UsageError, match=r"holds another study; what differs:\n  data: 'recordings\|"):
        run_study(study, tmp_path, task=of_arrays(every_step=True), device="cpu")


def test_task_of_another_study_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="expected a task 'copy', because the study says so, got 'recordings'"):
        run_study(Study(task="copy", **SMALL), tmp_path / "study", task=of_arrays())
    assert not (tmp_path / "study").exists()


def test_study_of_recordings_without_data_says_how_to_give_it(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="recordings: expected a data folder; give it with --data DIR"):
        run_study(Study(task="recordings", **SMALL), tmp_path)


def test_registered_task_is_studied_by_its_name(tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match=r"expected a task among copy, .*, got 'own-recordings'\. One's own are made known"
    ):
        Study(task="own-recordings", **SMALL)
    register_task(OwnRecordings)
    study = Study(task="own-recordings", layer="lstm", hidden=4, trials=2, batch_size=5, task_settings={"count": 30})
    assert (study.total_steps, study.validation_interval) == (6, 3)
    rows = run_study(study, tmp_path / "by name", device="cpu")
    assert [row["status"] for row in rows] == ["ok"] * 2
    run_study(study, tmp_path / "at hand", device="cpu", task=OwnRecordings(count=30))
    assert outcome(tmp_path / "at hand") == outcome(tmp_path / "by name")


def test_registered_regression_is_studied_and_reported(tmp_path: Path, mist: Mist) -> None:
    register_task(Sums)
    run_study(Study(task="sums", **SMALL), tmp_path / "study", device="cpu")
    status, out, err = mist("report", tmp_path / "study", "--out", tmp_path / "report.html")
    assert status == 0, out + err
    assert "sums of numbers" in (tmp_path / "report.html").read_text()


def settings_in(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "study.json").read_text())["settings"]["task_settings"]
    return found


def test_command_studies_a_folder_of_recordings_and_reports(
    tmp_path: Path, mist: Mist, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = write_folder(tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    own = ["--data", "data", "--labels", "data/labels.csv", "--group-column", "user", "--columns", "ax,ay"]
    status, out, err = mist("sweep", "recordings", *own, "--out", "study", *FLAGS)
    assert status == 0, out + err
    assert "mist 6 on recordings: test error rate" in out
    assert "Of 36 recordings, 24 train, 6 validate (user-" in out
    assert settings_in(tmp_path / "study") == {
        "columns": ["ax", "ay"], "group_column": "user", "labels": "labels.csv"
    }  # fmt: skip
    monkeypatch.chdir("/")  # a study goes on from anywhere
    study = Recorded(tmp_path / "study").study()
    rows = run_study(study, tmp_path / "study", data=data, report=lambda _: pytest.fail("a step was taken"))
    assert len(rows) == 3
    status, out, err = mist("report", tmp_path / "study", "--out", tmp_path / "report.html")
    assert status == 0, out + err
    page = (tmp_path / "report.html").read_text()
    assert "classify recordings of your own" in page
    assert "labels.csv" in page


def test_command_studies_labels_of_rows(tmp_path: Path, mist: Mist) -> None:
    data = write_folder(tmp_path / "data", rows=True)
    own = ["--data", data, "--label-column", "state", "--learning-rate", "0.1"]
    flags = FLAGS[:2] + FLAGS[4:]  # without the trials: it trains one
    status, out, err = mist("train", "recordings", *own, "--out", tmp_path / "study", *flags)
    assert status == 0, out + err
    assert settings_in(tmp_path / "study") == {"label_column": "state"}
    status, out, err = mist("attention", tmp_path / "study", "--data", data, "--out", tmp_path / "attention")
    assert status == 0, out + err
    assert "delay" in out


def test_command_passes_settings_of_a_registered_task(tmp_path: Path, mist: Mist) -> None:
    register_task(OwnRecordings)
    own = ["sweep", "own-recordings", "--out", tmp_path / "study", *FLAGS]
    status, out, err = mist(*own, "--setting", "count=30")
    assert status == 0, out + err
    assert settings_in(tmp_path / "study") == {"count": 30}
    status, _, err = mist(*own, "--setting", "count")
    assert status == 2
    assert "expected --setting NAME=VALUE, got 'count'." in err
    status, _, err = mist(*own, "--fresh", "--setting", "size=3")
    assert status == 2
    assert "own-recordings: expected no setting size, because the task's own are: count." in err
    assert "--setting count" in mist("tasks")[1]


def test_flags_of_recordings_are_refused_by_other_tasks(tmp_path: Path, mist: Mist) -> None:
    for flags, name in ((["--per-recording"], "per_recording"), (["--labels", "x.csv"], "labels")):
        status, _, err = mist("sweep", "copy", "--out", tmp_path / "study", *FLAGS, *flags)
        assert status == 2
        assert f"copy: expected no setting {name}, because the task's own are: delay." in err
