"""One model on many processes: shares of a batch, and a study under torchrun that equals the same study in one process."""

import json
import os
import signal
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from mistrnn.errors import UsageError
from mistrnn.training import Study, run_study
from mistrnn.training import processes as processes_module
from mistrnn.training.cluster import RayEngine
from mistrnn.training.processes import ALONE, Processes, joined
from tests.training.together import FEW, STUDY, make_data

ROOT = Path(__file__).parents[2]


def torchrun(processes: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}", "-m"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [*command, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=100, check=False
    )


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The study in one process, with its data."""
    folder = tmp_path_factory.mktemp("alone")
    run_study(STUDY, folder / "study", data=make_data(folder), device="cpu")
    return folder


def assert_same_study(one: Path, other: Path) -> None:
    """Everything is equal up to the order of sums."""
    rows = [[json.loads(line) for line in (f / "trials.jsonl").read_text().splitlines()] for f in (one, other)]
    for a, b in zip(*rows, strict=True):
        assert [a[name] for name in ("trial", "status", "best_step", "steps")] == [
            b[name] for name in ("trial", "status", "best_step", "steps")
        ]
        assert a["val_error"] == pytest.approx(b["val_error"], rel=1e-12)
        assert a["test_error"] == pytest.approx(b["test_error"], rel=1e-12)
    names = ["curves.safetensors", *(f"models/trial-{k:03}.safetensors" for k in range(STUDY.trials))]
    for name in names:
        mine, theirs = load_file(one / name), load_file(other / name)
        for key, value in mine.items():
            torch.testing.assert_close(value, theirs[key], rtol=1e-10, atol=1e-12)


def test_several_studies_in_one_job_are_those_of_one_process(tmp_path: Path, alone: Path) -> None:
    (tmp_path / "data").symlink_to(alone / "data")
    ran = torchrun(3, "tests.training.together", "twice", str(tmp_path))
    assert ran.returncode == 0, ran.stderr
    assert len((tmp_path / "first" / "trials.jsonl").read_text().splitlines()) == 2
    assert_same_study(tmp_path / "study", alone / "study")


@pytest.mark.parametrize("processes", [2, 3])
def test_study_on_several_processes_equals_the_one_of_a_single_process(
    tmp_path: Path, alone: Path, processes: int
) -> None:
    (tmp_path / "data").symlink_to(alone / "data")
    ran = torchrun(processes, "tests.training.together", "study", str(tmp_path))
    assert ran.returncode == 0, ran.stderr
    assert sorted(line for line in ran.stdout.splitlines() if line) == [
        f"process {rank}: 2 trials" for rank in range(processes)
    ]
    assert_same_study(tmp_path / "study", alone / "study")


def test_processes_without_a_sequence_change_nothing(tmp_path: Path, alone: Path) -> None:
    (tmp_path / "data").symlink_to(alone / "data")
    ran = torchrun(3, "tests.training.together", "few", str(tmp_path))
    assert ran.returncode == 0, ran.stderr
    run_study(FEW, tmp_path / "alone", data=alone / "data", device="cpu")
    assert_same_study(tmp_path / "study", tmp_path / "alone")


def test_study_stopped_with_two_processes_goes_on_with_three_and_with_one(tmp_path: Path, alone: Path) -> None:
    (tmp_path / "data").symlink_to(alone / "data")
    ran = torchrun(2, "tests.training.together", "stop", str(tmp_path))
    assert sorted(line for line in ran.stdout.splitlines() if line) == [
        "process 0: interrupted",
        "process 1: interrupted",
    ]
    with_three = tmp_path / "three"
    with_three.mkdir()
    (with_three / "data").symlink_to(alone / "data")
    subprocess.run(["cp", "-r", tmp_path / "study", with_three / "study"], check=True)
    assert torchrun(3, "tests.training.together", "study", str(with_three)).returncode == 0
    assert_same_study(with_three / "study", alone / "study")
    said: list[str] = []
    run_study(STUDY, tmp_path / "study", data=alone / "data", device="cpu", say=said.append)
    assert said == ["going on with trials 0 to 1 from step 3"]
    assert_same_study(tmp_path / "study", alone / "study")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_to_one_process_saves_before_all_leave(tmp_path: Path, number: signal.Signals) -> None:
    flags = "--layer rnn --hidden 8 --learning-rate 0.01 --delay 10 --steps 100000 --batch-size 5 --device cpu"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "mistrnn"]
    running = subprocess.Popen(
        [*command, "train", "copy", "--out", str(tmp_path / "study"), *flags.split()],
        cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    assert running.stdout is not None
    while not (line := running.stdout.readline()).startswith("step "):  # the first line of progress, after 10 s
        assert line, "it ended before"
    children = Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()
    ranks = {Path(f"/proc/{child}/environ").read_bytes().split(b"\0RANK=")[1][:1]: int(child) for child in children}
    os.kill(ranks[b"1"], number)
    output, _ = running.communicate(timeout=60)
    assert "stopped; saved in" in output
    assert "Traceback" not in output.split("stopped; saved in")[0]
    assert (tmp_path / "study" / "checkpoint-000.safetensors").exists()


def test_folder_that_cannot_be_used_is_said_once(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    flags = "--layer rnn --hidden 4 --learning-rate 0.1 --delay 10 --steps 4 --batch-size 5 --device cpu"
    ran = torchrun(2, "mistrnn", "train", "copy", "--out", str(tmp_path), *flags.split())
    assert ran.returncode != 0
    assert ran.stderr.count("holds other things than a study (notes.txt)") == 1
    assert "Traceback" not in ran.stderr.split("holds other things")[0]


def test_all_processes_hold_the_same_bits(alone: Path) -> None:
    ran = torchrun(3, "tests.training.together", "bits", str(alone))
    assert ran.returncode == 0, ran.stderr
    assert "same bits" in ran.stdout


def test_layer_in_torchs_own_wrapper_has_the_gradients_of_one_process() -> None:
    ran = torchrun(2, "tests.training.together", "ddp", "-")
    assert ran.returncode == 0, ran.stderr
    assert "same gradients" in ran.stdout


def test_train_under_torchrun_prints_once(tmp_path: Path) -> None:
    flags = "--layer rnn --hidden 4 --learning-rate 0.1 --delay 10 --steps 4 --batch-size 5 --device cpu"
    ran = torchrun(2, "mistrnn", "train", "copy", "--out", str(tmp_path), *flags.split())
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count("rnn 4 on copy: test error rate") == 1
    assert len((tmp_path / "trials.jsonl").read_text().splitlines()) == 1


@given(st.lists(st.integers(1, 200), min_size=1, max_size=40), st.integers(1, 6))
def test_shares_are_all_sequences_once_and_even(lengths: list[int], count: int) -> None:
    given_lengths = torch.tensor([lengths])
    shares = [Processes(rank, count).share(given_lengths)[0] for rank in range(count)]
    assert sorted(torch.cat(shares).tolist()) == list(range(len(lengths)))
    padded = [len(share) * int(given_lengths[0, share].max()) if len(share) else 0 for share in shares]
    # An even cut of the sorted list is one way to share; ours is at least as even.
    ordered, size = sorted(lengths, reverse=True), -(-len(lengths) // count)
    even = [ordered[begin : begin + size] for begin in range(0, len(ordered), size)]
    assert max(padded) <= max(len(part) * part[0] for part in even)


def test_shares_of_equal_lengths_are_equal() -> None:
    lengths = torch.full((3, 100), 784)
    assert [Processes(rank, 3).share(lengths).shape for rank in range(3)] == [(3, 34), (3, 34), (3, 32)]


def test_shares_of_several_trials_have_one_size() -> None:
    lengths = torch.tensor([[50, 1, 1, 1, 1, 1], [2, 2, 2, 2, 2, 40]])
    assert [Processes(rank, 2).share(lengths).tolist() for rank in range(2)] == [
        [[0], [5]],
        [[1, 2, 3, 4, 5], [0, 1, 2, 3, 4]],
    ]


def test_more_processes_than_sequences_leave_some_without() -> None:
    lengths = torch.tensor([[5, 5]])
    assert [Processes(rank, 3).share(lengths).tolist() for rank in range(3)] == [[[0]], [[1]], [[]]]


def test_process_alone_sums_and_tells_nothing() -> None:
    (one,) = ALONE.total(torch.ones(2))
    assert one.tolist() == [1, 1]
    assert ALONE.broadcast("this") == "this"
    assert ALONE.agree("this")
    assert joined(torch.device("cpu")) == ALONE


def test_engine_or_early_stopping_under_torchrun_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UsageError, match="expected no engine and no early stopping under torchrun"):
        run_study(STUDY, tmp_path, engine=RayEngine())
    halved = Study(**{**STUDY.as_dict(), "early_stop": "asha"})
    with pytest.raises(UsageError, match="expected no engine and no early stopping under torchrun"):
        run_study(halved, tmp_path)


def test_processes_that_cannot_be_joined_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    with pytest.raises(UsageError, match="cannot join the other 1 processes"):
        joined(torch.device("cpu"))


def test_processes_that_never_come_are_said_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(processes_module, "MEETING_TIME", timedelta(seconds=2))
    with pytest.raises(UsageError, match="cannot join the other 1 processes"):
        joined(torch.device("cpu"))
