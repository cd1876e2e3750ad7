"""Trainings that diverge: begun again with a quarter of the learning rate, or said."""

from typing import Any

import numpy as np
import pytest
import torch

from mistrnn import SequenceClassifier, SequenceRegressor
from mistrnn.estimators import _fitting
from mistrnn.estimators._fitting import Epoch
from tests.estimators.data import SMALL, slopes

RATE = SMALL["learning_rate"]


def breaking(monkeypatch: pytest.MonkeyPatch, attempts: int, step: int) -> None:
    """Let the losses of the first attempts be NaN from a step on."""
    begun = iter(range(1, 100))

    class Breaking(_fitting.NetworkTrials):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            self.attempt = next(begun)

        def _gradients_of_all(self) -> Any:
            gradients, norms, losses = super()._gradients_of_all()
            broken = self.attempt <= attempts and self.step + 1 >= step
            return gradients, norms, torch.full_like(losses, torch.nan) if broken else losses

    monkeypatch.setattr(_fitting, "NetworkTrials", Breaking)


def test_training_that_diverges_begins_again_with_a_quarter_of_the_learning_rate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x, y = slopes(40)
    plain = SequenceClassifier(**(SMALL | {"learning_rate": RATE / 16}), max_epochs=6).fit(x, y)
    breaking(monkeypatch, attempts=2, step=5)  # in the third of the epochs, of 2 steps each
    seen: list[Epoch] = []
    model = SequenceClassifier(**SMALL, max_epochs=6, callback=seen.append).fit(x, y)
    assert [epoch.epoch for epoch in seen] == [1, 2, 3, 1, 2, 3, 1, 2, 3, 4, 5, 6]
    assert [epoch.train_loss is None for epoch in seen] == [k in (2, 5) for k in range(12)]
    rates = [epoch.learning_rate for epoch in seen]
    np.testing.assert_allclose(rates[3:6], np.array(rates[:3]) / 4)
    np.testing.assert_allclose(rates[6:9], np.array(rates[:3]) / 16)
    assert [epoch["epoch"] for epoch in model.history_] == [1, 2, 3, 4, 5, 6]  # of the last attempt
    np.testing.assert_array_equal(model.predict_proba(x), plain.predict_proba(x))


def test_validation_that_diverges_begins_again_too(monkeypatch: pytest.MonkeyPatch) -> None:
    breaking(monkeypatch, attempts=1, step=4)
    x, y = slopes(100)
    model = SequenceClassifier(**SMALL, max_epochs=12, early_stopping=True).fit(x, y)
    assert model.score(x, y) > 0.9
    assert max(epoch["learning_rate"] for epoch in model.history_) <= RATE / 4


@pytest.mark.parametrize("kind", [SequenceRegressor, SequenceClassifier])
@pytest.mark.parametrize("early_stopping", [False, True])
def test_learning_rate_that_ruins_the_network_at_every_attempt_is_said(kind: Any, early_stopping: bool) -> None:
    x = np.random.RandomState(0).randn(60, 2, 10)
    y = x[:, 0, 0] if kind is SequenceRegressor else x[:, 0, 0] > 0
    model = kind(**(SMALL | {"learning_rate": 1e30}), max_epochs=2, early_stopping=early_stopping)
    with pytest.raises(
        ValueError, match=r"the training diverged 5 times, .* from 1e\+30 down to 3.*: try a lower learning"
    ):
        model.fit(x, y)
    assert not hasattr(model, "network_")


@pytest.mark.parametrize("epochs", [1, 4])
def test_network_that_is_ruined_with_finite_losses_is_seen(epochs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    losses = iter([[1000.0], [5.0], [1.999 * np.log(2)]])  # the untrained network's loss is near log(2)
    monkeypatch.setattr(_fitting.NetworkTrials, "best_losses", lambda *_: next(losses))
    x, y = slopes(40)
    model = SequenceClassifier(**SMALL, max_epochs=epochs).fit(x, y)
    plain = SequenceClassifier(**(SMALL | {"learning_rate": RATE / 16}), max_epochs=epochs)
    monkeypatch.undo()
    np.testing.assert_array_equal(model.predict_proba(x), plain.fit(x, y).predict_proba(x))


def test_training_that_is_ended_keeps_even_a_bad_network_and_says_that_it_has_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x, y = slopes(40)
    monkeypatch.setattr(_fitting, "RUINED", 0.0)  # any network is bad
    model = SequenceClassifier(**SMALL, max_epochs=6, callback=lambda epoch: epoch.epoch == 2).fit(x, y)
    assert model.n_epochs_ == 2
    breaking(monkeypatch, attempts=1, step=3)
    with pytest.raises(ValueError, match="the training was ended after it had diverged: try a lower learning_rate"):
        model.fit(x, y)
    assert model.n_epochs_ == 2  # the model is as it was
