"""The settings of a search: drawn from its seed, told apart by name, ranked, within memory; its cases told from others."""

import json
from dataclasses import replace
from typing import Any

import pytest
import torch

from mistrnn.models import Arcsinh, SequenceNetwork
from mistrnn.training import Study
from mistrnn.training.early_stopping import Asha, Halving, judge_of
from mistrnn.training.examples import Augmentation, Frames
from mistrnn.training.fitting import NetworkTrials, Recipe
from mistrnn.training.search import SAFE_SHARE, Search
from mistrnn.training.trainer import experiment_from, fitting_trials
from tests.training.small_search import ARGUMENTS, RECIPE, REFIT, SEARCH, SHAPES, cases, data

CPU = torch.device("cpu")


def test_first_trial_has_the_settings_that_were_given_and_the_others_are_around_them() -> None:
    search = replace(SEARCH, trials=60)
    assert search.recipe_of(0) == RECIPE
    others = [search.recipe_of(trial) for trial in range(1, 60)]
    assert len({recipe.learning_rate for recipe in others}) == 59
    for recipe in others:
        assert 0.39 < recipe.learning_rate / RECIPE.learning_rate < 2.6
        assert 0.09 < recipe.weight_decay / RECIPE.weight_decay < 11
        assert 0 <= recipe.dropout <= 0.3
        assert recipe.label_smoothing == RECIPE.label_smoothing
        for strength, given in zip(vars(recipe.augmentation).values(), vars(RECIPE.augmentation).values(), strict=True):
            assert 0 <= strength <= 1.5 * given
    assert {recipe.initialization for recipe in others} == {None, "normal"}


def test_settings_of_a_trial_follow_from_seed_and_number_alone() -> None:
    for trial in range(6):
        more = replace(SEARCH, trials=50, stage="refit", steps=99, shapes=[{}])
        assert more.recipe_of(trial) == SEARCH.recipe_of(trial)
    assert replace(SEARCH, seed=4).recipe_of(1) != SEARCH.recipe_of(1)


def test_settings_without_augmentation_stay_without() -> None:
    search = replace(SEARCH, recipe=replace(RECIPE, augmentation=Augmentation.off()))
    for trial in range(6):
        assert search.recipe_of(trial).augmentation == Augmentation.off()
        assert not set(vars(Augmentation.off())) & set(search.settings_of(trial))


@pytest.mark.parametrize("trials", [1, 2, 3, 7, 16])
@pytest.mark.parametrize("shapes", [1, 2, 4])
def test_trials_of_equal_shape_stand_together_and_most_have_the_first(trials: int, shapes: int) -> None:
    search = replace(SEARCH, trials=trials, shapes=[{"hidden_size": k + 1} for k in range(shapes)])
    found = [search.shape_of(trial) for trial in range(trials)]
    assert found == sorted(found)
    assert found.count(0) >= trials / 2
    assert max(found) < shapes
    assert [search.stack_of(trial) for trial in range(trials)] == found


def test_search_comes_back_from_json() -> None:
    for search in (SEARCH, REFIT, replace(SEARCH, piece_length=7, loss="numbers")):
        again = experiment_from(json.loads(json.dumps(search.as_dict())))
        assert again == search
        assert again.differences(search.as_dict()) == []
        assert isinstance(again, Search)
        assert again.recipe_of(3) == search.recipe_of(3)


def test_what_differs_is_named() -> None:
    other = replace(
        SEARCH, seed=4, recipe=replace(RECIPE, learning_rate=0.5, augmentation=replace(RECIPE.augmentation, jitter=0.3))
    )
    assert other.differences(SEARCH.as_dict()) == [
        "seed: 3 there, 4 here",
        "learning_rate: 0.02 there, 0.5 here",
        "augmentation.jitter: 0.1 there, 0.3 here",
    ]


def row(trial: int, status: str, error: float | None) -> dict[str, Any]:
    return {"trial": trial, "status": status, "val_error": error}


def test_trials_that_ran_to_the_end_are_ranked_first_and_diverged_ones_never() -> None:
    rows = [
        row(0, "stopped", 0.1),
        row(1, "ok", 0.4),
        row(2, "diverged", 0.01),
        row(3, "ok", 0.3),
        row(4, "diverged", None),
    ]
    assert SEARCH.ranked(rows) == [3, 1, 0]


def test_at_least_one_trial_fits_and_more_in_more_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    cases_at_hand = data()
    fits = []
    for memory in (0, 1, 10 * 2**20, 40 * 2**20):
        monkeypatch.setattr("mistrnn.training.search.free_memory", lambda device, memory=memory: memory)
        fits.append(SEARCH.trials_that_fit(cases_at_hand, CPU))
    assert fits[:2] == [1, 1]
    assert 1 < fits[2] < fits[3]
    assert fitting_trials(SEARCH, cases_at_hand, CPU) == fits[3]
    assert SEARCH.trials_that_fit(cases_at_hand, CPU, share=0.25) < fits[3]
    pieces = replace(SEARCH, piece_length=3)
    assert pieces.trials_that_fit(cases_at_hand, CPU) > fits[3]


@pytest.mark.parametrize("layer", ["mist", "lstm", "gru", "rnn", "clockwork"])
def test_step_of_a_trial_keeps_no_more_than_was_expected(layer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    own = {"layer": layer, "layer_options": {}, "hidden_size": 32, "num_layers": 2, "kernel_size": 15}
    search = replace(SEARCH, shapes=[{}], batch_size=14)
    cases_at_hand = data(**own)
    monkeypatch.setattr("mistrnn.training.search.free_memory", lambda device: 2**34)
    expected = SAFE_SHARE * 2**34 / search.trials_that_fit(cases_at_hand, CPU)
    stack = search.start(cases_at_hand, [0], CPU)
    storages: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        stack.advance()
    parameters = sum(value.nbytes for value in stack.parameters.values())
    assert expected / 20 < sum(storages.values()) - parameters < expected


def test_start_gives_each_trial_its_recipe_and_shape() -> None:
    stack = SEARCH.start(data(), [3, 4], CPU)
    assert isinstance(stack, NetworkTrials)
    assert (stack.network.hidden_size, stack.network.num_layers) == (SHAPES[1]["hidden_size"], SHAPES[1]["num_layers"])
    assert stack.recipes == [SEARCH.recipe_of(3), SEARCH.recipe_of(4)]
    assert isinstance(stack.validate_on, Frames)


def test_cases_have_an_identity_of_their_own() -> None:
    same, again = data(), data()
    assert same.data_identity == again.data_identity
    case = cases()
    case.cases[3][2, 1] += 1e-9
    target, weight, fewer = cases(), cases(), cases(13)
    target.targets[5].add_(1)
    weight.weights[5].mul_(2)
    others = [data(held=False).data_identity, data(hidden_size=7).data_identity]
    for learn in (case, target, weight, fewer):
        others.append(replace(same, train_on=learn).data_identity)
    moved = same.standardisation._replace(mean=same.standardisation.mean + 1)
    others.append(replace(same, standardisation=moved).data_identity)
    others.append(replace(same, standardisation=same.standardisation._replace(arcsinh=Arcsinh(2))).data_identity)
    assert len({same.data_identity, *others}) == len(others) + 1


def test_network_of_a_shape_has_the_options_of_both() -> None:
    found = data().network({"num_layers": 3, "layer_options": {"layer_norm": True}})
    assert isinstance(found, SequenceNetwork)
    assert found.num_layers == 3
    assert found.layer_options == {**ARGUMENTS["layer_options"], "layer_norm": True}
    assert torch.equal(found.scale, torch.full((2,), 2.0, dtype=torch.float64))


def points(step: int, errors: dict[int, float]) -> list[tuple[int, int, float, float]]:
    return [(trial, step, 0.0, error) for trial, error in errors.items()]


def test_halving_retires_the_worse_half_at_half_of_the_steps() -> None:
    judge = judge_of(SEARCH)
    assert isinstance(judge, Halving)
    errors = {0: 0.5, 1: 0.2, 2: 0.9, 3: 0.4, 4: 0.3}
    assert judge.hopeless(points(2, errors)) == []
    assert judge.hopeless(points(4, errors)) == [0, 2]
    assert judge.hopeless(points(6, errors)) == []
    assert judge.hopeless(points(8, errors)) == []


def test_halving_judges_a_later_group_beside_those_before() -> None:
    judge = Halving(SEARCH)
    assert judge.hopeless(points(4, {0: 0.1, 1: 0.2, 2: 0.3})) == [2]
    assert judge.hopeless(points(4, {3: 0.15, 4: 0.4, 5: 0.5})) == [4, 5]


def test_halving_recalls_its_verdicts() -> None:
    judge = Halving(SEARCH)
    earlier = [(trial, step, error) for step in (2, 4) for trial, error in enumerate([0.1, 0.2, 0.3])]
    assert judge.recall(earlier) == {2}
    assert judge.hopeless(points(4, {3: 0.15, 4: 0.4, 5: 0.5})) == [4, 5]


@pytest.mark.parametrize(("steps", "every", "rung"), [(8, 3, 6), (9, 2, 6), (10, 5, 5), (5, 1, 3)])
def test_halving_waits_for_the_first_validation_after_half_of_the_steps(steps: int, every: int, rung: int) -> None:
    judge = Halving(replace(SEARCH, steps=steps, validate_every=every))
    for step in range(every, steps + 1, every):
        assert bool(judge.hopeless(points(step, {0: 0.1, 1: 0.2}))) == (step == rung)


def test_halving_retires_no_trial_at_the_last_step() -> None:
    judge = Halving(replace(SEARCH, steps=4, validate_every=4))
    assert judge.hopeless(points(4, {0: 0.1, 1: 0.2})) == []


def test_refit_retires_no_trial_and_a_study_keeps_its_own_judge() -> None:
    assert judge_of(REFIT) is None
    study = Study(task="copy", layer="rnn", hidden=3)
    assert judge_of(study) is None
    pytest.importorskip("optuna")
    assert isinstance(judge_of(replace(study, early_stop="asha")), Asha)


def test_recipe_of_the_defaults_is_a_recipe() -> None:
    assert Recipe().augmentation.scaled(0.0) == Augmentation.off()
