"""The training itself: what is learnt, how long it takes, which parameters are kept."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from mistrnn import FrameLabeler, SequenceClassifier, SequenceRegressor
from mistrnn.estimators import _fitting
from mistrnn.estimators._plan import FEWEST_EPOCHS, SMALL_SET, STEPS, course
from mistrnn.training.examples import Examples
from tests.estimators.data import SMALL, early_cue, slopes, unequal


def noise(cases: int = 60) -> tuple[Any, Any]:
    """Cases about which nothing can be learnt."""
    random = np.random.RandomState(0)
    return random.randn(cases, 1, 10), random.randint(2, size=cases)


def test_class_at_the_beginning_is_remembered_to_the_end() -> None:
    (x, y), (new_x, new_y) = early_cue(200, 150, seed=0), early_cue(200, 150, seed=1)
    model = SequenceClassifier(**SMALL, max_epochs=20, pooling="last", augmentation=False).fit(x, y)
    assert model.score(new_x, new_y) > 0.95


@pytest.mark.parametrize(
    ("kind", "cases", "parameters", "minibatches"),
    [
        (SequenceClassifier, 33, {"batch_size": 8}, 5),
        (SequenceRegressor, 8, {"batch_size": 8}, 1),
        (SequenceClassifier, SMALL_SET - 1, {}, math.ceil((SMALL_SET - 1) / 16)),
        (SequenceClassifier, SMALL_SET, {}, math.ceil(SMALL_SET / 32)),
        (FrameLabeler, 4, {"batch_size": 8, "piece_length": 100}, 10),  # 20 pieces each
        (FrameLabeler, 4, {"batch_size": 3, "piece_length": None}, 2),
    ],
)
def test_fit_without_max_epochs_has_as_many_minibatches_as_are_said(
    kind: Any, cases: int, parameters: Any, minibatches: int
) -> None:
    examples = Examples([np.broadcast_to(np.zeros(1), (1950, 1))] * cases, [], [], [])
    epochs = max(FEWEST_EPOCHS, math.ceil(STEPS / minibatches))
    planned = course(kind(**parameters), examples, seed=0)
    assert (planned.validate_every, planned.steps) == (minibatches, epochs * minibatches)
    planned = course(kind(**parameters, max_epochs=3), examples, seed=0)
    assert planned.steps == 3 * minibatches


def test_large_sets_are_gone_through_several_times() -> None:
    examples = Examples([np.zeros((1, 1))] * (32 * STEPS), [], [], [])
    planned = course(SequenceClassifier(batch_size=32), examples, seed=0)
    assert planned.steps == FEWEST_EPOCHS * planned.validate_every == FEWEST_EPOCHS * STEPS


def test_training_goes_to_the_end_and_keeps_the_last_parameters() -> None:
    x, y = noise()
    model = SequenceClassifier(**SMALL, max_epochs=12, patience=2).fit(x, y)
    assert model.n_epochs_ == model.best_epoch_ == 12
    assert [epoch["epoch"] for epoch in model.history_] == list(range(1, 13))
    assert {epoch["epochs"] for epoch in model.history_} == {12}
    assert all(epoch["validation_loss"] is None for epoch in model.history_)
    rates = [epoch["learning_rate"] for epoch in model.history_]
    assert max(rates) <= SMALL["learning_rate"]
    assert rates[-1] == pytest.approx(0.0, abs=1e-6)
    assert rates[2:] == sorted(rates[2:], reverse=True)
    losses = [epoch["train_loss"] for epoch in model.history_]
    assert losses[-1] < losses[0]


def test_validation_stops_the_training_and_the_best_is_kept() -> None:
    x, y = noise(200)
    model = SequenceClassifier(**SMALL, max_epochs=60, patience=3, early_stopping=True).fit(x, y)
    losses = [epoch["validation_loss"] for epoch in model.history_]
    assert model.n_epochs_ == model.best_epoch_ + 3 < 60
    assert losses[model.best_epoch_ - 1] == min(losses)
    bests = [1 + int(np.argmin(losses[:n])) for n in range(1, len(losses) + 1)]
    assert [epoch["best_epoch"] for epoch in model.history_] == bests


def test_best_parameters_are_those_of_the_best_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, Any]] = []
    measured = _fitting.NetworkTrials._validation_errors

    def remember(trials: Any) -> list[float]:
        seen.append({name: value[0].clone() for name, value in trials._everything().items()})
        return measured(trials)

    monkeypatch.setattr(_fitting.NetworkTrials, "_validation_errors", remember)
    x, y = noise(200)
    model = SequenceClassifier(**SMALL, max_epochs=10, early_stopping=True, random_features=0).fit(x, y)
    assert len(seen) == 10  # without patience to the end
    assert model.best_epoch_ < 10
    state = model.network_.state_dict()
    for name, value in seen[model.best_epoch_ - 1].items():
        assert torch.equal(state[name], value)
    assert any(not torch.equal(state[name], value) for name, value in seen[-1].items())


@pytest.mark.parametrize("class_weight", [None, {"up": 3.0, "down": 1.0}])
def test_validation_loss_is_the_weighted_mean_over_what_is_held_out(class_weight: Any) -> None:
    x, y = slopes(40)
    cases, groups, weights = unequal(x), np.r_[np.zeros(30), np.ones(10)], np.random.RandomState(0).rand(40) + 0.5
    model = SequenceClassifier(**SMALL, max_epochs=1, early_stopping=True, class_weight=class_weight, random_features=0)
    model.fit(cases, y, weights, groups=groups)
    chances = model.predict_proba(cases)[np.arange(40), np.searchsorted(model.classes_, y)]
    weights = weights * np.where((y == "up") & (class_weight is not None), 3.0, 1.0)
    held = groups == 1
    expected = np.average(-np.log(chances[held]), weights=weights[held])
    assert model.history_[0]["validation_loss"] == pytest.approx(float(expected), rel=1e-5)


def test_validation_loss_of_numbers_is_the_mean_square_in_deviations() -> None:
    x, _ = slopes(40)
    y, groups = 100 * x[:, 0, :2] + 1000, np.r_[np.zeros(30), np.ones(10)]
    model = SequenceRegressor(**SMALL, max_epochs=1, early_stopping=True).fit(x, y, groups=groups)
    squares = np.square((model.predict(x) - y) / model.y_scale_)
    assert model.history_[0]["validation_loss"] == pytest.approx(squares[groups == 1].mean(), rel=1e-5)


def test_standardisation_is_learnt_from_what_is_trained_on_alone() -> None:
    x, y = slopes(100)
    groups = np.arange(100) // 10
    model = SequenceClassifier(**SMALL, max_epochs=1, early_stopping=True).fit(x, y, groups=groups)
    means = [x[groups != group].mean((0, 2)) for group in range(10)]
    pairs = [(x[(groups != a) & (groups != b)]).mean((0, 2)) for a in range(10) for b in range(a)]
    found = model.network_.standardisation.mean.numpy()
    assert any(np.allclose(found, mean, atol=1e-12) for mean in means + pairs)
    assert not np.allclose(found, x.mean((0, 2)), atol=1e-12)
    model.set_params(early_stopping=False).fit(x, y, groups=groups)
    np.testing.assert_allclose(model.network_.standardisation.mean.numpy(), x.mean((0, 2)))


def test_several_numbers_are_predicted_in_their_own_units() -> None:
    x = np.random.RandomState(0).randn(80, 1, 6)
    y = np.stack([1000 + 100 * x[:, 0, 0], 1e-6 * x[:, 0, -1]], 1)
    model = SequenceRegressor(**SMALL, max_epochs=40, augmentation=False).fit(x, y)
    assert model.predict(x).shape == (80, 2)
    assert model.score(x, y) > 0.9


def test_numbers_that_are_all_the_same_and_very_small_ones_are_predicted() -> None:
    x = np.random.RandomState(0).randn(40, 1, 6)
    same = SequenceRegressor(**SMALL, max_epochs=2).fit(x, np.full(40, 5.0))
    np.testing.assert_array_equal(same.predict(x), 5.0)
    small = SequenceRegressor(**SMALL, max_epochs=40).fit(x, 1e-170 * x[:, 0, 0])
    assert np.corrcoef(small.predict(x) * 1e170, x[:, 0, 0])[0, 1] > 0.9


@pytest.mark.parametrize("n_trials", [1, 2])
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_fit_where_gradients_are_switched_off(mode: Any, n_trials: int) -> None:
    x, y = slopes(40)
    model = SequenceClassifier(**SMALL, max_epochs=2, n_trials=n_trials)
    expected = model.fit(x, y).predict_proba(x)
    with mode():
        found = model.fit(x, y).predict_proba(x)
    np.testing.assert_array_equal(found, expected)
    assert all(weight.requires_grad and not weight.is_inference() for weight in model.network_.parameters())


def test_probabilities_inside_autocast() -> None:
    x, y = slopes(40)
    model = SequenceClassifier(**SMALL, max_epochs=2).fit(x, y)
    with torch.autocast("cpu", torch.bfloat16):
        found, said = model.predict_proba(x), model.stream()(x[0, :, 0])
    np.testing.assert_allclose(found, model.predict_proba(x), atol=0.03)
    assert said.probabilities.sum() == pytest.approx(1.0, abs=1e-5)
