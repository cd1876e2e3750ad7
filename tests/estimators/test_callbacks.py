"""Following a fit: the callback after each epoch, lines and a log of its progress."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from mistrnn import SequenceClassifier
from mistrnn.estimators import _progress
from mistrnn.estimators._fitting import Epoch
from tests.estimators.data import KINDS, SMALL, fitted, slopes


@pytest.mark.parametrize("kind", KINDS)
def test_callback_is_called_after_every_epoch(kind: type) -> None:
    seen: list[Epoch] = []
    model = fitted(kind, max_epochs=5, early_stopping=True, callback=seen.append)[0]
    assert [epoch.epoch for epoch in seen] == [1, 2, 3, 4, 5]
    assert [asdict(epoch) for epoch in seen] == model.history_
    assert {(epoch.epochs, epoch.stage) for epoch in seen} == {(5, "fit")}
    assert all(isinstance(epoch.validation_loss, float) for epoch in seen)


@pytest.mark.parametrize("early_stopping", [False, True])
def test_callback_that_returns_true_ends_the_fit_with_what_it_has(early_stopping: bool) -> None:
    x, y = slopes(40)
    model = SequenceClassifier(**SMALL, max_epochs=50, early_stopping=early_stopping)
    model.set_params(callback=lambda epoch: epoch.epoch == 3).fit(x, y)
    assert model.n_epochs_ == 3
    assert model.best_epoch_ == 3 or early_stopping
    assert model.history_[-1]["epochs"] == 50
    assert model.predict(x).shape == (40,)


@pytest.mark.parametrize("said", [None, False, 0, ""])
def test_callback_that_returns_nothing_or_false_lets_the_fit_go_on(said: Any) -> None:
    assert fitted(SequenceClassifier, max_epochs=3, callback=lambda _: said)[0].n_epochs_ == 3


def test_callback_changes_nothing_and_its_errors_are_raised() -> None:
    plain, x, y = fitted(SequenceClassifier)
    followed = fitted(SequenceClassifier, callback=lambda epoch: None)[0]
    assert (followed.predict_proba(x) == plain.predict_proba(x)).all()

    def broken(epoch: Epoch) -> None:
        raise ZeroDivisionError("mine")

    model = SequenceClassifier(**SMALL, max_epochs=3, callback=broken)
    with pytest.raises(ZeroDivisionError, match="mine"):
        model.fit(x, y)
    assert not hasattr(model, "network_")


def test_progress_is_shown_and_logged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[Epoch] = []
    parameters = {"early_stopping": True, "verbose": True, "log_dir": tmp_path / "log", "callback": seen.append}
    fitted(SequenceClassifier, max_epochs=3, **parameters)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "epoch 3 of 3: train loss" in shown.err
    log = EventAccumulator(str(tmp_path / "log"))
    log.Reload()
    assert set(log.Tags()["scalars"]) == {"loss/train", "loss/validation", "learning_rate"}
    assert [event.step for event in log.Scalars("loss/train")] == [1, 2, 3]
    assert len(seen) == 3


def test_a_line_is_printed_now_and_then(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_progress, "LINE_EVERY_SECONDS", 0.0)
    fitted(SequenceClassifier, max_epochs=2, verbose=True)
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(":")[0] for line in lines] == ["epoch 1 of 2", "epoch 2 of 2"]
    fitted(SequenceClassifier, max_epochs=1, verbose=False)
    assert capsys.readouterr().err == ""


def test_progress_of_a_search_names_its_stages(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(_progress, "LINE_EVERY_SECONDS", 0.0)
    fitted(SequenceClassifier, max_epochs=4, n_trials=2, n_best=1, verbose=True, log_dir=tmp_path)
    shown = capsys.readouterr().err
    assert "epoch 1 of 1: race, lowest validation loss 0." in shown
    assert shown.splitlines()[-1] == "epoch 4 of 4: refit"
