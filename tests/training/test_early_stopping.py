"""Hopeless trials are given up on request, by Optuna's asynchronous successive halving."""

import json
import sys
from pathlib import Path

import pytest

from mistrnn.errors import UsageError
from mistrnn.training import Interrupted, Study, run_study, summarise
from mistrnn.training.early_stopping import Asha
from tests.training.test_sweep import outcome

pytest.importorskip("optuna")

STUDY = Study(
    task="copy",
    layer="rnn",
    hidden=6,
    trials=8,
    steps=64,
    batch_size=5,
    validate_every=4,
    task_settings={"delay": 10},
    early_stop="asha",
)


def test_asha_lets_the_best_quarter_of_those_so_far_go_on() -> None:
    judge = Asha(STUDY)
    arriving = [0.5, 0.4, 0.6, 0.3, 0.2, 0.7, 0.1, 0.15, 0.18]
    verdicts = [bool(judge.hopeless([(trial, 4, 0.0, error)])) for trial, error in enumerate(arriving)]
    # The best quarter of fewer than eight is whoever is best so far; of eight or nine it is two.
    assert verdicts == [False, False, True, False, False, True, False, False, True]


def test_asha_judges_after_a_sixteenth_and_a_quarter_of_the_steps_only() -> None:
    judge = Asha(STUDY)
    judge.hopeless([(0, 4, 0.0, 0.1)])
    judge.hopeless([(0, 16, 0.0, 0.1)])
    assert judge.hopeless([(1, 4, 0.0, 0.1)]) == []
    for step in (8, 12):
        assert judge.hopeless([(1, step, 0.0, 0.9)]) == []
    assert judge.hopeless([(1, 16, 0.0, 0.9)]) == [1]


def test_stopped_trials_are_listed_with_their_step_and_counted(tmp_path: Path) -> None:
    rows = run_study(STUDY, tmp_path, device="cpu")
    stopped = [row for row in rows if row["status"] == "stopped"]
    assert len(rows) == 8
    assert 3 <= len(stopped) <= 7
    assert {row["steps"] for row in stopped} <= {4, 16}
    assert all(row["steps"] == 64 for row in rows if row["status"] == "ok")
    assert all(row["test_error"] is not None for row in stopped)
    assert summarise(rows).stopped == len(stopped)


def test_trials_that_go_on_are_what_they_are_without_early_stopping(tmp_path: Path) -> None:
    kept = [row for row in run_study(STUDY, tmp_path / "a", device="cpu", group_size=3) if row["status"] == "ok"]
    whole = run_study(Study(**{**STUDY.as_dict(), "early_stop": None}), tmp_path / "b", device="cpu", group_size=3)
    assert kept
    for row in kept:
        assert row["val_error"] == pytest.approx(whole[row["trial"]]["val_error"], abs=2e-3)


@pytest.mark.parametrize("steps", [3, 4, 5, 16, 40])
def test_interrupted_study_stops_the_same_trials(tmp_path: Path, steps: int) -> None:
    run_study(STUDY, tmp_path / "whole", device="cpu", group_size=4)
    taken = 0

    def stop() -> bool:
        nonlocal taken
        taken += 1
        return taken == steps

    with pytest.raises(Interrupted):
        run_study(STUDY, tmp_path / "cut", device="cpu", group_size=4, stop=stop)
    run_study(STUDY, tmp_path / "cut", device="cpu", group_size=4)
    assert outcome(tmp_path / "cut") == outcome(tmp_path / "whole")


def test_early_stopping_is_a_setting_of_the_study(tmp_path: Path) -> None:
    run_study(STUDY, tmp_path, device="cpu", only=[0])
    assert json.loads((tmp_path / "study.json").read_text())["settings"]["early_stop"] == "asha"
    with pytest.raises(UsageError, match="early_stop: 'asha' there, None here"):
        run_study(Study(**{**STUDY.as_dict(), "early_stop": None}), tmp_path, device="cpu")


def test_unknown_early_stopping_is_refused() -> None:
    with pytest.raises(UsageError, match="expected early_stop among asha or none, got 'median'"):
        Study(**{**STUDY.as_dict(), "early_stop": "median"})


def test_missing_optuna_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(UsageError, match=r"pip install 'mistrnn\[early-stopping\]'"):
        run_study(STUDY, tmp_path, device="cpu")
