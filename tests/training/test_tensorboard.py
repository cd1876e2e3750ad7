"""Studies in TensorBoard: one run for each trial, with its curve."""

import sys
import time
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from mistrnn.errors import UsageError
from mistrnn.training import Interrupted, Progress, Recorded, Study, run_study

STUDY = Study(
    task="copy",
    layer="rnn",
    hidden=4,
    trials=2,
    steps=6,
    validate_every=2,
    batch_size=5,
    learning_rate=0.01,
    task_settings={"delay": 10},
)


def logged(folder: Path, name: str) -> list[tuple[int, float]]:
    events = EventAccumulator(str(folder))
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars(name)]


def test_the_log_holds_the_curves(tmp_path: Path) -> None:
    run_study(STUDY, tmp_path / "study", log_dir=tmp_path / "log")
    curves = Recorded(tmp_path / "study").curves()
    for trial in range(2):
        own = curves["trial"] == trial
        for name, column in (("train_loss", "train_loss"), ("validation_error", "val_error")):
            found = logged(tmp_path / "log" / f"trial-{trial}", name)
            assert [step for step, _ in found] == curves["step"][own].tolist() == [2, 4, 6]
            assert [value for _, value in found] == pytest.approx(curves[column][own].tolist())


def test_a_resumed_study_is_logged_once(tmp_path: Path) -> None:
    steps = 0

    def count(progress: Progress) -> None:
        nonlocal steps
        steps = progress.step

    with pytest.raises(Interrupted):
        run_study(STUDY, tmp_path / "study", log_dir=tmp_path / "log", report=count, stop=lambda: steps == 4)
    # TensorBoard reads its files by their names: the second, and then how many this process has written, where 10 is before 9.
    time.sleep(1 - time.time() % 1)
    run_study(STUDY, tmp_path / "study", log_dir=tmp_path / "log")
    assert [step for step, _ in logged(tmp_path / "log" / "trial-1", "validation_error")] == [2, 4, 6]


def test_a_log_that_cannot_be_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="cannot write TensorBoard's files to"):
        run_study(STUDY, tmp_path / "study", log_dir=tmp_path / "file" / "log")
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ValueError, match=r"logging needs TensorBoard: pip install 'mistrnn\[tensorboard\]'"):
        run_study(STUDY, tmp_path / "study", log_dir=tmp_path / "log")


def test_a_log_that_is_a_file_is_refused_before_a_study_is_forgotten(tmp_path: Path) -> None:
    rows = run_study(STUDY, tmp_path / "study")
    (tmp_path / "log").write_text("mine")
    with pytest.raises(UsageError, match=r"cannot write TensorBoard's files to .*log: it is a file"):
        run_study(STUDY, tmp_path / "study", fresh=True, log_dir=tmp_path / "log")
    assert Recorded(tmp_path / "study").trials() == rows
