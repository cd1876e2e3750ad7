"""Weights of cases and of classes."""

from typing import Any

import numpy as np
import pytest
import torch

from mistrnn import FrameLabeler, SequenceClassifier
from tests.estimators.data import SMALL, slopes


def test_a_case_of_weight_zero_is_as_good_as_absent() -> None:
    x, y = slopes(40)
    wrong = np.concatenate([y, np.where(y[:10] == "up", "down", "up")])
    weight = np.r_[np.ones(40), np.zeros(10)]
    model = SequenceClassifier(**SMALL, max_epochs=5)
    with_them = model.fit(np.concatenate([x, x[:10]]), wrong, sample_weight=weight).predict_proba(x)
    np.testing.assert_array_equal(with_them, model.fit(x, y, sample_weight=np.full(40, 3.0)).predict_proba(x))
    with pytest.raises(ValueError, match=r"sample weight|non-zero number"):  # by scikit-learn where it checks it
        model.fit(x, y, sample_weight=np.zeros(40))


def test_weights_move_what_is_predicted() -> None:
    x = np.random.RandomState(0).randn(90, 1, 4)
    y = np.r_[np.zeros(60), np.ones(30)].astype(int)  # nothing in x tells
    plain_fit = {
        "label_smoothing": 0.0,
        "dropout": 0.0,
        "augmentation": False,
        "standardize": False,
    }  # these move it, too
    small = SMALL | {"hidden_size": 2, "kernel_size": 1, "learning_rate": 0.02}
    model = SequenceClassifier(**small, **plain_fit, max_epochs=30)

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


def test_weights_of_cases_scale_their_losses_and_their_part_of_the_standardisation() -> None:
    x, y = slopes(40)
    weight = np.where(np.arange(40) < 20, 3.0, 1.0)
    model = SequenceClassifier(**SMALL, max_epochs=1)
    model.fit(x, y, sample_weight=weight)
    torch.testing.assert_close(
        model.network_.standardisation.mean, torch.from_numpy(np.average(x.mean(2), axis=0, weights=weight))
    )
    examples = model._learn(list(x.transpose(0, 2, 1)), y, weight)
    assert [float(own) for own in examples.weights] == weight.tolist()
