"""Parameters of the estimators: errors for values that cannot be, and what the others do to the network."""

from typing import Any

import numpy as np
import pytest
import torch

from mistrnn import FrameLabeler, SequenceClassifier, SequenceRegressor
from mistrnn.estimators._plan import network_arguments
from mistrnn.layers import LAYERS
from mistrnn.layers.initialization import INITIALIZATIONS
from mistrnn.models import Standardisation
from mistrnn.training.examples import Augmentation
from tests.estimators.data import KINDS, SMALL, data, fitted, network_of, numbers, slopes, unequal


@pytest.mark.parametrize(
    ("parameter", "value", "message"),
    [
        ("layer", "mister", "layer to be one of mist, narx, clockwork, rnn, lstm, peephole_lstm, gru, got 'mister'"),
        ("layer", dict, "layer to be a layer of mistrnn or its name"),
        ("hidden_size", 0, "hidden_size to be a whole number from 1 on, got 0"),
        ("num_layers", True, "num_layers to be a whole number from 1 on, got True"),
        ("kernel_size", 0, "kernel_size to be a whole number from 1 on, got 0"),
        ("n_trials", 0, "n_trials to be a whole number from 1 on, got 0"),
        ("n_best", 1.5, "n_best to be a whole number from 1 on, got 1.5"),
        ("batch_size", 2.5, "batch_size to be a whole number from 1 on, or None, got 2.5"),
        ("max_epochs", -1, "max_epochs to be a whole number from 1 on, or None, got -1"),
        ("patience", 0, "patience to be a whole number from 1 on, or None, got 0"),
        ("learning_rate", 0.0, "learning_rate to be a number above 0"),
        ("learning_rate", "fast", "learning_rate to be a number above 0"),
        ("weight_decay", -1.0, "weight_decay to be a number from 0 on"),
        ("dropout", 1.0, r"dropout to be a number in \[0, 1\), got 1.0"),
        ("label_smoothing", 1.0, r"label_smoothing to be a number in \[0, 1\), got 1.0"),
        ("label_smoothing", "some", r"label_smoothing to be a number in \[0, 1\), got 'some'"),
        ("early_stopping", "auto", "early_stopping to be True or False, got 'auto'"),
        ("standardize", None, "standardize to be True or False, got None"),
        ("bidirectional", 1, "bidirectional to be True or False, got 1"),
        ("validation_fraction", 1.0, "validation_fraction to be a number between 0 and 1, got 1.0"),
        ("layer_options", [3], r"layer_options to be a dict .*, got \[3\]"),
        ("layer_options", {"batch_first": True}, "expected layer_options without batch_first"),
        ("layer_options", {"bidirectional": True}, "expected layer_options without bidirectional"),
        ("initialization", "zeros", "initialization to be one of normal, uniform, groups, open, got 'zeros'"),
        ("initialization", ["open"], r"initialization to be one of .*, got \['open'\]"),
        ("pooling", "median", "expected pooling to be some of last, mean, max, .* got 'median'"),
        ("pooling", "mean+mean", "expected pooling to be some of last, mean, max, each once .* got 'mean.mean'"),
        ("pooling", None, "expected pooling to be a string such as 'mean.max', got None"),
        ("augmentation", "strong", "augmentation to be True, False, an Augmentation, or a dict .*, got 'strong'"),
        ("augmentation", {"noise": 1.0}, "augmentation to be True, .*, got {'noise': 1.0}"),
        ("augmentation", {"jitter": -0.1}, "augmentation to be True, .*, got {'jitter': -0.1}"),
        ("callback", "print", "callback to be a function, or None, got 'print'"),
        ("engine", "ray", "engine to be None, or an engine .*, got 'ray'"),
        ("device", None, "device to be auto, cpu or cuda, got None"),
        ("device", "tpu", "expected device auto, cpu or cuda, got 'tpu'"),
        ("search_dir", "there", "expected no search_dir with n_trials=1"),
    ],
)
def test_wrong_parameter_is_named(parameter: str, value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SequenceClassifier(**{parameter: value}).fit(*slopes())


def test_wrong_parameter_of_one_kind_alone_is_named() -> None:
    with pytest.raises(ValueError, match="SequenceRegressor: expected pooling to be some of last, mean, max"):
        SequenceRegressor(pooling="first").fit(*data(SequenceRegressor))
    with pytest.raises(ValueError, match=r"FrameLabeler: expected piece_length to be a whole number .*, got 0"):
        FrameLabeler(piece_length=0).fit(*data(FrameLabeler))


@pytest.mark.parametrize("name", INITIALIZATIONS)
def test_every_initialization_is_that_of_the_layers(name: str) -> None:
    model = fitted(SequenceClassifier, layer="clockwork", initialization=name, max_epochs=1)[0]
    assert network_of(model).initialization == name
    if name == "groups":
        with pytest.raises(ValueError, match="MIST: expected no initialization 'groups', because only Clockwork"):
            fitted(SequenceClassifier, initialization=name)


@pytest.mark.parametrize("pooling", ["last", "mean", "max", "last+mean+max"])
@pytest.mark.parametrize("kind", [SequenceClassifier, SequenceRegressor])
def test_every_pooling_learns(kind: type, pooling: str) -> None:
    model, x, y = fitted(kind, pooling=pooling, max_epochs=25)
    assert model.score(x, y) > 0.8
    assert network_of(model).head.in_features == SMALL["hidden_size"] * (1 + pooling.count("+"))


def test_augmentation_is_a_switch_an_object_or_a_dict() -> None:
    def answers(augmentation: Any) -> Any:
        model, x, _ = fitted(SequenceClassifier, augmentation=augmentation)
        return model.predict_proba(x)

    plain = answers(False)
    np.testing.assert_array_equal(answers(Augmentation.off()), plain)
    np.testing.assert_array_equal(answers(dict.fromkeys(vars(Augmentation()), 0.0)), plain)
    np.testing.assert_array_equal(answers(True), answers(Augmentation()))
    np.testing.assert_array_equal(answers({"jitter": 0.5}), answers(Augmentation(jitter=0.5)))
    assert not np.array_equal(answers({"jitter": 0.5}), plain)


def test_every_augmentation_alone_trains_on_cases_of_unequal_length() -> None:
    x, y = slopes()
    for name in vars(Augmentation()):
        alone = {**vars(Augmentation.off()), name: 0.3}
        model = SequenceClassifier(**SMALL, max_epochs=20, augmentation=alone).fit(unequal(x, 9), y)
        assert model.score(unequal(x, 9), y) > 0.9, name


def test_kernel_is_no_longer_than_the_longest_case() -> None:
    for kernel_size, expected in ((1, 1), (6, 6), (40, 15)):
        assert network_of(fitted(SequenceClassifier, kernel_size=kernel_size, max_epochs=1)[0]).kernel_size == expected


@pytest.mark.parametrize("kind", KINDS)
def test_both_directions_are_learnt_and_read_no_padding(kind: type) -> None:
    model, x, y = fitted(kind, bidirectional=True, max_epochs=20)
    assert model.score(x, y) > 0.8
    assert model.network_.bidirectional
    cases = unequal(x)
    for case, together in zip(cases, numbers(model, cases), strict=True):
        np.testing.assert_allclose(numbers(model, [case])[0], together, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("layer", LAYERS)
def test_options_of_the_layers_reach_them(layer: str) -> None:
    options = {"layer_norm": True, "zoneout": 0.2, "recurrent_dropout": 0.1, "bias": False}
    options |= {"periods": [1, 3]} if layer == "clockwork" else {}
    model, x, y = fitted(SequenceClassifier, layer=layer, layer_options=options, max_epochs=20)
    own = network_of(model).recurrent_layers()[0]
    assert {name: getattr(own, name) for name in options} == {
        **options,
        **({"periods": (1, 3)} if layer == "clockwork" else {}),
    }
    assert model.score(x, y) > 0.8


@pytest.mark.parametrize(("steps", "delays"), [(2, 3), (9, 4), (100, 7), (1461, 11), (10**6, 14)])
def test_delays_of_mist_reach_as_far_as_the_longest_case(steps: int, delays: int) -> None:
    model = SequenceClassifier(hidden_size=2)
    model.n_channels_, model.classes_ = 1, np.arange(2)
    examples = type("Cases", (), {"cases": [np.broadcast_to(np.float32(0), (steps, 1))]})
    same = Standardisation(torch.zeros(1), torch.ones(1))
    # 1, 2, 4, ... 2 ** (delays - 1)
    assert network_arguments(model, examples, same)["layer_options"]["delays"] == delays
    model.set_params(layer_options={"delays": [1, 5]})
    assert network_arguments(model, examples, same)["layer_options"] == {"delays": [1, 5]}


def test_delays_reach_no_farther_than_the_pieces_that_are_learnt() -> None:
    x = np.random.RandomState(0).randn(4, 1, 600)
    model = FrameLabeler(**SMALL, max_epochs=1, piece_length=100).fit(x, x[:, 0] > 0)
    assert max(network_of(model).recurrent_layers()[0].delays) == 64


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_network_has_float32_whatever_torchs_default(dtype: torch.dtype) -> None:
    torch.set_default_dtype(dtype)
    try:
        model, x, y = fitted(SequenceClassifier, max_epochs=15)
        found = model.predict_proba(x)
    finally:
        torch.set_default_dtype(torch.float32)
    assert {parameter.dtype for parameter in model.network_.parameters()} == {torch.float32}
    assert found.dtype == np.float32
    assert model.score(x, y) > 0.9
    np.testing.assert_array_equal(model.predict_proba(x), found)
