"""Searches: trials of random settings, the best of which answer as one model; resumed to the same bits."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mistrnn import FrameLabeler, SequenceClassifier, SequenceRegressor
from mistrnn.estimators._fitting import Epoch
from mistrnn.layers import LAYERS
from mistrnn.models import Ensemble
from mistrnn.training import Interrupted
from mistrnn.training.embedded import Embedded
from tests.estimators.data import KINDS, NO_EPOCH, SMALL, data, fitted, numbers, slopes
from tests.estimators.test_streams import check_stream

SEARCH: dict[str, Any] = {"max_epochs": 8, "n_trials": 4, "n_best": 2}


@pytest.fixture(scope="module", params=KINDS, ids=lambda kind: kind.__name__)
def searched(request: pytest.FixtureRequest) -> Any:
    """A model of each kind from a search, with what it was fitted on."""
    return fitted(request.param, **SEARCH)


def test_every_trial_is_listed_with_its_settings_and_the_best_are_chosen(searched: Any) -> None:
    trials = searched[0].trials_
    assert [trial["trial"] for trial in trials] == [0, 1, 2, 3]
    assert trials[0]["learning_rate"] == SMALL["learning_rate"]
    assert len({trial["learning_rate"] for trial in trials}) == 4
    assert {trial["status"] for trial in trials} <= {"ok", "stopped"}
    assert all(np.isfinite(trial["val_error"]) for trial in trials)
    ranked = sorted(trials, key=lambda trial: (trial["status"] != "ok", trial["val_error"]))
    assert [trial["chosen"] for trial in ranked] == [True, True, False, False]


def test_ensemble_answers_with_the_mean(searched: Any) -> None:
    model, x, y = searched
    assert isinstance(model.network_, Ensemble)
    assert len(model.network_.networks) == 2
    together, answers = numbers(model, x), []
    for member in model.network_.members:
        alone = type(model)(**model.get_params())
        alone.__dict__.update(vars(model), network_=member)
        answers.append(numbers(alone, x))
        assert not np.allclose(answers[-1], together, atol=1e-4)
    shares = [0.25, 0.25, 0.5] if isinstance(model, SequenceClassifier) else [0.5, 0.5]  # the last: convolutions
    np.testing.assert_allclose(together, np.average(answers, axis=0, weights=shares), rtol=1e-5, atol=1e-6)
    assert model.score(x, y) > 0.7
    assert model.parameter_count() == sum(member.parameter_count() for member in model.network_.members)


def test_ensemble_streams_as_it_predicts(searched: Any) -> None:
    model, x, _ = searched
    check_stream(model, x[:2])


def test_ensemble_is_saved_and_loaded_as_one_model(searched: Any, tmp_path: Path) -> None:
    model, x, _ = searched
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path)
    np.testing.assert_array_equal(numbers(loaded, x), numbers(model, x))
    assert loaded.get_params() == model.get_params()
    assert loaded.trials_ == model.trials_
    assert loaded.history_ == model.history_
    assert isinstance(loaded.network_, Ensemble)
    check_stream(loaded, x[:1])


def test_history_is_that_of_the_networks_trained_on_all_cases(searched: Any) -> None:
    model, _, _ = searched
    assert model.n_epochs_ == model.best_epoch_ == 8
    assert {epoch["stage"] for epoch in model.history_} == {"refit"}
    assert model.history_[-1]["train_loss"] < model.history_[0]["train_loss"]


@pytest.mark.parametrize("options", [None, {"zoneout": 0.2, "recurrent_dropout": 0.2}])
def test_same_random_state_gives_the_same_bits_and_leaves_torchs_random_numbers_alone(options: Any) -> None:
    torch.manual_seed(0)
    state = torch.get_rng_state()
    first, x, _ = fitted(SequenceClassifier, **SEARCH, layer_options=options)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(99)
    second, other = (
        fitted(SequenceClassifier, **(SEARCH | {"layer_options": options, "random_state": seed}))[0] for seed in (0, 1)
    )
    np.testing.assert_array_equal(first.predict_proba(x), second.predict_proba(x))
    assert not np.array_equal(first.predict_proba(x), other.predict_proba(x))


@pytest.mark.parametrize(("n_best", "members"), [(1, 1), (3, 3), (9, 4)])
def test_so_many_of_the_best_answer(n_best: int, members: int) -> None:
    model, x, _ = fitted(SequenceClassifier, **(SEARCH | {"n_best": n_best}))
    assert len(model.network_.networks) == members
    assert model.predict_proba(x).shape == (40, 2)
    assert sum(trial["chosen"] for trial in model.trials_) == members


def test_fit_after_a_search_forgets_its_trials() -> None:
    model, x, y = fitted(SequenceClassifier, **(SEARCH | {"n_trials": 2}))
    assert len(model.trials_) == 2
    model.set_params(n_trials=1).fit(x, y)
    assert not hasattr(model, "trials_")
    assert len(model.network_.networks) == 1


@pytest.mark.parametrize("layer", ["clockwork", "mist"])
def test_trials_of_other_shapes_are_networks_of_the_same_layer(layer: str) -> None:
    model = fitted(SequenceClassifier, layer=layer, max_epochs=4, n_trials=8, n_best=8)[0]
    members = model.network_.networks
    shapes = {(own.num_layers, own.kernel_size, str(own.layer_options.get("delays"))) for own in members}
    if layer == "mist":
        assert shapes == {(1, 3, "4"), (2, 3, "4"), (1, 1, "4"), (1, 3, "3")}
    else:
        assert shapes == {(1, 3, "None"), (2, 3, "None"), (1, 1, "None")}
    assert {type(own.recurrent_layers()[0]) for own in members} == {LAYERS[layer]}


def test_groups_are_never_raced_and_compared_on(monkeypatch: pytest.MonkeyPatch) -> None:
    parts: list[Any] = []

    def remember(model: Any, given: Any, *rest: Any) -> Any:
        parts.extend(given)
        return [], [NO_EPOCH], []

    monkeypatch.setattr(SequenceClassifier, "_search", remember)
    monkeypatch.setattr(SequenceClassifier, "_completed", lambda *given: None)
    x, y = slopes(60)
    x[:, 0, 0] = people = np.arange(60) // 10
    SequenceClassifier(n_trials=2).fit(x, y, groups=people)
    race, compare, everything = ({case[0, 0] for case in part.cases} for part in parts)
    assert race | compare == everything == set(range(6))
    assert not race & compare
    with pytest.raises(ValueError, match=r"because n_trials=2 and validation_fraction=.*, got 60 cases in 1 groups"):
        SequenceClassifier(n_trials=2).fit(x, y, groups=["me"] * 60)


def test_callback_sees_both_stages_and_the_lowest_validation_loss() -> None:
    seen: list[Epoch] = []
    fitted(SequenceClassifier, **(SEARCH | {"max_epochs": 24}), callback=seen.append)
    race, refit = ([epoch for epoch in seen if epoch.stage == stage] for stage in ("race", "refit"))
    assert seen == race + refit
    assert [epoch.epoch for epoch in refit] == list(range(1, 25))
    assert [epoch.epoch for epoch in race] == sorted({epoch.epoch for epoch in race})
    lowest = [epoch.validation_loss for epoch in race]
    assert lowest == sorted(lowest, reverse=True)
    assert all(epoch.validation_loss is None for epoch in refit)


class Stop:
    """A callback that ends a search at some call, once."""

    def __init__(self, call: int) -> None:
        self.left = call

    def __call__(self, epoch: Epoch) -> bool:
        self.left -= 1
        return self.left == 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("call", [1, 4])  # in the race, in the refit
def test_search_that_was_stopped_resumes_to_the_same_bits(kind: type, call: int, tmp_path: Path) -> None:
    expected, x, y = fitted(kind, **SEARCH)
    stopped = kind(**SMALL, **SEARCH, search_dir=tmp_path / "search", callback=Stop(call))
    with pytest.raises(Interrupted):
        stopped.fit(x, y)
    assert not hasattr(stopped, "network_")
    resumed = kind(**SMALL, **SEARCH, search_dir=tmp_path / "search").fit(x, y)
    np.testing.assert_array_equal(numbers(resumed, x), numbers(expected, x))
    for name, value in resumed.network_.state_dict().items():
        assert torch.equal(value, expected.network_.state_dict()[name])
    seen: list[Epoch] = []
    again = kind(**SMALL, **SEARCH, search_dir=str(tmp_path / "search"), callback=seen.append).fit(x, y)
    np.testing.assert_array_equal(numbers(again, x), numbers(expected, x))
    assert seen == []  # nothing was left to train


def test_search_that_was_stopped_leaves_an_earlier_model_as_it_was() -> None:
    model, x, y = fitted(SequenceClassifier)
    expected = model.predict_proba(x)
    with pytest.raises(Interrupted):
        model.set_params(**SEARCH, callback=Stop(1)).fit(x, np.where(y == "up", "A", "B"))
    np.testing.assert_array_equal(model.predict_proba(x), expected)
    assert model.classes_.tolist() == ["down", "up"]


def test_more_of_the_best_can_be_taken_from_a_finished_search(tmp_path: Path) -> None:
    few = fitted(SequenceClassifier, **SEARCH, search_dir=tmp_path)[0].network_.networks
    more = fitted(SequenceClassifier, **(SEARCH | {"n_best": 3}), search_dir=tmp_path)[0].network_.networks
    assert (len(few), len(more)) == (2, 3)
    for one, other in zip(few, more, strict=False):
        for name, value in one.state_dict().items():
            assert torch.equal(other.state_dict()[name], value)


def test_search_dir_of_other_data_or_settings_is_refused(tmp_path: Path) -> None:
    _, x, y = fitted(SequenceClassifier, **SEARCH, search_dir=tmp_path)
    model = SequenceClassifier(**SMALL, **SEARCH, search_dir=tmp_path)
    with pytest.raises(ValueError, match=r"holds another search; what differs:\n  data: "):
        model.fit(x + 1, y)
    with pytest.raises(ValueError, match=r"holds another search; what differs:\n  data: "):
        model.fit(x, y[::-1].copy())
    with pytest.raises(ValueError, match=r"holds another search; what differs:\n  learning_rate: 0.03 there, 0.5 here"):
        model.set_params(learning_rate=0.5).fit(x, y)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "race").mkdir()
    (tmp_path / "mine" / "race" / "notes.txt").touch()
    with pytest.raises(ValueError, match=r"holds other things than a (study|search) \(notes.txt\)"):
        model.set_params(search_dir=tmp_path / "mine").fit(x, y)


@pytest.mark.parametrize("random_state", [None, np.random.RandomState(0)])
def test_search_dir_without_an_integer_random_state_is_refused(random_state: Any, tmp_path: Path) -> None:
    model = SequenceClassifier(n_trials=4, random_state=random_state, search_dir=tmp_path)
    with pytest.raises(
        ValueError, match="SequenceClassifier: expected random_state to be a whole number, because a search"
    ):
        model.fit(*slopes())
    assert list(tmp_path.iterdir()) == []


def test_early_stopping_in_a_search_is_refused() -> None:
    with pytest.raises(
        ValueError, match="FrameLabeler: expected early_stopping=False with n_trials=2, because the best"
    ):
        FrameLabeler(n_trials=2, early_stopping=True).fit(*data(FrameLabeler))


def test_engine_computes_the_search() -> None:
    ran: list[int] = []

    class Counting(Embedded):
        def run(self, ledger: Any, task: Any, **options: Any) -> None:
            ran.append(ledger.waiting)
            super().run(ledger, task, **options)

    model, x, _ = fitted(SequenceClassifier, **SEARCH, engine=Counting())
    assert ran == [4, 2]
    np.testing.assert_array_equal(model.predict_proba(x), fitted(SequenceClassifier, **SEARCH)[0].predict_proba(x))


def test_trials_that_all_diverge_are_a_clear_error() -> None:
    model = SequenceRegressor(**(SMALL | SEARCH | {"learning_rate": 1e30}))
    with pytest.raises(ValueError, match="all trials of the search diverged: try a lower learning_rate"):
        model.fit(*data(SequenceRegressor))
