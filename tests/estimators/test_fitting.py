"""The training itself: what is learnt, what counts how much, when it ends."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from mistrnn import FrameLabeler, SequenceClassifier, SequenceRegressor, match_parameters
from mistrnn.estimators import _fitting
from mistrnn.estimators._fitting import Examples
from mistrnn.estimators._sequences import as_cases
from mistrnn.estimators.network import Network
from tests.estimators.data import early_cue, slopes, unequal


def test_the_default_classifier_remembers_what_an_lstm_of_the_same_size_forgets() -> None:
    # In one run, with one random state: results/classification has three of each, and longer cases.
    x, y = early_cue(300, 300, seed=0)
    new_x, new_y = early_cue(400, 300, seed=1)
    mist = SequenceClassifier(random_state=0).fit(x, y)
    units = match_parameters("lstm", mist.parameter_count(), input_size=1, output_size=2)
    lstm = SequenceClassifier(layer="lstm", hidden_size=units, random_state=0).fit(x, y)
    assert 0.97 * mist.parameter_count() <= lstm.parameter_count() <= mist.parameter_count()
    assert mist.score(new_x, new_y) > 0.95
    assert mist.score(new_x, new_y) > lstm.score(new_x, new_y) + 0.2


@pytest.mark.parametrize(("steps", "delays"), [(3, 3), (100, 5), (784, 8), (1460, 9), (10**6, 12)])
def test_delays_reach_a_quarter_of_the_longest_case(steps: int, delays: int) -> None:
    model = SequenceClassifier(hidden_size=2)
    model.n_channels_, model.classes_ = 1, np.arange(2)
    network = model._new_network(Examples([np.broadcast_to(np.float32(0), (steps, 1))], [], [], [1.0]))
    assert network.layer.delays == tuple(2**k for k in range(delays))


def test_delays_reach_no_farther_than_the_pieces_that_are_learnt() -> None:
    x = np.random.RandomState(0).randn(4, 1, 2000)
    model = FrameLabeler(hidden_size=4, max_epochs=1, piece_length=100, random_state=0).fit(x, x[:, 0] > 0)
    assert model.network_.layer.delays == (1, 2, 4, 8, 16)


def test_all_epochs_together_are_as_many_minibatches_as_are_said() -> None:
    labeler = FrameLabeler(piece_length=100, batch_size=8)
    plan = labeler._plan([np.zeros((1950, 1))] * 4)  # 20 pieces each
    assert plan.epochs == 150  # of 10 minibatches
    assert plan.patience == 50
    assert labeler._plan([np.zeros((10**6, 1))]).epochs == 20
    assert SequenceClassifier()._plan([np.zeros((5, 1))] * 33).epochs == 750
    assert SequenceClassifier(max_epochs=12)._plan([np.zeros((5, 1))] * 33).patience == 250


def test_validation_stops_the_training_and_the_best_is_kept() -> None:
    random = np.random.RandomState(0)
    x, y = random.randn(200, 1, 10), random.randint(2, size=200)  # nothing to learn
    model = SequenceClassifier(hidden_size=16, max_epochs=100, patience=3, early_stopping=True, random_state=0).fit(
        x, y
    )
    losses = [epoch["validation_loss"] for epoch in model.history_]
    assert model.best_epoch_ + 3 <= model.n_epochs_ < 100
    assert losses[model.best_epoch_ - 1] == min(losses)


def test_the_best_parameters_are_those_of_the_best_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, Any]] = []
    measured = _fitting.mean_loss

    def remember(network: Network, *rest: Any) -> float:
        seen.append(copy.deepcopy(network.state_dict()))
        return measured(network, *rest)

    monkeypatch.setattr(_fitting, "mean_loss", remember)
    random = np.random.RandomState(0)
    x, y = random.randn(200, 1, 10), random.randint(2, size=200)
    model = SequenceClassifier(
        hidden_size=16, max_epochs=12, learning_rate=0.02, patience=12, early_stopping=True, random_state=0
    ).fit(x, y)
    assert model.best_epoch_ < 12
    for name, value in model.network_.state_dict().items():
        assert torch.equal(value, seen[2:][model.best_epoch_ - 1][name])  # the first two are before all epochs


def test_patience_counts_once_something_is_learnt(monkeypatch: pytest.MonkeyPatch) -> None:
    train_losses = iter([1.0] * 20 + [0.8] * 30)
    monkeypatch.setattr(_fitting, "_epoch", lambda *_: (next(train_losses), 0, 4))
    measured = iter([1.0, 1.0, 0.5] + [0.7] * 49)  # untrained, in training and in validation, and then in validation
    monkeypatch.setattr(_fitting, "mean_loss", lambda *_: next(measured))
    model = SequenceClassifier(hidden_size=2, max_epochs=50, patience=3, early_stopping=True).fit(*slopes(100))
    assert (model.best_epoch_, model.n_epochs_) == (1, 24)


def test_early_stopping_by_itself_needs_enough_cases() -> None:
    few, many = slopes(40), slopes(200)
    assert SequenceClassifier(hidden_size=4, max_epochs=1).fit(*few).history_[0]["validation_loss"] is None
    assert SequenceClassifier(hidden_size=4, max_epochs=1).fit(*many).history_[0]["validation_loss"] is not None
    never = SequenceClassifier(hidden_size=4, max_epochs=1, early_stopping=False)
    assert never.fit(*many).history_[0]["validation_loss"] is None
    with pytest.raises(ValueError, match=r"something to validate on, because early_stopping=True .* got 2 cases\."):
        SequenceClassifier(early_stopping=True).fit(few[0][:2], few[1][:2])


def test_a_case_of_weight_zero_is_as_good_as_absent() -> None:
    x, y = slopes(40)
    wrong = np.concatenate([y, np.where(y[:10] == "up", "down", "up")])
    weight = np.r_[np.ones(40), np.zeros(10)]
    model = SequenceClassifier(hidden_size=6, max_epochs=5, random_state=0)
    with_them = model.fit(np.concatenate([x, x[:10]]), wrong, sample_weight=weight).predict_proba(x)
    np.testing.assert_array_equal(with_them, model.fit(x, y, sample_weight=np.full(40, 3.0)).predict_proba(x))
    with pytest.raises(ValueError, match=r"sample weight|non-zero number"):  # by scikit-learn where it checks it
        model.fit(x, y, sample_weight=np.zeros(40))


def test_weights_move_what_is_predicted() -> None:
    x = np.random.RandomState(0).randn(90, 1, 4)
    y = np.r_[np.zeros(60), np.ones(30)].astype(int)  # nothing in x tells
    model = SequenceClassifier(hidden_size=2, max_epochs=60, learning_rate=5e-3, random_state=0)

    def share_of_ones(model: SequenceClassifier, **weights: Any) -> float:
        return float(model.fit(x, y, **weights).predict_proba(x)[:, 1].mean())

    plain = share_of_ones(model)
    assert plain == pytest.approx(1 / 3, abs=0.05)
    by_case = share_of_ones(model, sample_weight=np.where(y, 2.0, 1.0))
    assert by_case == pytest.approx(1 / 2, abs=0.05)
    assert share_of_ones(model.set_params(class_weight="balanced")) == pytest.approx(by_case, abs=1e-3)
    assert share_of_ones(model.set_params(class_weight={0: 1.0, 1: 8.0})) == pytest.approx(0.8, abs=0.05)
    others = share_of_ones(model.set_params(class_weight={1: 8.0}))
    assert others == share_of_ones(model.set_params(class_weight={0: 1.0, 1: 8.0}))
    for wrong in ({0: 0.0, 1: 0.0}, {1: -1.0}, {1: np.nan}, {1: np.inf}, {1: "x"}):
        with pytest.raises(
            ValueError, match="expected the weights of classes to be finite numbers, none below 0 and one above"
        ):
            model.set_params(class_weight=wrong).fit(x, y)
    examples = model.set_params(class_weight="balanced")._learn(list(x), y, np.where(y, 3.0, 1.0))
    of_ones = sum(weight for weight, one in zip(examples.weights, y, strict=True) if one)
    assert of_ones == pytest.approx(75)  # the same sum of each class
    with pytest.raises(ValueError, match='expected class_weight to be a dict, "balanced" or None'):
        model.set_params(class_weight="fair").fit(x, y)


@pytest.mark.parametrize("kind", [SequenceClassifier, FrameLabeler])
def test_weights_of_classes_that_are_not_there_are_refused(kind: Any) -> None:
    x = np.random.RandomState(0).randn(8, 1, 4)
    y = np.array(["sit", "walk"])[np.arange(8) % 2]
    if kind is FrameLabeler:
        y = np.repeat(y[:, None], 4, axis=1)
    for wrong in ({"wlak": 50}, {"sit": 1, "wlak": 50}):
        message = rf"^{kind.__name__}: expected class_weight to name classes among \['sit', 'walk'\], got \['wlak'\]\.$"
        with pytest.raises(ValueError, match=message):
            kind(hidden_size=2, max_epochs=1, class_weight=wrong).fit(x, y)
    for right in ({np.str_("walk"): 50}, {"sit": 1, "walk": 2, "fall": 50}):  # a fold may lack a rare class
        kind(hidden_size=2, max_epochs=1, class_weight=right).fit(x, y)


def test_steps_without_a_label_are_read_and_not_learnt() -> None:
    x = np.random.RandomState(0).randn(30, 1, 40)
    truth = np.where(x[:, 0] > 0, "high", "low")
    gaps = truth.astype(object)
    gaps[:, ::3], gaps[:, 1::3] = None, np.nan
    model = FrameLabeler(hidden_size=8, max_epochs=60, random_state=0).fit(x, gaps)
    assert model.classes_.tolist() == ["high", "low"]
    assert model.score(x, truth) > 0.9
    named = np.where(np.arange(40) % 3, truth, "?")
    again = FrameLabeler(hidden_size=8, max_epochs=60, unlabeled="?", random_state=0).fit(x, named)
    assert again.classes_.tolist() == ["high", "low"]
    assert again.score(x, named) > 0.9  # of the labelled steps
    with pytest.raises(ValueError, match="expected labels to compare with, got none"):
        again.score(x, np.full((30, 40), "?"))


def test_recordings_without_any_label_are_left_out() -> None:
    x = np.random.RandomState(0).randn(40, 1, 30)
    labels = np.where(x[:, 0] > 0, 1.0, 0.0)
    labels[3:] = np.nan
    model = FrameLabeler(hidden_size=8, max_epochs=60, random_state=0)
    assert model.fit(x, labels).best_epoch_ > 0
    expected = model.predict_proba(x)
    np.testing.assert_array_equal(model.fit(x[:3], labels[:3]).predict_proba(x), expected)
    missing = pd.array(["low", "high", None] * 10, dtype="string")
    assert FrameLabeler(hidden_size=4, max_epochs=1).fit(x, [missing] * 40).classes_.tolist() == ["high", "low"]
    with pytest.raises(ValueError, match=r"expected 40 sample weights, got an array \[3\]"):
        model.score(x, labels, sample_weight=[1, 1, 1])


def test_unlabelled_steps_do_not_move_a_labeler() -> None:
    x = np.random.RandomState(0).randn(30, 1, 40)
    labels = np.where(x[:, 0] > 0, 1.0, 0.0)
    labels[:, 20:] = np.nan  # nothing after the half: what stands there must not matter
    other = x.copy()
    other[:, :, 20:] = 5.0
    model = FrameLabeler(hidden_size=8, max_epochs=3, standardize=False, random_state=0)
    first = copy.deepcopy(model.fit(x, labels).network_.state_dict())
    for name, value in model.fit(other, labels).network_.state_dict().items():
        torch.testing.assert_close(value, first[name])


def test_long_recordings_are_learnt_in_pieces_and_labelled_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.random.RandomState(0).randn(3, 1, 500)
    y = np.where(x[:, 0] > 0, 1, 0)
    lengths: list[int] = []
    drawn = _fitting._minibatches

    def remember(*given: Any) -> Any:
        for examples in drawn(*given):
            lengths.extend(len(case) for case in examples.cases)
            yield examples

    monkeypatch.setattr(_fitting, "_minibatches", remember)
    model = FrameLabeler(
        hidden_size=8, max_epochs=30, piece_length=60, early_stopping=False, learning_rate=0.02, random_state=0
    ).fit(x, y)
    assert max(lengths) == 60
    assert sum(lengths) == 30 * 1500  # every step once in an epoch
    assert len(set(lengths)) > 20  # cut elsewhere each time
    assert model.predict(x).shape == (3, 500)
    assert model.score(x, y) > 0.95


def test_several_numbers_are_predicted_in_their_own_units() -> None:
    x = np.random.RandomState(0).randn(80, 1, 6)
    y = np.stack([1000 + 100 * x[:, 0, 0], 1e-6 * x[:, 0, -1]], 1)
    model = SequenceRegressor(hidden_size=16, max_epochs=150, random_state=0).fit(x, y)
    assert model.predict(x).shape == (80, 2)
    assert model.score(x, y) > 0.9
    constant = SequenceRegressor(hidden_size=4, max_epochs=100, random_state=0).fit(x, np.full(80, 7.0))
    np.testing.assert_allclose(constant.predict(x), 7.0, atol=0.2)


def test_two_directions_and_unequal_lengths_are_learnt() -> None:
    x, y = slopes()
    model = SequenceClassifier(hidden_size=6, max_epochs=60, layer_options={"bidirectional": True}, random_state=0)
    assert model.fit(unequal(x, shortest=8), y).score(unequal(x, shortest=8), y) > 0.9
    cases = unequal(x)
    alone = np.concatenate([model.predict_proba([case]) for case in cases])
    np.testing.assert_allclose(model.predict_proba(cases), alone, atol=1e-5)  # padding is not read from either side


def test_numbers_that_are_all_the_same_and_very_small_ones_are_predicted() -> None:
    x = np.random.RandomState(0).randn(40, 1, 6)
    same = SequenceRegressor(hidden_size=4, max_epochs=2, random_state=0).fit(x, np.full(40, 5.0))
    np.testing.assert_array_equal(same.predict(x), 5.0)
    small = SequenceRegressor(hidden_size=16, max_epochs=150, random_state=0).fit(x, 1e-170 * x[:, 0, 0])
    assert np.corrcoef(small.predict(x) * 1e170, x[:, 0, 0])[0, 1] > 0.9


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_fit_where_gradients_are_switched_off(mode: Any) -> None:
    x, y = slopes(40)
    with mode():
        model = SequenceClassifier(hidden_size=4, max_epochs=2, random_state=0).fit(x, y)
    assert model.network_.readout.weight.requires_grad
    assert not model.network_.readout.weight.is_inference()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_the_network_has_float32_whatever_torchs_default(dtype: torch.dtype) -> None:
    x, y = slopes(40)
    expected = SequenceClassifier(hidden_size=4, max_epochs=2, random_state=0).fit(x, y).predict_proba(x)
    torch.set_default_dtype(dtype)
    try:
        found = SequenceClassifier(hidden_size=4, max_epochs=2, random_state=0).fit(x, y).predict_proba(x)
    finally:
        torch.set_default_dtype(torch.float32)
    assert np.isfinite(found).all()
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=0.2)  # drawn in another type


def test_probabilities_inside_autocast() -> None:
    x, y = slopes(40)
    model = SequenceClassifier(hidden_size=4, max_epochs=2, random_state=0).fit(x, y)
    with torch.autocast("cpu", torch.bfloat16):
        found, said = model.predict_proba(x), model.stream()(x[0, :, 0])
    np.testing.assert_allclose(found, model.predict_proba(x), atol=0.02)
    assert said.probabilities.sum() == pytest.approx(1.0, abs=1e-5)


def test_without_validation_the_epoch_of_the_lowest_training_loss_is_kept() -> None:
    x, y = slopes()
    model = SequenceClassifier(hidden_size=4, max_epochs=12, learning_rate=0.5, random_state=0).fit(x, y)
    losses = [epoch["train_loss"] for epoch in model.history_]
    assert model.best_epoch_ == 1 + int(np.argmin(losses))


def test_the_losses_are_weighted_means_over_all_targets() -> None:
    x, y = slopes(20)
    model = SequenceClassifier(hidden_size=4, max_epochs=1, random_state=0).fit(x, y)
    weights = torch.rand(20) + 0.5
    targets = torch.from_numpy(np.searchsorted(model.classes_, y))
    examples = Examples(as_cases("test", unequal(x)), list(targets), list(weights), [1.0] * 20)
    chances = model.predict_proba(unequal(x))[np.arange(20), targets]
    expected = (-np.log(chances) * weights.numpy()).sum() / weights.sum()
    assert _fitting.mean_loss(model.network_, examples, model._loss) == pytest.approx(float(expected), rel=1e-5)


def test_progress_is_shown_and_logged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    SequenceClassifier(hidden_size=4, max_epochs=3, verbose=True, log_dir=tmp_path / "log").fit(*slopes(200))
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "epoch 3 of 3: train loss" in shown.err
    log = EventAccumulator(str(tmp_path / "log"))
    log.Reload()
    assert set(log.Tags()["scalars"]) == {"loss/train", "loss/validation", "learning_rate"}
    assert [event.step for event in log.Scalars("loss/train")] == [1, 2, 3]


def test_whoever_follows_can_end_the_training() -> None:
    x, y = slopes(200)
    model = SequenceClassifier(hidden_size=4, max_epochs=50, random_state=0)
    model._fit(x, y, None, None, report=lambda epoch: epoch.epoch == 2)
    assert model.n_epochs_ == 2
    assert model.predict(x).shape == (200,)
