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
from mistrnn.estimators._estimator import _drawn_cases, _drawn_groups
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


def test_a_group_is_never_trained_and_validated_on(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = slopes(100)
    people = np.arange(100) // 10
    x[:, 0, 0] = people  # so that a case tells whose it is
    parts: list[Examples] = []
    monkeypatch.setattr(_fitting, "train", lambda network, learnt, held, *rest: parts.extend([learnt, held]) or [_END])
    SequenceClassifier(hidden_size=4, early_stopping=True).fit(x, y, groups=people)
    learnt, held = ({case[0, 0] for case in part.cases} for part in parts)
    assert learnt
    assert held
    assert not learnt & held
    with pytest.raises(ValueError, match="got 100 cases in 1 groups"):
        SequenceClassifier(early_stopping=True).fit(x, y, groups=["me"] * 100)
    parts.clear()
    SequenceClassifier(hidden_size=4, validation_fraction=0.3).fit(x, y, groups=["me"] * 100)  # "auto" does without
    assert parts[1] is None
    with pytest.warns(UserWarning, match=r"\['c'\] is only in the groups that are validated on"):
        SequenceClassifier(hidden_size=4, early_stopping=True).fit(
            x, ["a", "b"] * 45 + ["c"] * 10, groups=[0] * 90 + [1] * 10
        )


@pytest.mark.parametrize("seed", range(20))
def test_groups_of_very_different_size_leave_enough_to_learn(seed: int) -> None:
    groups = np.r_[np.zeros(190), np.arange(1, 11)]
    same = np.ones((200, 1), dtype=bool)  # no classes
    held = _drawn_groups(30, groups, same, np.random.RandomState(seed))
    assert sorted(groups[held]) == list(range(1, 11))
    pair = _drawn_groups(15, np.repeat([0, 1], [60, 40]), same[:100], np.random.RandomState(seed))
    assert len(pair) == 40  # no group is small enough: the smaller one
    many = _drawn_groups(15, np.arange(100) // 5, same[:100], np.random.RandomState(seed))
    assert len(many) == 15
    assert len(_drawn_groups(15, np.zeros(100), same[:100], np.random.RandomState(seed))) == 0


@pytest.mark.parametrize("seed", range(20))
def test_the_last_case_of_a_class_is_always_learnt(seed: int) -> None:
    strata = np.r_[np.zeros(10), np.ones(9), [2]]
    classes = strata[:, None] == np.arange(3)
    held = _drawn_cases(6, strata, classes, np.random.RandomState(seed))
    assert len(held) == len(set(held.tolist())) == 6
    assert 19 not in held
    assert 2 <= (strata[held] == 0).sum() <= 4
    assert len(_drawn_cases(50, strata, classes, np.random.RandomState(seed))) == 17


_END = _fitting.Epoch(1, 1, 0.1, 0.0, None, 1)


def recordings(*rare: int) -> tuple[Any, Any]:
    """20 recordings whose steps are "a" or "b", and the first one "c" in these; each recording begins with its number."""
    x = np.random.RandomState(0).randn(20, 1, 6)
    y = np.where(x[:, 0] > 0, "a", "b")
    y[:, 1:3] = "a", "b"
    y[list(rare), 0] = "c"
    x[:, 0, 0] = np.arange(20)
    return x, y


@pytest.fixture
def split(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Fits that end before they begin, and return the numbers of the recordings to train and to validate on."""
    parts: list[Examples | None] = []
    monkeypatch.setattr(_fitting, "train", lambda network, learnt, held, *rest: parts.extend([learnt, held]) or [_END])

    def numbers(model: Any, *data: Any, **options: Any) -> list[list[int] | None]:
        parts.clear()
        model.set_params(hidden_size=2).fit(*data, **options)
        return [None if part is None else [int(case[0, 0]) for case in part.cases] for part in parts]

    return numbers


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("early_stopping", ["auto", True])
def test_the_only_recording_with_a_class_is_always_learnt(split: Any, seed: int, early_stopping: Any) -> None:
    order = np.random.RandomState(seed).permutation(20).tolist()
    model = FrameLabeler(early_stopping=early_stopping, random_state=seed)
    assert split(model, *recordings(order[1]))[1] == sorted([order[0], *order[2:4]])
    assert split(model, *recordings(order[1], order[2]))[1] == sorted([*order[:2], order[3]])  # one of two is enough
    x, y = recordings(order[0], order[5])
    learnt, held = split(model, x, y, sample_weight=np.arange(20) != order[5])  # it is as good as absent
    assert order[0] in learnt
    assert len(held) == 3


@pytest.mark.parametrize("seed", range(20))
def test_a_labeler_validates_on_the_recordings_that_come_first_where_every_class_is_left(split: Any, seed: int) -> None:
    order = np.random.RandomState(seed).permutation(20).tolist()
    learnt, held = split(FrameLabeler(random_state=seed), *recordings(order[0], order[9]))
    assert held == sorted(order[:3])
    assert learnt == sorted(order[3:])


@pytest.mark.parametrize("seed", range(20))
def test_the_only_group_with_a_class_is_always_learnt(split: Any, seed: int) -> None:
    people, order = np.arange(20) // 2, np.random.RandomState(seed).permutation(10).tolist()
    x, y = recordings(2 * order[0], 2 * order[0] + 1)
    learnt, held = split(FrameLabeler(random_state=seed), x, y, groups=people)
    assert sorted({k // 2 for k in held}) == sorted(order[1:3])
    assert learnt == sorted({*range(20)} - {*held})
    of_case = np.where(people == order[0], "c", np.array(["a", "b"])[np.arange(20) % 2])
    classifier = SequenceClassifier(early_stopping=True, random_state=seed)
    assert split(classifier, x, of_case, groups=people)[1] == held
    larger = np.where(np.arange(20) < 8, "small", "large")  # the smaller one alone has "c"
    assert split(classifier, x, np.r_[["c"] * 2, ["a", "b"] * 9], groups=larger)[1] == list(range(8, 20))


def test_where_every_recording_has_a_class_of_its_own_one_is_lost_only_if_validation_is_asked_for(split: Any) -> None:
    x, y = recordings()
    y = np.c_[[f"own {k}" for k in range(20)], y[:, 1:]]
    for options, of in (({}, "cases"), ({"groups": np.arange(20)}, "groups")):
        learnt, held = split(FrameLabeler(random_state=0), x, y, **options)
        assert len(learnt) == 20
        assert held is None
        message = rf"FrameLabeler: \['own \d+'\] is only in the {of} that are validated on, and will not be learnt"
        with pytest.warns(UserWarning, match=message) as caught:
            learnt, held = split(FrameLabeler(early_stopping=True, random_state=0), x, y, **options)
        assert caught[0].filename == __file__  # the warning points at the caller's line
        assert len(held) == 1
        assert len(learnt) == 19
    with pytest.raises(ValueError, match=r"something to validate on, because early_stopping=True .* got 20 cases\."):
        FrameLabeler(early_stopping=True).fit(x, np.repeat(y[:, :1], 6, axis=1))  # nothing of any is learnt elsewhere


def test_validation_holds_every_class(monkeypatch: pytest.MonkeyPatch) -> None:
    x, _ = slopes(100)
    parts: list[Examples] = []
    monkeypatch.setattr(_fitting, "train", lambda network, learnt, held, *rest: parts.extend([learnt, held]) or [_END])
    SequenceClassifier(hidden_size=4, early_stopping=True, random_state=0).fit(x, np.arange(100) // 20)
    assert sorted(int(target) for target in parts[1].targets) == [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3 + [4] * 3


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


def test_training_that_diverges_says_so() -> None:
    x, _ = slopes()
    for epochs, given in ((5, 5), (100, 10)):  # it does not go on for ever
        model = SequenceRegressor(hidden_size=4, learning_rate=1e30, layer="rnn", max_epochs=epochs)
        message = rf"the training diverged, none of {given} epochs is .* lower learning_rate than 1e\+30"
        with pytest.raises(ValueError, match=message):
            model.fit(x, x[:, 0, 0])


def test_an_epoch_in_which_the_training_falls_over_is_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    losses = iter([0.7, 0.7, 0.4, 2.0, 0.5, 0.75, 0.3])  # the first of them untrained
    monkeypatch.setattr(_fitting, "mean_loss", lambda *_: next(losses))
    model = SequenceClassifier(hidden_size=4, max_epochs=6, random_state=0).fit(*slopes(40))
    assert [epoch["undone"] for epoch in model.history_] == [False, False, True, False, False, False]
    assert [epoch["best_epoch"] for epoch in model.history_] == [1, 2, 2, 2, 2, 6]
    assert model.history_[3]["learning_rate"] == pytest.approx(3e-3 * 0.5 / 2)


@pytest.mark.parametrize("learning_rate", [0.3, 1.0])
def test_a_first_epoch_that_ruins_the_network_is_undone(learning_rate: float) -> None:
    x = np.random.RandomState(0).randn(24, 2, 10)  # one minibatch: its loss is that of the network before the epoch
    model = SequenceRegressor(hidden_size=16, max_epochs=100, learning_rate=learning_rate, random_state=0)
    assert model.fit(x, x[:, 0, 0]).score(x, x[:, 0, 0]) > 0.99
    assert model.history_[0]["undone"]
    kept = model.history_[model.best_epoch_ - 1]["train_loss"]
    assert kept == min(epoch["train_loss"] for epoch in model.history_)
    standardised = (model.predict(x) - x[:, 0, 0]) / model.y_scale_
    assert kept == pytest.approx(np.square(standardised).mean(), rel=1e-3)


@pytest.mark.parametrize("cases", [24, 300])  # without a validation, and with one
def test_a_learning_rate_that_ruins_every_epoch_is_said(cases: int) -> None:
    x = np.random.RandomState(0).randn(cases, 2, 10)
    for model, y in ((SequenceRegressor, x[:, 0, 0]), (SequenceClassifier, x[:, 0, 0] > 0)):
        with pytest.raises(
            ValueError,
            match=r"diverged, none of 10 epochs is .* lower learning_rate than 1000000",
        ):
            model(hidden_size=16, max_epochs=100, learning_rate=1e6, random_state=0).fit(x, y)


@pytest.mark.parametrize("epochs", [1, 5, 15])
def test_one_minibatch_that_ruins_the_network_is_seen_with_a_validation_too(epochs: int) -> None:
    x = np.random.RandomState(0).randn(300, 2, 10)
    model = SequenceRegressor(
        hidden_size=16, batch_size=300, early_stopping=True, learning_rate=1e6, max_epochs=epochs, random_state=0
    )
    with pytest.raises(ValueError, match="the training diverged"):
        model.fit(x, x[:, 0, 0])


def test_an_undone_epoch_may_go_back_to_the_beginning_and_learn_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    # Held out are cases that nothing can be learnt about: no epoch is as good there as the untrained network.
    x = np.random.RandomState(0).randn(80, 1, 10)
    y, users = (x[:, 0, 0] > 0) ^ (np.arange(80) % 2 > 0), np.arange(80) % 2
    epoch, count = _fitting._epoch, iter(range(1, 100))

    def falls_in_the_sixth(*given: Any) -> tuple[float, int, int]:
        found = epoch(*given)
        return (np.nan, *found[1:]) if next(count) == 6 else found

    monkeypatch.setattr(_fitting, "_epoch", falls_in_the_sixth)
    model = SequenceClassifier(
        hidden_size=16, max_epochs=40, learning_rate=0.02, early_stopping=True, patience=40, random_state=0
    )
    model.fit(x, y, groups=users)
    assert [one["epoch"] for one in model.history_ if one["undone"]] == [6]


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


def test_a_gradient_that_overflows_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    norms = iter([torch.tensor(torch.inf), torch.tensor(1.0)] * 50)
    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", lambda *_: next(norms))
    model = SequenceClassifier(hidden_size=4, max_epochs=1, batch_size=20).fit(*slopes(40))
    assert model.history_[0]["overflows"] == 1


def test_an_epoch_that_overflows_is_undone_at_half_the_learning_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    norms = iter([torch.tensor(1.0)] * 4 + [torch.tensor(torch.nan)] * 2 + [torch.tensor(1.0)] * 50)
    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", lambda *_: next(norms))
    x, y = slopes(40)
    model = SequenceClassifier(hidden_size=4, max_epochs=6, batch_size=20, random_state=0).fit(x, y)
    rates = [epoch["learning_rate"] for epoch in model.history_]
    assert [epoch["overflows"] for epoch in model.history_] == [0, 0, 2, 0, 0, 0]
    assert rates[3] == pytest.approx(3e-3 * 0.5 / 2)  # half of the cosine in the middle
    assert model.score(x, y) > 0.5


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
