"""Epochs in which the training falls over: passed over, undone, or said."""

from typing import Any

import numpy as np
import pytest
import torch

from mistrnn import SequenceClassifier, SequenceRegressor
from mistrnn.estimators import _fitting
from tests.estimators.data import slopes


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
