"""The loop that keeps workers busy, with a cluster that does exactly what the test wants: no Ray, no other process."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mistrnn.errors import UsageError
from mistrnn.tasks import Task, make_task
from mistrnn.training import Interrupted, Study
from mistrnn.training.cluster import pool as pool_module
from mistrnn.training.cluster.pool import LOSSES_ALLOWED, WorkerPool
from mistrnn.training.cluster.worker import Failure, Worker, WorkerInfo, WorkerSettings, versions
from mistrnn.training.ledger import Ledger, Watch
from mistrnn.training.store import Store
from mistrnn.training.trainer import GroupProgress
from tests.training.killed_study import STUDY


class RayError(Exception):
    pass


class RayActorError(RayError):
    pass


class RayTaskError(RayError):
    pass


class OutOfMemoryError(RayError):
    pass


class Ray:
    """As much of Ray as the pool uses: an answer is computed when it is fetched."""

    exceptions = SimpleNamespace(RayError=RayError, RayTaskError=RayTaskError, OutOfMemoryError=OutOfMemoryError)

    def __init__(self) -> None:
        self.killed: list[Any] = []

    def wait(self, answers: list[Any], num_returns: int, timeout: float) -> tuple[list[Any], list[Any]]:
        return answers[:1], answers[1:]

    def get(self, answer: Callable[[], Any]) -> Any:
        return answer()

    def kill(self, actor: Any) -> None:
        self.killed.append(actor)


class Actor:
    """A worker in this process; `fault(name, call number)` may answer or raise in its place."""

    def __init__(self, settings: WorkerSettings, task: Task, fault: Callable[[str, int], Any]) -> None:
        self._worker, self._task, self._fault, self._calls = Worker(settings), task, fault, 0

    def __getattr__(self, name: str) -> Any:
        return SimpleNamespace(remote=lambda *arguments: lambda: self._answer(name, *arguments))

    def _answer(self, name: str, *arguments: Any) -> Any:
        self._calls += 1
        planted = self._fault(name, self._calls)
        return getattr(self._worker, name)(*arguments) if planted is None else planted


@pytest.fixture(scope="module")
def task() -> Task:
    return make_task("copy", {"delay": 10})


def run_pool(
    folder: Path,
    task: Task,
    faults: list[Callable[[str, int], Any]],
    *,
    group_size: int = 2,
    workers: int = 1,
    stop: Callable[[], bool] = lambda: False,
    study: Study = STUDY,
    begun_group_size: int | None = None,
) -> tuple[list[dict[str, Any]], list[str], Ray]:
    """Run a study with workers whose faults are planted, one after the other; those hired later have none."""
    said: list[str] = []
    ray = Ray()
    settings = WorkerSettings(study.as_dict(), None, None, "cpu", 1, 1)
    waiting = list(faults)

    def hire(settings: WorkerSettings) -> Actor:
        return Actor(settings, task, waiting.pop(0) if waiting else lambda name, call: None)

    with Store(folder, study, None) as store:
        watch = Watch(lambda progress: None, said.append, stop, 0.0, None)
        ledger = Ledger(study, store, range(study.trials), watch)
        pool = WorkerPool(ray, ledger, SimpleNamespace(remote=hire), settings, None, group_size, begun_group_size)  # type: ignore[arg-type]
        pool.run(workers)
        return store.trials(), said, ray


def dies_at(which: str, *, of: type[RayError] = RayActorError) -> Callable[[str, int], Any]:
    def fault(name: str, call: int) -> Any:
        if name == which:
            raise of("the worker was killed")

    return fault


def fails_at(which: str, kind: str) -> Callable[[str, int], Any]:
    fails = [True]

    def fault(name: str, call: int) -> Any:
        return Failure(kind, "as planted") if name == which and fails and fails.pop() else None

    return fault


def test_all_groups_are_trained_and_all_workers_let_go(tmp_path: Path, task: Task) -> None:
    rows, said, ray = run_pool(tmp_path, task, [], workers=2)
    assert [(row["trial"], row["status"], row["group"]) for row in rows] == [(k, "ok", 2) for k in range(4)]
    assert said == []
    assert len(ray.killed) == 2


@pytest.mark.parametrize("moment", ["begin", "advance", "results"])
def test_group_of_a_worker_that_dies_goes_to_another(tmp_path: Path, task: Task, moment: str) -> None:
    rows, said, _ = run_pool(tmp_path, task, [dies_at(moment)])
    assert [row["status"] for row in rows] == ["ok"] * 4
    assert "died; trials 0 to 1 will be taken up by another, from the last checkpoint" in said[0]
    assert len(said) == (2 if moment == "results" else 1), "only then was there a checkpoint to go on from"


def test_group_that_kills_its_workers_is_given_up(tmp_path: Path, task: Task) -> None:
    rows, said, _ = run_pool(tmp_path, task, [dies_at("advance")] * LOSSES_ALLOWED)
    assert [row["status"] for row in rows] == ["crashed", "crashed", "ok", "ok"]
    assert rows[0]["error"] == "3 workers died over it"
    assert said[-1] == "trials 0 to 1 crashed: 3 workers died over it. The same command tries them again."


def test_workers_that_cannot_start_are_said(tmp_path: Path, task: Task) -> None:
    with pytest.raises(UsageError, match="workers cannot start: the worker was killed"):
        run_pool(tmp_path, task, [dies_at("setup")] * LOSSES_ALLOWED)


def test_worker_that_dies_while_it_starts_is_replaced(tmp_path: Path, task: Task) -> None:
    rows, _, _ = run_pool(tmp_path, task, [dies_at("setup")])
    assert [row["status"] for row in rows] == ["ok"] * 4


def test_group_too_large_for_memory_is_halved(tmp_path: Path, task: Task) -> None:
    rows, said, _ = run_pool(tmp_path, task, [fails_at("begin", "memory")], group_size=4)
    assert [row["group"] for row in rows] == [2] * 4
    assert "4 trials did not fit into the memory of" in said[0]
    assert said[0].endswith("going on with groups of 2")


def test_worker_killed_for_its_memory_has_its_group_halved(tmp_path: Path, task: Task) -> None:
    rows, said, _ = run_pool(tmp_path, task, [dies_at("advance", of=OutOfMemoryError)], group_size=4)
    assert [row["group"] for row in rows] == [2] * 4
    assert said[0].endswith("going on with groups of 2")


def test_group_that_was_begun_goes_on_whole_though_there_are_more_workers_now(tmp_path: Path, task: Task) -> None:
    asked = iter([False] * 4 + [True])
    with pytest.raises(Interrupted):
        run_pool(tmp_path, task, [], group_size=4, stop=lambda: next(asked))
    rows, said, _ = run_pool(tmp_path, task, [], group_size=2, workers=2)
    assert said[0].startswith("going on with trials 0 to 3 from step")
    assert [row["group"] for row in rows] == [4] * 4


def test_group_larger_than_asked_for_goes_on_in_parts_and_says_so(tmp_path: Path, task: Task) -> None:
    asked = iter([False] * 4 + [True])
    with pytest.raises(Interrupted):
        run_pool(tmp_path, task, [], group_size=4, stop=lambda: next(asked))
    # The first worker dies before it has saved: its part goes on from where the larger group was.
    rows, said, _ = run_pool(tmp_path, task, [dies_at("begin")], group_size=2, begun_group_size=2)
    assert said[0] == "trials 0 to 3 go on in groups of 2"
    assert [line for line in said if line.startswith("going on with trials")] == [
        "going on with trials 0 to 1 from step 12",
        "going on with trials 0 to 1 from step 12",
        "going on with trials 2 to 3 from step 12",
    ]
    assert [row["group"] for row in rows] == [2] * 4


@pytest.mark.parametrize("first", [True, False])
def test_worker_with_a_wrong_setup_is_left_out_when_others_work(tmp_path: Path, task: Task, first: bool) -> None:
    faults = [fails_at("setup", "setup"), lambda name, call: None]
    rows, said, _ = run_pool(tmp_path, task, faults if first else faults[::-1], workers=2)
    assert said == ["going on without a worker: as planted"]
    assert [row["status"] for row in rows] == ["ok"] * 4


@pytest.mark.parametrize("moment", [3, 4, 5, 7, 12])
def test_worker_that_dies_changes_no_verdict_of_early_stopping(tmp_path: Path, task: Task, moment: int) -> None:
    study = Study(**{**STUDY.as_dict(), "trials": 8, "steps": 64, "validate_every": 4, "early_stop": "asha"})
    whole, _, _ = run_pool(tmp_path / "whole", task, [], group_size=8, study=study)

    def fault(name: str, call: int) -> Any:
        if call == moment:
            raise RayActorError("the worker was killed")

    cut, said, _ = run_pool(tmp_path / "cut", task, [fault], group_size=8, study=study)
    assert any("died" in line for line in said)
    ended = [(row["trial"], row["status"], row["steps"]) for row in cut]
    assert ended == [(row["trial"], row["status"], row["steps"]) for row in whole]
    assert "stopped" in {status for _, status, _ in ended}


def test_trial_too_large_for_memory_is_said(tmp_path: Path, task: Task) -> None:
    with pytest.raises(UsageError, match=r"one trial does not fit into the memory of .*: as planted"):
        run_pool(tmp_path, task, [fails_at("advance", "memory")], group_size=1)


def test_computation_that_breaks_is_recorded_and_the_rest_goes_on(tmp_path: Path, task: Task) -> None:
    rows, said, _ = run_pool(tmp_path, task, [fails_at("advance", "computation")])
    assert [row["status"] for row in rows] == ["crashed", "crashed", "ok", "ok"]
    assert said == ["trials 0 to 1 crashed: as planted. The same command tries them again."]


def test_worker_with_a_wrong_setup_ends_the_study(tmp_path: Path, task: Task) -> None:
    with pytest.raises(UsageError, match="as planted"):
        run_pool(tmp_path, task, [fails_at("setup", "setup")])


def test_error_that_nobody_foresaw_is_named(tmp_path: Path, task: Task) -> None:
    def fault(name: str, call: int) -> Any:
        if name == "advance":
            raise RayTaskError("Traceback …\n  somewhere\nKeyError: 'what'")

    with pytest.raises(UsageError, match="a worker failed at 'advance': KeyError: 'what'"):
        run_pool(tmp_path, task, [fault])


def test_worker_that_can_hold_one_trial_gets_one(tmp_path: Path, task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mistrnn.training.cluster.worker.fitting_trials", lambda *_: 1)
    rows, _, _ = run_pool(tmp_path, task, [], group_size=4)
    assert [row["group"] for row in rows] == [1] * 4


def test_stop_saves_every_group(tmp_path: Path, task: Task) -> None:
    asked = iter([False] * 6 + [True])
    with pytest.raises(Interrupted):
        run_pool(tmp_path, task, [], workers=2, stop=lambda: next(asked))
    assert sorted(path.name for path in tmp_path.glob("checkpoint-*")) == [
        "checkpoint-000.safetensors",
        "checkpoint-002.safetensors",
    ]
    rows, said, _ = run_pool(tmp_path, task, [], workers=2)
    assert len(said) == 2
    assert [row["status"] for row in rows] == ["ok"] * 4


def test_silence_of_the_cluster_is_said(tmp_path: Path, task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "PATIENCE_SECONDS", 0.0)
    quiet = [True]

    def wait(self: Ray, answers: list[Any], num_returns: int, timeout: float) -> tuple[list[Any], list[Any]]:
        return ([], answers) if quiet and quiet.pop() else (answers[:1], answers[1:])

    monkeypatch.setattr(Ray, "wait", wait)
    _, said, _ = run_pool(tmp_path, task, [])
    assert said[0] == "waiting for the cluster: 1 workers to start"


def test_worker_refuses_other_versions_and_other_data(task: Task) -> None:
    worker = Worker(WorkerSettings(STUDY.as_dict(), None, "other", "cpu", 1, 1))
    found = worker.setup({**versions(), "mistrnn": "9.9"}, None)
    assert isinstance(found, Failure)
    assert "versions differ from where the study was started: mistrnn" in found.text
    found = worker.setup(versions(), None)
    assert isinstance(found, Failure)
    assert "other data here (None) than there (other)" in found.text


def test_worker_answers_what_breaks(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = Worker(WorkerSettings(STUDY.as_dict(), None, None, "cpu", 1, 1))
    assert isinstance(worker.setup(versions(), None), WorkerInfo)
    assert isinstance(worker.begin((0, 1), None), GroupProgress)
    monkeypatch.setattr("mistrnn.training.group.Group.advance", lambda self: 1 / 0)
    assert worker.advance((), False) == Failure("computation", "ZeroDivisionError: division by zero")
    monkeypatch.setattr("mistrnn.training.trainer.Group", lambda *_: (_ for _ in ()).throw(MemoryError("full")))
    assert worker.begin((0, 1), None) == Failure("memory", "full")
