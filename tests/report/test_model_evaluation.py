"""Fitted estimators on labelled cases: figures as their own scores have them, and what is refused."""

import json
from typing import Any

import numpy as np
import pytest

from mistrnn import FrameLabeler, SequenceClassifier, SequenceRegressor
from mistrnn.errors import UsageError
from mistrnn.report.model_evaluation import describe_estimator, evaluate_estimator


@pytest.fixture(scope="module")
def classifier() -> tuple[SequenceClassifier, np.ndarray, np.ndarray]:
    inputs = np.random.RandomState(0).randn(20, 2, 12)
    y = np.repeat(["down", "up"], 10)
    inputs[:10] -= 2
    return SequenceClassifier(hidden_size=4, max_epochs=5, random_state=0).fit(inputs, y), inputs, y


def test_classifier_is_evaluated_with_beginnings_groups_and_unknown_classes(classifier: Any) -> None:
    model, inputs, y = classifier
    found = evaluate_estimator(model, "recordings", inputs, y, groups=[1, 2] * 10)
    assert found.figures["accuracy"] == pytest.approx(model.score(inputs, y))
    assert found.figures["groups"] == 2
    assert len(found.figures["over_time"]["after_reading"]) == 10
    assert list(found.rows)[3][0] == "3"
    whole = evaluate_estimator(model, "recordings", inputs, y, over_time=False)
    assert whole.figures["accuracy"] == found.figures["accuracy"]
    assert "over_time" not in whole.figures
    strange = np.array([*y[:-1], "sideways"])
    figures = evaluate_estimator(model, "recordings", inputs, strange).figures
    assert figures["confusion"]["classes"] == ["down", "up", "sideways"]
    assert figures["classes"][2]["recall"] == 0
    assert figures["accuracy"] == pytest.approx(found.figures["accuracy"] - 0.05 * (model.predict(inputs)[-1] == "up"))


def test_evaluations_that_cannot_be_made_are_refused(classifier: Any) -> None:
    model, inputs, y = classifier
    with pytest.raises(UsageError, match="expected y for 20 cases, as X has, got 19"):
        evaluate_estimator(model, "recordings", inputs, y[:-1])
    with pytest.raises(UsageError, match="expected groups for 20 cases, as X has, got 1"):
        evaluate_estimator(model, "recordings", inputs, y, groups=["a"])
    with pytest.raises(UsageError, match="expected at least one case to evaluate, got none"):
        evaluate_estimator(model, "recordings", inputs[:0], y[:0])
    with pytest.raises(UsageError, match="expected a label for every case, got none for case '2'"):
        evaluate_estimator(model, "recordings", inputs, [*y[:2], None, *y[3:]])


def test_frames_are_evaluated_without_those_that_have_no_label() -> None:
    inputs = np.random.RandomState(0).randn(6, 1, 20)
    y = np.where(inputs[:, 0] > 0, "high", "low").astype(object)
    y[:, 0], y[:, 1], y[:, 2] = None, np.nan, "?"
    model = FrameLabeler(hidden_size=4, max_epochs=3, unlabeled="?", random_state=0).fit(inputs, y)
    found = evaluate_estimator(model, "rows", inputs, y)
    assert found.figures["count"] == 6 * 17
    assert found.figures["accuracy"] == pytest.approx(model.score(inputs, y))
    assert [row[1] for row in found.rows][:3] == [1, 2, 3]
    with pytest.raises(UsageError, match="expected 20 labels for case '0', one a frame, got 19"):
        evaluate_estimator(model, "rows", inputs, y[:, 1:])
    with pytest.raises(UsageError, match="expected labelled frames to evaluate, got only frames without a label"):
        evaluate_estimator(model, "rows", inputs, np.full((6, 20), "?"))


@pytest.mark.parametrize("as_list", [True, False])
def test_numbers_are_evaluated_from_the_beginnings_of_cases(as_list: bool) -> None:
    inputs = np.random.RandomState(0).randn(20, 1, 12)
    model = SequenceRegressor(hidden_size=4, max_epochs=3, random_state=0).fit(inputs, inputs[:, 0, 0])
    found = evaluate_estimator(model, "numbers", list(inputs) if as_list else inputs, inputs[:, 0, 0])
    assert found.figures["r2"] == pytest.approx(model.score(inputs, inputs[:, 0, 0]))
    half = found.figures["over_time"]["after_reading"][4]
    expected = np.abs(model.predict(inputs[..., :6]) - inputs[:, 0, 0]).mean()
    assert half == {"read": 0.5, "mean_absolute_error": pytest.approx(expected, rel=1e-5)}
    with pytest.raises(UsageError, match="expected one number for each case, got 2"):
        evaluate_estimator(model, "numbers", inputs, inputs[:, 0, :2])


def test_description_of_an_estimator_is_json(classifier: Any) -> None:
    about = describe_estimator(classifier[0])
    assert json.loads(json.dumps(about)) == about
    assert (about["estimator"], about["layer"], about["hidden"]) == ("SequenceClassifier", "mist", 4)
    assert about["settings"]["max_epochs"] == 5
    assert "verbose" not in about["settings"]
