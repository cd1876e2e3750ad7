"""A search from its settings to its networks: stopped and killed anywhere, refused, diverged."""

import os
import random
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from mistrnn.errors import UsageError
from mistrnn.training import Interrupted, Recorded, Study, run_study
from mistrnn.training.fitting import Recipe
from mistrnn.training.ledger import Progress
from mistrnn.training.search import Search
from mistrnn.training.tuning import RACE, REFIT, Follow, Tuned
from tests.training.small_search import BEST, SEARCH, cases, data, run
from tests.training.small_search import REFIT as REFIT_OF
from tests.training.test_sweep import outcome


def outcomes(folder: Path) -> list[Any]:
    return [outcome(folder / stage) for stage in (RACE, REFIT)]


def in_process(folder: Path, when: str, number: int) -> int:
    command = [sys.executable, "-m", "tests.training.small_search", str(folder), when, str(number)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=Path(__file__).parents[2], env=environment, check=False).returncode


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Tuned]:
    folder = tmp_path_factory.mktemp("undisturbed")
    return folder, run(folder)


def assert_same(found: Tuned, expected: Tuned, *, exactly: bool = True) -> None:
    assert len(found.networks) == len(expected.networks)
    for mine, other in zip(found.networks, expected.networks, strict=True):
        for name, value in other.state_dict().items():
            if exactly:
                assert torch.equal(mine.state_dict()[name], value)
            else:
                torch.testing.assert_close(mine.state_dict()[name], value, rtol=1e-6, atol=1e-7)
    if exactly:
        assert found.losses == expected.losses
        assert [{**row, "seconds": 0} for row in found.trials] == [{**row, "seconds": 0} for row in expected.trials]


def test_search_races_half_of_the_trials_to_the_end_and_refits_the_best(undisturbed: tuple[Path, Tuned]) -> None:
    folder, found = undisturbed
    rows = found.trials
    assert [row["trial"] for row in rows] == list(range(SEARCH.trials))
    stopped = [row for row in rows if row["status"] == "stopped"]
    assert {row["steps"] for row in stopped} == {4}
    assert 1 <= len(stopped) <= SEARCH.trials // 2
    best = sorted((row for row in rows if row["status"] == "ok"), key=lambda row: row["val_error"])[:BEST]
    assert {row["trial"] for row in rows if row["chosen"]} == {row["trial"] for row in best}
    assert [row["trial"] for row in Recorded(folder / REFIT).trials()] == sorted(row["trial"] for row in best)
    for network, row in zip(found.networks, best, strict=True):
        assert not network.training
        assert network.parameter_count() == row["parameters"]
        assert network.dropout == row["dropout"]
        assert torch.equal(network.scale, data().standardisation.scale)
    assert [[step for step, _ in curve] for curve in found.losses] == [[REFIT_OF.steps]] * BEST


def test_search_is_deterministic(tmp_path: Path, undisturbed: tuple[Path, Tuned]) -> None:
    torch.manual_seed(99)  # nothing follows from the caller's generator
    before = torch.get_rng_state()
    assert_same(run(tmp_path), undisturbed[1])
    assert torch.equal(torch.get_rng_state(), before)
    assert outcomes(tmp_path) == outcomes(undisturbed[0])


def test_other_seed_gives_another_search(tmp_path: Path, undisturbed: tuple[Path, Tuned]) -> None:
    found = run(tmp_path, race=replace(SEARCH, seed=4), refit=replace(REFIT_OF, seed=4))
    assert found.trials[0]["val_error"] != undisturbed[1].trials[0]["val_error"]


def test_finished_search_runs_nothing_again(undisturbed: tuple[Path, Tuned]) -> None:
    folder, expected = undisturbed
    before = outcomes(folder)
    again = run(folder, follow=Follow(report=lambda *_: pytest.fail("a step was taken"), stop=lambda: True))
    assert_same(again, expected)
    assert outcomes(folder) == before


def test_more_best_trials_are_refitted_beside_those_that_are_there(
    tmp_path: Path, undisturbed: tuple[Path, Tuned]
) -> None:
    shutil.copytree(undisturbed[0], tmp_path / "search")
    stages: list[str] = []
    found = run(tmp_path / "search", n_best=3, follow=Follow(report=lambda stage, _: stages.append(stage)))
    assert set(stages) == {REFIT}
    assert len(found.networks) == 3
    assert_same(Tuned(found.networks[:BEST], [], []), Tuned(undisturbed[1].networks, [], []))


@pytest.mark.parametrize("step", [0, 1, 2, 4, 5, 8, 9, 11, 12, 13, 16, 17, 20])
def test_search_stopped_at_any_step_ends_the_same_bit_for_bit(
    tmp_path: Path, undisturbed: tuple[Path, Tuned], step: int
) -> None:
    taken = 0

    def report(stage: str, progress: Progress) -> None:
        nonlocal taken
        taken += 1

    with pytest.raises(Interrupted):
        run(tmp_path, follow=Follow(report=report, stop=lambda: taken >= step))
    assert taken == step
    assert_same(run(tmp_path), undisturbed[1])
    assert outcomes(tmp_path) == outcomes(undisturbed[0])


@pytest.mark.parametrize(
    "kills", [[("STEP", 5)], [("STEP", 11), ("STEP", 7)], [("WRITE", 9), ("WRITE", 25)], "random"], ids=str
)
def test_search_killed_anywhere_ends_the_same_bit_for_bit(
    tmp_path: Path, undisturbed: tuple[Path, Tuned], kills: Any
) -> None:
    if kills == "random":
        generator = random.Random(0)
        kills = [(generator.choice(["STEP", "WRITE"]), generator.randint(1, 12)) for _ in range(2)]
    for when, number in kills:
        assert in_process(tmp_path, when, number) == -signal.SIGKILL
    assert_same(run(tmp_path), undisturbed[1])
    assert outcomes(tmp_path) == outcomes(undisturbed[0])


def test_progress_is_told_by_stage(tmp_path: Path) -> None:
    seen: list[tuple[str, Progress]] = []
    said: list[str] = []
    run(tmp_path, follow=Follow(report=lambda *news: seen.append(news), say=said.append))
    stages = [stage for stage, _ in seen]
    assert stages == sorted(stages)
    assert set(stages) == {RACE, REFIT}
    assert [progress.step for stage, progress in seen if stage == RACE] == sorted(
        progress.step for stage, progress in seen if stage == RACE
    )
    assert seen[-1][1].steps == REFIT_OF.steps
    assert said == []


@pytest.mark.parametrize(
    ("race", "named"),
    [
        (replace(SEARCH, seed=4), "seed: 3 there, 4 here"),
        (replace(SEARCH, recipe=replace(SEARCH.recipe, dropout=0.2)), "dropout: 0.1 there, 0.2 here"),
        (replace(SEARCH, trials=8), "trials: 6 there, 8 here"),
        (replace(SEARCH, steps=10), "steps: 8 there, 10 here"),
    ],
    ids=["seed", "dropout", "trials", "steps"],
)
def test_changed_setting_in_the_same_folder_is_refused_by_name(
    undisturbed: tuple[Path, Tuned], race: Search, named: str
) -> None:
    before = outcomes(undisturbed[0])
    with pytest.raises(UsageError, match="holds another search; what differs:\n  " + named) as caught:
        run(undisturbed[0], race=race)
    assert "or remove this one (mist tune --fresh) to start over" in str(caught.value)
    assert outcomes(undisturbed[0]) == before


def test_other_data_in_the_same_folder_is_refused_by_name(undisturbed: tuple[Path, Tuned]) -> None:
    other = data()
    with pytest.raises(UsageError, match="holds another search; what differs:\n  data: "):
        run(undisturbed[0], stages=(replace(other, train_on=cases(seed=5)), data(held=False)))
    with pytest.raises(UsageError, match=f"{REFIT} holds another search; what differs:\n  data: "):
        run(undisturbed[0], stages=(other, replace(data(held=False), train_on=cases(seed=5))))


def test_folder_of_a_study_and_of_a_search_are_told_apart(tmp_path: Path, undisturbed: tuple[Path, Tuned]) -> None:
    study = Study(task="copy", layer="rnn", hidden=3, trials=1, steps=1, batch_size=2, task_settings={"delay": 10})
    with pytest.raises(UsageError, match=r"race: expected a study, got one stage of a search for settings"):
        Recorded(undisturbed[0] / RACE).study()
    with pytest.raises(UsageError, match="holds another study; what differs"):
        run_study(study, undisturbed[0] / RACE, device="cpu")
    run_study(study, tmp_path / RACE, device="cpu")
    with pytest.raises(UsageError, match="holds another search; what differs"):
        run(tmp_path)


def test_trials_that_all_diverge_are_a_clear_error(tmp_path: Path) -> None:
    hopeless = replace(SEARCH, recipe=Recipe(learning_rate=1e30))
    with pytest.raises(UsageError, match=r"^all trials of the search diverged: try a lower learning_rate\.$"):
        run(tmp_path, race=hopeless)
    rows = Recorded(tmp_path / RACE).trials()
    assert [row["status"] for row in rows] == ["diverged"] * SEARCH.trials


def test_chosen_trials_that_all_diverge_are_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"^all trials that the search chose diverged on all cases: try a lower"):
        run(tmp_path, refit=replace(REFIT_OF, recipe=Recipe(learning_rate=1e30)))


def test_trials_that_diverge_are_listed_and_not_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = Search.recipe_of

    def recipe_of(search: Search, trial: int) -> Recipe:
        return replace(drawn(search, trial), learning_rate=1e30) if trial % 2 else drawn(search, trial)

    monkeypatch.setattr(Search, "recipe_of", recipe_of)
    found = run(tmp_path, n_best=6)
    status = {row["trial"]: row["status"] for row in found.trials}
    assert {trial for trial, word in status.items() if word == "diverged"} == {1, 3, 5}
    assert {row["trial"] for row in found.trials if row["chosen"]} == {0, 2, 4}
    assert len(found.networks) == 3


def test_trial_that_breaks_is_said_and_tried_again(
    tmp_path: Path, undisturbed: tuple[Path, Tuned], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("mistrnn.training.fitting.NetworkTrials._next_batch", lambda self: 1 / 0)
        with pytest.raises(UsageError, match=r"^trial 0 of the search failed: ZeroDivisionError: division by zero$"):
            run(tmp_path)
    assert_same(run(tmp_path), undisturbed[1])


def test_several_processes_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mistrnn.training.tuning.process_count", lambda: 2)
    with pytest.raises(UsageError, match="expected one process for a search, because its trials share no minibatches"):
        run(tmp_path)


def test_groups_of_any_size_give_the_same_networks_to_rounding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Without halving, which compares a trial with those that have come so far.
    monkeypatch.setattr(Search, "early_stop", None)
    # In float64: biases before a norm have no gradient but rounding, which AdamW scales up.
    stages = data(dtype=torch.float64), data(held=False, dtype=torch.float64)
    stacked = run(tmp_path / "stacked", stages=stages)
    monkeypatch.setattr(Search, "trials_that_fit", lambda *_: 1)
    alone = run(tmp_path / "alone", stages=stages)
    assert {row["group"] for row in alone.trials} == {1}
    assert [row["chosen"] for row in alone.trials] == [row["chosen"] for row in stacked.trials]
    assert_same(alone, stacked, exactly=False)
