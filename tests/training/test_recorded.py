"""Reading a study's folder: what is there, and a clear word about what is not."""

import json
from pathlib import Path

import pytest
import torch

from mistrnn.errors import UsageError
from mistrnn.tasks import Task, make_task
from mistrnn.training import Recorded, Study, run_study

STUDY = Study(
    task="copy",
    layer="mist",
    hidden=6,
    trials=2,
    steps=6,
    batch_size=5,
    validate_every=3,
    gradients_every=3,
    task_settings={"delay": 10},
    layer_options={"delays": 3},
)


@pytest.fixture(scope="module")
def task() -> Task:
    return make_task("copy", {"delay": 10})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, task: Task) -> Path:
    folder = tmp_path_factory.mktemp("study")
    run_study(STUDY, folder, device="cpu", task=task, group_size=1)
    return folder


def test_a_finished_study_is_read_back(folder: Path, task: Task) -> None:
    recorded = Recorded(folder)
    assert recorded.study() == STUDY
    rows = recorded.trials()
    assert [row["trial"] for row in rows] == [0, 1]
    assert rows[recorded.best_trial()]["val_error"] == min(row["val_error"] for row in rows)
    gradients = recorded.gradients()
    assert list(zip(gradients["trial"].tolist(), gradients["step"].tolist(), strict=True)) == [
        (trial, step) for trial in (0, 1) for step in (0, 3, 6)
    ]
    assert gradients["norms"].shape == (6, task.steps)
    model = recorded.model(1, task)
    inputs, targets = task.batch("test", torch.arange(1000))
    with torch.no_grad():
        error = task.errors(model(inputs)[0], targets) / targets.numel()
    assert error.item() == pytest.approx(rows[1]["test_error"], abs=1e-3)


def test_reading_changes_nothing(folder: Path, task: Task) -> None:
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    recorded = Recorded(folder)
    recorded.study(), recorded.curves(), recorded.gradients(), recorded.model(0, task)
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


def test_what_is_missing_or_broken_is_named(tmp_path: Path, folder: Path, task: Task) -> None:
    recorded = Recorded(tmp_path)
    with pytest.raises(UsageError, match=r"expected the folder of a study, and there is no study.json in it"):
        recorded.study()
    assert recorded.gradients() == {}
    with pytest.raises(UsageError, match="expected a finished trial with a validation error, and there is none yet"):
        recorded.best_trial()
    with pytest.raises(UsageError, match=r"trial-009.safetensors: there is no model of trial 9"):
        Recorded(folder).model(9, task)
    stored = json.loads((folder / "study.json").read_text())
    (tmp_path / "study.json").write_text(json.dumps({**stored, "format": 2}))
    with pytest.raises(UsageError, match=r"study.json: expected a study of format 1, got 2"):
        recorded.study()
    (tmp_path / "study.json").write_text(json.dumps({**stored, "settings": {**stored["settings"], "colour": "red"}}))
    with pytest.raises(UsageError, match=r"settings that this version does not know \(.*colour"):
        recorded.study()
    (tmp_path / "study.json").write_text(json.dumps({**stored, "settings": {**stored["settings"], "hidden": 7}}))
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "trial-000.safetensors").write_bytes((folder / "models/trial-000.safetensors").read_bytes())
    with pytest.raises(UsageError, match="not a model of this study"):
        recorded.model(0, task)
    (tmp_path / "gradients.safetensors").write_bytes(b"12345")
    with pytest.raises(UsageError, match=r"gradients.safetensors: not readable"):
        recorded.gradients()
