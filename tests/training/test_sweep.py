"""A study from settings to results: resumed, killed, grouped, interrupted, summarised."""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from mistrnn.errors import UsageError
from mistrnn.tasks import Task, make_task
from mistrnn.training import Interrupted, Study, embedded, run_study, summarise
from mistrnn.training.group import Group
from mistrnn.training.memory import OutOfMemory, bytes_per_trial, free_memory, trials_that_fit
from tests.training.killed_study import STUDY

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def task() -> Task:
    return make_task("copy", {"delay": 10})


def outcome(folder: Path) -> tuple[list[dict[str, Any]], dict[str, bytes]]:
    """Everything that a finished study holds, bit for bit, timings aside."""
    rows = [json.loads(line) for line in (folder / "trials.jsonl").read_text().splitlines()]
    for row in rows:
        row.pop("seconds")
    files = {path.name: path.read_bytes() for path in (folder / "models").iterdir()}
    files |= {path.name: path.read_bytes() for path in folder.glob("[cg]*s.safetensors")}  # curves and gradients
    return rows, files


def in_process(folder: Path, when: str, number: int) -> int:
    command = [sys.executable, "-m", "tests.training.killed_study", str(folder), when, str(number)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=Path(__file__).parents[2], env=environment, check=False).returncode


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("undisturbed")
    assert in_process(folder, "NEVER", 0) == 0
    return folder


@pytest.mark.parametrize("seed", range(3))
def test_study_killed_at_random_moments_ends_the_same_bit_for_bit(tmp_path: Path, undisturbed: Path, seed: int) -> None:
    generator, kills = random.Random(seed), 0
    for _ in range(3):
        when, number = generator.choice([("STEP", generator.randint(1, 9)), ("WRITE", generator.randint(1, 9))])
        code = in_process(tmp_path, when, number)
        assert code in (-signal.SIGKILL, 0)
        kills += code != 0
    assert kills
    assert in_process(tmp_path, "NEVER", 0) == 0
    assert outcome(tmp_path) == outcome(undisturbed)


@pytest.mark.parametrize("write", [1, 2, 14, 17, 19, 21])
def test_study_killed_inside_a_write_ends_the_same_bit_for_bit(tmp_path: Path, undisturbed: Path, write: int) -> None:
    """Settings, group size, 12 checkpoints, 3 models, curves and trials of the first group; then the second group."""
    assert in_process(tmp_path, "WRITE", write) == -signal.SIGKILL
    assert in_process(tmp_path, "NEVER", 0) == 0
    assert outcome(tmp_path) == outcome(undisturbed)


def test_finished_study_runs_nothing_again(undisturbed: Path) -> None:
    before = outcome(undisturbed)
    run_study(STUDY, undisturbed, device="cpu", report=lambda _: pytest.fail("a step was taken"))
    assert outcome(undisturbed) == before


def test_interrupted_study_saves_and_goes_on(tmp_path: Path, undisturbed: Path, task: Task) -> None:
    asked = iter([False] * 5 + [True])
    with pytest.raises(Interrupted):
        run_study(STUDY, tmp_path, device="cpu", group_size=3, task=task, stop=lambda: next(asked))
    assert (tmp_path / "checkpoint-000.safetensors").exists()
    run_study(STUDY, tmp_path, device="cpu", group_size=3, task=task)
    assert outcome(tmp_path)[0] == outcome(undisturbed)[0]


PARTS = Study(**{**STUDY.as_dict(), "precision": "fp64", "validate_every": 2, "gradients_every": 3})


@pytest.fixture
def third_trial_diverges(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = Study.learning_rate_of
    monkeypatch.setattr(Study, "learning_rate_of", lambda self, trial: 1e308 if trial == 2 else drawn(self, trial))


def same_but_for_rounding(one: Path, other: Path) -> None:
    for a, b in zip(outcome(one)[0], outcome(other)[0], strict=True):
        assert (a["trial"], a["status"], a["best_step"], a["steps"]) == (
            b["trial"],
            b["status"],
            b["best_step"],
            b["steps"],
        )
        assert a["val_error"] == pytest.approx(b["val_error"], abs=1e-9)
    for name in ("curves.safetensors", "gradients.safetensors"):
        a, b = load_file(one / name), load_file(other / name)
        orders = [(c["trial"] * 10_000 + c["step"]).argsort() for c in (a, b)]  # groups are written one after the other
        for key in a:
            torch.testing.assert_close(a[key][orders[0]], b[key][orders[1]], rtol=1e-7, atol=1e-9, equal_nan=True)


@pytest.mark.usefixtures("third_trial_diverges")
@pytest.mark.parametrize("ask", [[{"group_size": 3}], [{"only": [1]}, {"only": [0, 2]}, {}]], ids=str)
def test_a_group_that_was_begun_goes_on_in_parts_without_a_step_lost(
    tmp_path: Path, task: Task, ask: list[dict[str, Any]]
) -> None:
    whole = run_study(PARTS, tmp_path / "whole", device="cpu", task=task)
    asked = iter([False] * 5 + [True])
    with pytest.raises(Interrupted):
        run_study(PARTS, tmp_path / "cut", device="cpu", task=task, stop=lambda: next(asked))
    for asking in ask:
        steps: list[Any] = []
        said: list[str] = []
        run_study(PARTS, tmp_path / "cut", device="cpu", task=task, report=steps.append, say=said.append, **asking)
        groups = 2 if "group_size" in asking else 1
        assert sum(line.startswith("going on with trial") and line.endswith("from step 6") for line in said) == groups
        assert len(steps) == groups * (PARTS.total_steps - 6)
    assert [row["status"] for row in whole] == ["ok", "ok", "diverged", "ok"]
    same_but_for_rounding(tmp_path / "whole", tmp_path / "cut")
    assert not list((tmp_path / "cut").glob("checkpoint*"))


def test_a_group_that_runs_out_of_memory_goes_on_from_its_checkpoint_in_halves(
    tmp_path: Path, task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Cramped(embedded.Trainer):
        def advance(self, *arguments: Any, **options: Any) -> Any:
            if self.progress().step == 5 and self.progress().running == 4:
                raise OutOfMemory("as planted")
            return super().advance(*arguments, **options)

    run_study(PARTS, tmp_path / "whole", device="cpu", task=task)
    monkeypatch.setattr(embedded, "Trainer", Cramped)
    said: list[str] = []
    rows = run_study(PARTS, tmp_path / "cut", device="cpu", task=task, say=said.append, checkpoint_seconds=0.0)
    assert said[1:] == [
        "trials 0 to 3 go on in groups of 2",
        "going on with trials 0 to 1 from step 5",
        "going on with trials 2 to 3 from step 5",
    ]
    assert [row["group"] for row in rows] == [2] * 4
    same_but_for_rounding(tmp_path / "whole", tmp_path / "cut")


def test_tensorboard_may_be_inside_a_new_folder_and_nothing_is_left_of_a_refused_one(
    tmp_path: Path, task: Task
) -> None:
    run_study(STUDY, tmp_path / "a", device="cpu", task=task, log_dir=tmp_path / "a/log")
    assert list((tmp_path / "a/log").rglob("events*"))
    (tmp_path / "b").mkdir()
    (tmp_path / "b/notes.txt").write_text("mine")
    with pytest.raises(UsageError, match=r"holds other things than a study \(notes.txt\)"):
        run_study(STUDY, tmp_path / "b", device="cpu", task=task, log_dir=tmp_path / "b/log")
    assert [path.name for path in (tmp_path / "b").iterdir()] == ["notes.txt"]


def test_groups_change_nothing_but_rounding(tmp_path: Path, task: Task) -> None:
    study = Study(**{**STUDY.as_dict(), "precision": "fp64"})
    lines: list[str] = []
    together = run_study(study, tmp_path / "a", device="cpu", task=task, say=lines.append)
    assert lines == []
    apart = run_study(study, tmp_path / "b", device="cpu", task=task, group_size=1, say=lines.append)
    assert lines == ["4 trials run in groups of 1"]
    for one, other in zip(together, apart, strict=True):
        assert one["test_error"] == pytest.approx(other["test_error"], abs=1e-9)
        assert one["best_step"] == other["best_step"]
    for k in range(4):
        a, b = (load_file(tmp_path / folder / "models" / f"trial-00{k}.safetensors") for folder in "ab")
        for name, value in a.items():
            torch.testing.assert_close(value, b[name], rtol=1e-9, atol=1e-9)


def test_memory_that_holds_two_trials_makes_groups_of_two(
    tmp_path: Path, task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    need = bytes_per_trial(STUDY, task, CPU)
    monkeypatch.setattr("mistrnn.training.memory.free_memory", lambda device: int(2.5 * need / 0.6))
    lines: list[str] = []
    rows = run_study(STUDY, tmp_path, device="cpu", task=task, say=lines.append)
    assert [row["group"] for row in rows] == [2, 2, 2, 2]
    assert lines == ["4 trials do not fit into memory at once: they run in groups of 2"]


def test_memory_estimate_grows_with_batch_and_steps(task: Task) -> None:
    small = bytes_per_trial(STUDY, task, CPU)
    assert bytes_per_trial(Study(**{**STUDY.as_dict(), "batch_size": 500}), task, CPU) > 3 * small
    longer = make_task("copy", {"delay": 100})
    assert bytes_per_trial(STUDY, longer, CPU) > 3 * small
    assert free_memory(torch.device("cpu")) > 2**26
    assert trials_that_fit(STUDY, task, torch.device("cpu")) > 100


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="measured through Linux's /proc")
@pytest.mark.parametrize(("layer", "segments"), [("mist", None), ("gru", None), ("mist", 6), ("lstm", 6)])
def test_memory_estimate_covers_what_a_step_takes(layer: str, segments: int | None) -> None:
    """Measured in a process of its own as the growth of the peak resident size from 4 to 24 trials."""
    script = f"""
import torch
from mistrnn.tasks import make_task
from mistrnn.training import Study
from mistrnn.training.group import Group
from mistrnn.training.memory import bytes_per_trial
torch.set_num_threads(1)
cpu = torch.device("cpu")
settings = {{"task_settings": {{"delay": 50}}, "checkpoint_segments": {segments}}}
study = Study(task="copy", layer="{layer}", hidden=200, trials=24, **settings)
task = make_task("copy", {{"delay": 50}})

def peak(count):
    open("/proc/self/clear_refs", "w").write("5")  # forget earlier peaks
    Group(study, task, list(range(count)), cpu).advance()
    return 1024 * int(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1])

peak(2)
few, many = peak(4), peak(24)
print((many - few) / 20 / bytes_per_trial(study, task, cpu))
"""
    ratio = float(subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout)
    # A group may be expected to take 0.6 of the free memory, so 1.6 times the estimate still fits.
    assert 0.2 < ratio < 1.6


def test_crash_of_a_group_is_recorded_and_resumed(
    tmp_path: Path, task: Task, undisturbed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    advance = Group.advance

    def sometimes(self: Group) -> bool:
        if self.records[0].trial == 0 and self.step == 7:
            raise RuntimeError("a kernel failed")
        return advance(self)

    monkeypatch.setattr(Group, "advance", sometimes)
    lines: list[str] = []
    options: dict[str, Any] = {"device": "cpu", "task": task, "group_size": 3, "checkpoint_seconds": 0.0}
    rows = run_study(STUDY, tmp_path, **options, say=lines.append)
    assert [row["status"] for row in rows] == ["crashed", "crashed", "crashed", "ok"]
    assert rows[1]["error"] == "RuntimeError: a kernel failed"
    assert "trials 0 to 2 crashed: RuntimeError: a kernel failed. The same command tries them again." in lines
    assert summarise(rows).crashed == 3
    monkeypatch.undo()
    lines.clear()
    run_study(STUDY, tmp_path, **options, say=lines.append)
    assert lines == ["going on with trials 0 to 2 from step 7"]
    assert outcome(tmp_path)[0] == outcome(undisturbed)[0]


def test_memory_that_runs_out_halves_the_groups(tmp_path: Path, task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    advance = Group.advance

    def greedy(self: Group) -> bool:
        if len(self.records) > 1:
            raise RuntimeError(
                "[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory: you tried to ..."
            )
        return advance(self)

    monkeypatch.setattr(Group, "advance", greedy)
    lines: list[str] = []
    rows = run_study(STUDY, tmp_path, device="cpu", task=task, say=lines.append)
    assert [row["group"] for row in rows] == [1, 1, 1, 1]
    assert lines[:2] == [
        "4 trials did not fit into the memory of cpu: going on with groups of 2",
        "2 trials did not fit into the memory of cpu: going on with groups of 1",
    ]


def test_single_trial_that_does_not_fit_is_said(tmp_path: Path, task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    def greedy(self: Group) -> bool:
        raise MemoryError("no more")

    monkeypatch.setattr(Group, "advance", greedy)
    with pytest.raises(UsageError, match="one trial does not fit into the memory of cpu: no more"):
        run_study(STUDY, tmp_path, device="cpu", task=task, group_size=1)


def test_groups_stay_the_same_when_memory_changes(tmp_path: Path, task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    need = bytes_per_trial(STUDY, task, CPU)
    free = iter([int(2.5 * need / 0.6), int(1.2 * need / 0.6), int(1.2 * need / 0.6)])
    monkeypatch.setattr("mistrnn.training.memory.free_memory", lambda device: next(free))
    rows = run_study(STUDY, tmp_path, device="cpu", task=task)
    assert [row["group"] for row in rows] == [2, 2, 2, 2]


def saved_since(folder: Path, begun: float) -> bool:
    """Whether a checkpoint has been written since then."""
    for path in folder.glob("checkpoint-*.safetensors"):
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_mtime > begun:
                return True
    return False


def test_study_killed_from_outside_ends_the_same_bit_for_bit(tmp_path: Path) -> None:
    """Timed kills hit anything: steps, validations, writes, tests. With Adam, truncation and a trial that diverges."""
    command = [sys.executable, "-m", "tests.training.killed_study"]
    where: dict[str, Any] = {
        "cwd": Path(__file__).parents[2],
        "env": {**os.environ, "OMP_NUM_THREADS": "1", "MISTRNN_TEST_STUDY": "hard"},
    }
    undisturbed, disturbed = tmp_path / "a", tmp_path / "b"
    subprocess.run([*command, str(undisturbed), "NEVER", "0"], check=True, **where)
    generator, kills = random.Random(0), 0
    for _ in range(5):
        begun = time.time()
        process = subprocess.Popen([*command, str(disturbed), "NEVER", "0"], **where)
        while process.poll() is None and not saved_since(disturbed, begun):
            time.sleep(0.01)
        time.sleep(0.5 * generator.random())
        if process.poll() is None:
            process.kill()
            kills += 1
        process.wait()
    assert kills
    subprocess.run([*command, str(disturbed), "NEVER", "0"], check=True, **where)
    assert outcome(disturbed) == outcome(undisturbed)
    assert {"curves.safetensors", "gradients.safetensors"} <= outcome(disturbed)[1].keys()
    assert "diverged" in [row["status"] for row in outcome(disturbed)[0]]


def test_diverged_trial_is_listed_with_its_step(tmp_path: Path, task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = Study.learning_rate_of
    monkeypatch.setattr(Study, "learning_rate_of", lambda self, trial: 1e38 if trial == 2 else drawn(self, trial))
    rows = run_study(STUDY, tmp_path, device="cpu", task=task)
    assert [row["status"] for row in rows] == ["ok", "ok", "diverged", "ok"]
    assert 1 <= rows[2]["steps"] <= 12
    assert (rows[2]["test_error"] is None) == (rows[2]["best_step"] is None)
    assert summarise(rows).diverged == 1


@pytest.mark.parametrize("keep", ["best", "last"])
@pytest.mark.parametrize("split", ["val", "test"])
@pytest.mark.parametrize("error", [float("inf"), float("nan")], ids=str)
def test_a_trial_whose_error_is_no_number_has_diverged_and_locks_nobody_out(
    tmp_path: Path, task: Task, monkeypatch: pytest.MonkeyPatch, keep: str, split: str, error: float
) -> None:
    study = Study(**{**STUDY.as_dict(), "keep": keep})
    measured = Group.evaluate

    def evaluate(group: Group, parameters: Any, which: Any) -> list[float]:
        found = measured(group, parameters, which)
        trials = (
            [record.trial for record in group.records]
            if which == "test"
            else [group.records[k].trial for k in group.running]
        )
        return [error if trial == 1 and which == split else value for trial, value in zip(trials, found, strict=True)]

    monkeypatch.setattr(Group, "evaluate", evaluate)
    rows = run_study(study, tmp_path, device="cpu", task=task)
    assert [row["status"] for row in rows] == ["ok", "diverged", "ok", "ok"]
    assert (rows[1]["val_error"], rows[1]["test_error"], rows[1]["best_step"]) == (None, None, None)
    assert run_study(study, tmp_path, device="cpu", task=task) == rows  # the folder can be read


def test_only_some_trials_run_and_the_rest_later(tmp_path: Path, task: Task) -> None:
    assert [row["trial"] for row in run_study(STUDY, tmp_path, device="cpu", task=task, only=[2])] == [2]
    assert not list(tmp_path.glob("checkpoint*"))
    assert [row["trial"] for row in run_study(STUDY, tmp_path, device="cpu", task=task)] == [0, 1, 2, 3]
    with pytest.raises(UsageError, match=r"expected trials between 0 and 3, got \[4\]"):
        run_study(STUDY, tmp_path, device="cpu", task=task, only=[4])


def test_rows_hold_what_the_paper_needs(undisturbed: Path) -> None:
    rows = [json.loads(line) for line in (undisturbed / "trials.jsonl").read_text().splitlines()]
    for k, row in enumerate(rows):
        assert row["trial"] == k
        assert row["learning_rate"] == STUDY.learning_rate_of(k)
        assert row["parameters"] == (3 + 12) * (12 + 6 + 1) + 7 * 11
        assert row["best_step"] in (4, 8, 12)
        assert row["seconds"] > 0
    curves = load_file(undisturbed / "curves.safetensors")
    for k, row in enumerate(rows):
        mine = curves["trial"] == k
        assert curves["step"][mine].tolist() == [4, 8, 12]
        assert curves["val_error"][mine].min().item() == row["val_error"]


def test_saved_model_scores_its_test_error(undisturbed: Path, task: Task) -> None:
    row = json.loads((undisturbed / "trials.jsonl").read_text().splitlines()[1])
    model = STUDY.model(task)
    model.load_state_dict(load_file(undisturbed / "models" / "trial-001.safetensors"))
    inputs, targets = task.batch("test", torch.arange(1000))
    with torch.no_grad():
        assert (task.errors(model(inputs)[0], targets) / targets.numel()).item() == pytest.approx(
            row["test_error"], abs=1e-3
        )


def test_summary_is_the_top_tenth_by_validation() -> None:
    rows = [
        {"trial": k, "status": "ok", "val_error": 0.5 - 0.01 * k, "test_error": 0.1 * k, "learning_rate": 10.0**-k}
        for k in range(20)
    ]
    rows[19] |= {"status": "diverged", "val_error": None, "test_error": None}
    summary = summarise(rows)
    assert summary.top == (18, 17)
    assert summary.test_error == pytest.approx((1.75, 0.1 / 2**0.5))
    assert summary.log10_learning_rate == pytest.approx((-17.5, 0.5**0.5))
    assert summary.diverged == 1


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"device": "tpu9"}, "expected device auto, cpu or cuda, got 'tpu9'"),
        ({"group_size": 0}, "expected group_size >= 1, got 0"),
    ],
)
def test_bad_options_are_refused(tmp_path: Path, task: Task, options: dict[str, Any], expected: str) -> None:
    with pytest.raises(UsageError, match=expected):
        run_study(STUDY, tmp_path, task=task, **options)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_missing_gpu_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"expected a CUDA device for 'cuda', but torch .* sees 0 here"):
        run_study(STUDY, tmp_path, device="cuda")


def test_batch_larger_than_the_training_set_is_refused(tmp_path: Path, task: Task) -> None:
    with pytest.raises(UsageError, match="expected batch_size <= 100000, the training set, got 100001"):
        run_study(Study(**{**STUDY.as_dict(), "batch_size": 100_001}), tmp_path, device="cpu", task=task)
