"""Fitted estimators as streams: equal to `predict` for every causal network, and what they refuse."""

from typing import Any

import numpy as np
import pytest

from mistrnn import FrameLabeler, SequenceClassifier, SequenceRegressor
from mistrnn.layers import LAYERS
from tests.estimators.data import KINDS, fitted, slopes

TOLERANCE = 1e-5
POOLINGS = ["last", "mean", "max", "mean+max", "last+mean+max"]


def check_stream(model: Any, x: Any) -> None:
    """Compare what a stream says of some cases with what the model predicts of them."""
    live = model.stream()
    for case in x:
        live.reset()
        said = [live(row) for row in case.T]
        assert live.rows == case.shape[1]
        if isinstance(model, SequenceRegressor):
            np.testing.assert_allclose(said[-1], model.predict([case])[0], rtol=TOLERANCE)
            for steps in (1, 4):
                np.testing.assert_allclose(said[steps - 1], model.predict([case[:, :steps]])[0], rtol=TOLERANCE)
            continue
        probabilities = np.stack([one.probabilities for one in said])
        if isinstance(model, FrameLabeler):
            expected = model.predict_proba([case])[0]
        else:
            expected = model.predict_proba_at_every_step([case])[0]
            np.testing.assert_allclose(expected[-1], model.predict_proba([case])[0], atol=TOLERANCE)
        np.testing.assert_allclose(probabilities, expected, atol=TOLERANCE)
        assert [one.label for one in said] == model.classes_[probabilities.argmax(-1)].tolist()
        np.testing.assert_array_equal([one.probability for one in said], probabilities.max(-1))


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("kind", [SequenceClassifier, SequenceRegressor])
def test_stream_of_every_layer_and_pooling_says_what_predict_says(kind: type, layer: str, pooling: str) -> None:
    model, x, _ = fitted(kind, layer=layer, num_layers=2, pooling=pooling, max_epochs=2)
    check_stream(model, x[:3])


@pytest.mark.parametrize("layer", LAYERS)
def test_stream_of_a_labeler_says_what_predict_says(layer: str) -> None:
    model, x, _ = fitted(FrameLabeler, layer=layer, num_layers=2, max_epochs=2)
    check_stream(model, x[:3])


@pytest.mark.parametrize("options", [{"layer_norm": True}, {"zoneout": 0.2}, {"bias": False}])
@pytest.mark.parametrize("kind", KINDS)
def test_stream_of_a_layer_with_options_says_what_predict_says(kind: type, options: dict[str, Any]) -> None:
    model, x, _ = fitted(kind, kernel_size=1, layer_options=options, max_epochs=2)
    check_stream(model, x[:2])


def test_stream_far_beyond_what_was_learnt_says_what_predict_says() -> None:
    model = fitted(SequenceClassifier, max_epochs=2)[0]
    check_stream(model, slopes(2, steps=400)[0])


def test_stream_refuses_rows_that_do_not_fit() -> None:
    live = fitted(SequenceClassifier, max_epochs=1)[0].stream()
    with pytest.raises(ValueError, match="expected a row of 2 numbers"):
        live([1.0, 2.0, 3.0])
    with pytest.raises(ValueError, match="expected finite numbers"):
        live([1.0, np.nan])


@pytest.mark.parametrize("kind", KINDS)
def test_both_directions_are_refused(kind: type) -> None:
    model, x, _ = fitted(kind, bidirectional=True, max_epochs=1)
    with pytest.raises(ValueError, match="expected bidirectional=False for a stream, because the future has not come"):
        model.stream()
    if kind is SequenceClassifier:
        with pytest.raises(ValueError, match="expected one direction, because the second one starts at the end"):
            model.predict_proba_at_every_step(x)


def test_stream_speaks_for_the_model_that_it_was_made_from() -> None:
    model, x, y = fitted(SequenceClassifier)
    live, expected = model.stream(), model.stream()(x[0, :, 0]).probability
    model.fit(x, np.where(y == "up", "A", "B"))
    said = live(x[0, :, 0])
    assert said.label in ("up", "down")
    assert said.probability == expected
