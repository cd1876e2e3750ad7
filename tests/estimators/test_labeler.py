"""Labels of steps: gaps, recordings without any, pieces of long recordings."""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from mistrnn import FrameLabeler
from mistrnn.estimators import _fitting
from mistrnn.estimators._plan import course, network_arguments, recipe
from mistrnn.models import SequenceNetwork, Standardisation
from mistrnn.training.examples import Frames
from tests.estimators.data import SMALL


def test_steps_without_a_label_are_read_and_not_learnt() -> None:
    x = np.random.RandomState(0).randn(30, 1, 40)
    truth = np.where(x[:, 0] > 0, "high", "low")
    gaps = truth.astype(object)
    gaps[:, ::3], gaps[:, 1::3] = None, np.nan
    model = FrameLabeler(**SMALL, max_epochs=20).fit(x, gaps)
    assert model.classes_.tolist() == ["high", "low"]
    assert model.score(x, truth) > 0.9
    named = np.where(np.arange(40) % 3, truth, "?")
    again = FrameLabeler(**SMALL, max_epochs=20, unlabeled="?").fit(x, named)
    assert again.classes_.tolist() == ["high", "low"]
    assert again.score(x, named) > 0.9  # of the labelled steps
    with pytest.raises(ValueError, match="expected labels to compare with, got none"):
        again.score(x, np.full((30, 40), "?"))


def test_recordings_without_any_label_are_left_out() -> None:
    x = np.random.RandomState(0).randn(40, 1, 30)
    labels = np.where(x[:, 0] > 0, 1.0, 0.0)
    labels[3:] = np.nan
    model = FrameLabeler(**SMALL, max_epochs=20)
    assert model.fit(x, labels).best_epoch_ > 0
    expected = model.predict_proba(x)
    np.testing.assert_array_equal(model.fit(x[:3], labels[:3]).predict_proba(x), expected)
    missing = pd.array(["low", "high", None] * 10, dtype="string")
    assert FrameLabeler(hidden_size=4, max_epochs=1).fit(x, [missing] * 40).classes_.tolist() == ["high", "low"]
    with pytest.raises(ValueError, match=r"expected 40 sample weights, got an array \[3\]"):
        model.score(x, labels, sample_weight=[1, 1, 1])


def test_unlabelled_steps_are_no_part_of_the_loss() -> None:
    x = np.random.RandomState(0).randn(20, 1, 30)
    labels = np.where(x[:, 0] > 0, 1.0, 0.0)
    labels[:, 10:20] = np.nan
    model, place = FrameLabeler(**SMALL, max_epochs=2), torch.device("cpu")
    model.n_channels_ = 1
    examples = model._learn(list(x.transpose(0, 2, 1)), labels, np.ones(20))
    there = ~torch.from_numpy(np.isnan(labels))
    assert torch.equal(torch.stack(list(examples.weights)) > 0, there)
    same = Standardisation(torch.zeros(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64))

    def trained(targets: torch.Tensor) -> Any:
        frames = Frames(replace(examples, targets=list(targets)), same, place)
        make = partial(SequenceNetwork, **network_arguments(model, examples, same))
        network, epochs = _fitting.train(
            make, frames, frames, recipe(model), course(model, examples, seed=0), place, lambda _: False
        )
        return network.state_dict(), epochs

    targets = torch.stack(list(examples.targets))
    weights, epochs = trained(targets)
    others, other_epochs = trained(torch.where(there, targets, 1 - targets))
    assert epochs == other_epochs
    for name, value in weights.items():
        assert torch.equal(value, others[name])


def test_long_recordings_are_learnt_in_pieces_and_labelled_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.random.RandomState(0).randn(3, 1, 500)
    y = np.where(x[:, 0] > 0, 1, 0)
    lengths: list[list[int]] = []
    pieces = Frames.pieces

    def remember(frames: Frames, *given: Any) -> Any:
        found = pieces(frames, *given)
        lengths.append(found[1].tolist())
        return found

    monkeypatch.setattr(Frames, "pieces", remember)
    model = FrameLabeler(**SMALL, max_epochs=15, piece_length=60).fit(x, y)
    assert len(lengths) == 15
    assert all(max(epoch) == 60 and sum(epoch) == 1500 for epoch in lengths)  # every step once in an epoch
    assert len({length for epoch in lengths for length in epoch}) > 20  # cut elsewhere each time
    assert model.predict(x).shape == (3, 500)
    assert model.score(x, y) > 0.95
    whole = FrameLabeler(**SMALL, max_epochs=1, piece_length=None).fit(x, y)
    assert lengths[-1] == [500] * 3
    assert whole.predict(x).shape == (3, 500)
