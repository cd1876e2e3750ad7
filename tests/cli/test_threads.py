"""Threads of a command: the load of the cores, the environment and the flag."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from mistrnn.cli import _app, _threads
from mistrnn.cli._threads import Sample, choose_threads, free_threads, sample
from tests.cli.command import SMALL, Mist

BEGIN = Sample(wall=100.0, busy=50.0, own=1.0)


@pytest.fixture(autouse=True)
def two_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    yield
    torch.set_num_threads(before)


def after(*, others: float, seconds: float = 2.0, own: float = 1.5) -> Sample:
    """The sample `seconds` later, where others have kept so many cores busy."""
    return Sample(BEGIN.wall + seconds, BEGIN.busy + own + others * seconds, BEGIN.own + own)


@pytest.mark.parametrize(
    ("others", "cores", "expected"),
    [(0.0, 2, 2), (0.2, 2, 2), (0.5, 2, 1), (1.0, 2, 1), (2.0, 2, 1), (3.0, 64, 64), (20.0, 64, 44), (64.0, 64, 1)],
)
def test_threads_are_the_cores_that_other_programs_leave_free(others: float, cores: int, expected: int) -> None:
    assert free_threads(BEGIN, after(others=others), cores) == expected


def test_load_that_cannot_be_measured_changes_nothing() -> None:
    assert free_threads(None, after(others=2.0), 2) == 2
    assert free_threads(BEGIN, None, 2) == 2
    assert free_threads(BEGIN, after(others=2.0, seconds=0.1, own=0.0), 2) == 2


def test_sample_counts_the_own_cores_without_programs_of_low_priority(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stat = tmp_path / "stat"
    stat.write_text(
        "cpu  9 9 9 9 9 9 9 9 0 0\ncpu0 100 4000 20 7 7 3 2 5 0 0\ncpu1 50 0 0 7 7 0 0 0 0 0\ncpu7 900 0 0 0 0 0 0 0 0 0\n"
    )
    monkeypatch.setattr(_threads, "STAT", stat)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    monkeypatch.setattr(os, "sysconf", lambda _: 100)
    for priority, busy in ((0, 1.8), (19, 41.8)):
        monkeypatch.setattr(os, "getpriority", lambda *_, own=priority: own)
        found = sample()
        assert found is not None
        assert found.busy == pytest.approx(busy)
    stat.write_text("cpu0 a\n")
    assert sample() is None
    monkeypatch.setattr(_threads, "STAT", tmp_path / "none")
    assert sample() is None


def test_flag_and_environment_are_above_the_load(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_threads, "sample", lambda: after(others=2.0))
    assert choose_threads(3, BEGIN) is None
    assert torch.get_num_threads() == 3
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert choose_threads(None, BEGIN) is None
    assert torch.get_num_threads() == 3
    monkeypatch.delenv("OMP_NUM_THREADS")
    sentence = choose_threads(None, BEGIN)
    assert torch.get_num_threads() == 1
    assert sentence is not None
    assert sentence.startswith("1 thread instead of 3, because other programs use the cores")
    torch.set_num_threads(3)
    monkeypatch.setattr(_threads, "sample", lambda: after(others=0.0))
    assert choose_threads(None, BEGIN) is None
    assert torch.get_num_threads() == 3


def test_command_says_that_it_takes_fewer_threads(mist: Mist, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_app, "load_at_start", BEGIN)
    monkeypatch.setattr(_threads, "sample", lambda: after(others=2.0))
    run = ["train", "copy", *SMALL, "--learning-rate", 0.1]
    status, _, err = mist(*run, "--out", tmp_path / "a")
    assert status == 0
    assert "mist: 1 thread instead of 2, because other programs use the cores" in err
    assert '"threads": 1' in (tmp_path / "a" / "study.json").read_text()
    assert mist("--threads", 2, *run, "--out", tmp_path / "b")[2].count("instead of") == 0
    assert '"threads": 2' in (tmp_path / "b" / "study.json").read_text()
    assert mist("tasks")[2] == ""
    status, _, err = mist("--threads", 0, "tasks")
    assert (status, "Invalid value for '--threads'" in err) == (2, True)
