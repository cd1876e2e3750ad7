"""What holds for all estimators: scikit-learn's own checks, its tools, reproducibility, streams."""

import pickle
import subprocess
import sys
import threading
from typing import Any

import joblib
import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from mistrnn import LSTM, FrameLabeler, SequenceClassifier, SequenceRegressor
from mistrnn.layers import LAYERS
from tests.estimators.data import slopes, unequal


class RepeatedLabels(FrameLabeler):
    """A labeler for scikit-learn's checks, which know one label for each case: it stands at every step."""

    def _labels_of(self, cases: Any, y: Any) -> Any:
        return [np.full(len(case), label) for case, label in zip(cases, np.asarray(y).reshape(len(cases)), strict=True)]


ROUNDING = (
    "it asks for 7 equal digits after training, which float32 does not have: sums in another order round otherwise"
)
NOT_APPLYING: dict[type, dict[str, str]] = {
    SequenceClassifier: {"check_sample_weight_equivalence_on_dense_data": ROUNDING},
    SequenceRegressor: {},
    RepeatedLabels: {"check_sample_weight_equivalence_on_dense_data": ROUNDING},
}
"""The checks of scikit-learn that do not apply, with the reason."""

CHECKED = [kind(max_epochs=20, early_stopping=False, random_state=0) for kind in NOT_APPLYING]


@parametrize_with_checks(CHECKED, expected_failed_checks=lambda estimator: NOT_APPLYING[type(estimator)])
def test_every_estimator_passes_the_checks_of_scikit_learn(estimator: Any, check: Any) -> None:
    check(estimator)


def fitted(kind: type, **parameters: Any) -> tuple[Any, Any, Any]:
    x, y = data(kind)
    return kind(**{"hidden_size": 8, "max_epochs": 8, "random_state": 0, **parameters}).fit(x, y), x, y


def data(kind: type) -> tuple[Any, Any]:
    x, y = slopes()
    if kind is FrameLabeler:
        return x, np.where(x[:, 0] > 0, "high", "low")
    return (x, x[:, 0, 0] + 10) if kind is SequenceRegressor else (x, y)


KINDS = [SequenceClassifier, FrameLabeler, SequenceRegressor]


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_layer_learns(kind: type, layer: str) -> None:
    model, x, y = fitted(kind, layer=layer, max_epochs=60)
    assert model.score(x, y) > 0.8
    assert type(model.network_.layer) is LAYERS[layer]


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_random_state_gives_the_same_model(kind: type) -> None:
    first, x, _ = fitted(kind)
    torch.manual_seed(99)
    second, _, _ = fitted(kind)
    other, _, _ = fitted(kind, random_state=1)
    np.testing.assert_array_equal(first.predict(x), second.predict(x))
    weights, same, different = (m.network_.readout.weight for m in (first, second, other))
    assert torch.equal(weights, same)
    assert not torch.equal(weights, different)


def test_fitting_leaves_torchs_own_random_numbers_alone() -> None:
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    fitted(SequenceClassifier)
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize("kind", KINDS)
def test_an_array_a_list_and_a_tensor_are_the_same_cases(kind: type) -> None:
    model, x, y = fitted(kind)
    expected = model.predict(x)
    for form in (list(x), torch.from_numpy(x), [torch.from_numpy(case) for case in x], list(x.tolist())):
        np.testing.assert_array_equal(np.stack(model.predict(form)), expected)
    again = clone(model).fit(list(x), list(y))
    np.testing.assert_array_equal(np.stack(again.predict(x)), expected)


@pytest.mark.parametrize("kind", KINDS)
def test_a_case_is_predicted_alike_alone_and_among_longer_ones(kind: type) -> None:
    model, x, _ = fitted(kind)
    cases = unequal(x)
    numbers = model.predict if kind is SequenceRegressor else model.predict_proba
    together = [*numbers(cases)]
    assert len({len(case.T) for case in cases}) > 5
    for case, expected in zip(cases, together, strict=True):
        np.testing.assert_allclose(numbers([case])[0], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layer", LAYERS)
def test_a_stream_says_what_predict_says(kind: type, layer: str) -> None:
    model, x, _ = fitted(kind, layer=layer, num_layers=2)
    live = model.stream()
    for case in x[:3]:
        live.reset()
        said = [live(row) for row in case.T]
        assert live.rows == case.shape[1]
        if kind is SequenceRegressor:
            np.testing.assert_allclose(said[-1], model.predict([case])[0], rtol=1e-5)
        elif kind is SequenceClassifier:
            np.testing.assert_allclose(said[-1].probabilities, model.predict_proba([case])[0], atol=1e-5)
            over_time = model.predict_proba_at_every_step([case])[0]
            np.testing.assert_allclose(np.stack([one.probabilities for one in said]), over_time, atol=1e-5)
        else:
            assert [one.label for one in said] == model.predict([case])[0].tolist()
            np.testing.assert_allclose(
                [one.probability for one in said], model.predict_proba([case])[0].max(-1), atol=1e-5
            )


def test_a_stream_refuses_rows_that_do_not_fit() -> None:
    live = fitted(SequenceClassifier)[0].stream()
    with pytest.raises(ValueError, match="expected a row of 2 numbers"):
        live([1.0, 2.0, 3.0])
    with pytest.raises(ValueError, match="expected finite numbers"):
        live([1.0, np.nan])
    two_directions = fitted(SequenceClassifier, layer_options={"bidirectional": True})[0]
    with pytest.raises(ValueError, match="bidirectional=False for a stream"):
        two_directions.stream()
    with pytest.raises(ValueError, match="expected one direction"):
        two_directions.predict_proba_at_every_step(slopes()[0])


@pytest.mark.parametrize("kind", KINDS)
def test_not_fitted_is_said(kind: type) -> None:
    for call in (lambda m: m.predict(slopes()[0]), lambda m: m.stream(), lambda m: m.parameter_count()):
        with pytest.raises(NotFittedError):
            call(kind())


def test_tables_and_series_of_pandas_do() -> None:
    x, y = slopes()
    model = SequenceClassifier(hidden_size=4, max_epochs=3, random_state=0)
    expected = model.fit(x[:, 0], y).predict_proba(x[:, 0])
    table, series = pd.DataFrame(x[:, 0], columns=[f"t{k}" for k in range(15)]), pd.Series(y, index=range(100, 140))
    np.testing.assert_array_equal(model.fit(table, series).predict_proba(table), expected)
    np.testing.assert_array_equal(model.fit(table, pd.Categorical(y)).predict_proba(table), expected)
    cases = pd.Series(unequal(x))
    expected = model.fit(unequal(x), y).predict_proba(unequal(x))
    np.testing.assert_array_equal(model.fit(cases, series).predict_proba(cases), expected)
    objects = np.empty(40, dtype=object)
    objects[:] = unequal(x)
    np.testing.assert_array_equal(model.fit(objects, y).predict_proba(objects), expected)
    nested = [case.tolist() for case in unequal(x)]
    np.testing.assert_array_equal(model.fit(nested, y).predict_proba(nested), expected)
    labels = np.where(x[:, 0] > 0, "high", "low")
    labeler = FrameLabeler(hidden_size=4, max_epochs=3, random_state=0)
    expected = labeler.fit(x, labels).predict_proba(x)
    np.testing.assert_array_equal(labeler.fit(x, pd.DataFrame(labels)).predict_proba(x), expected)


@pytest.mark.parametrize("broken", ["y", "options", "report"])
def test_a_fit_that_fails_leaves_everything_as_it_was(broken: str) -> None:
    model, x, y = fitted(SequenceClassifier, max_epochs=20)
    expected, before = model.predict_proba(x), set(vars(model))
    other = np.where(y == "up", "A", "B")
    calls = {
        "y": lambda: model.fit(x[:, :1], ["same"] * 40),
        "options": lambda: model.set_params(layer_options={"delayz": 1}).fit(x, other),
        "report": lambda: model._fit(x, other, None, None, report=_interrupt),
    }
    with pytest.raises((ValueError, TypeError, KeyboardInterrupt)):
        calls[broken]()
    assert set(vars(model)) == before
    np.testing.assert_array_equal(model.predict_proba(x), expected)
    assert model.classes_.tolist() == ["down", "up"]
    fresh = SequenceClassifier(max_epochs=3)
    with pytest.raises(KeyboardInterrupt):
        fresh._fit(x, y, None, None, report=_interrupt)
    assert not hasattr(fresh, "network_")


def _interrupt(_: object) -> None:
    raise KeyboardInterrupt


def test_fits_in_threads_are_those_one_after_the_other() -> None:
    x, _ = slopes()
    model = SequenceRegressor(hidden_size=4, max_epochs=3, dropout=0.5, random_state=0)
    serial = cross_val_score(model, x, x[:, 0, 0], cv=4)
    state = torch.get_rng_state()
    with joblib.parallel_backend("threading", n_jobs=4):
        np.testing.assert_array_equal(cross_val_score(model, x, x[:, 0, 0], cv=4), serial)
    assert torch.equal(torch.get_rng_state(), state)


def test_answers_of_one_thread_do_not_depend_on_what_another_asks() -> None:
    model, x, _ = fitted(SequenceClassifier)
    expected, stop = model.predict_proba(x), threading.Event()

    def ask() -> None:
        while not stop.is_set():
            model.predict_proba_at_every_step(x)

    other = threading.Thread(target=ask)
    other.start()
    try:
        for _ in range(100):
            np.testing.assert_array_equal(model.predict_proba(x), expected)
    finally:
        stop.set()
        other.join()


def test_a_stream_speaks_for_the_model_that_it_was_made_from() -> None:
    model, x, y = fitted(SequenceClassifier)
    live = model.stream()
    model.fit(x, np.where(y == "up", "A", "B"))
    assert live(x[0, :, 0]).label in ("up", "down")


def test_without_scikit_learn_the_layers_work_and_the_extra_is_named() -> None:
    script = (
        "import sys; sys.modules['sklearn'] = None\n"
        "from mistrnn import *; import mistrnn\n"
        "MIST(1, 2); assert 'SequenceClassifier' not in dir(mistrnn)\n"
        "mistrnn.SequenceClassifier\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert "estimators need sklearn: pip install 'mistrnn[estimators]'" in done.stderr.splitlines()[-1]


def test_cross_validation_grid_search_and_pipelines_work() -> None:
    x, y = slopes()
    model = SequenceClassifier(hidden_size=8, max_epochs=40, random_state=0)
    assert cross_val_score(model, x, y, cv=2).min() > 0.8
    assert cross_val_score(model, unequal(x, shortest=11), y, cv=2).min() > 0.8
    search = GridSearchCV(model, {"layer": ["mist", LSTM], "layer_options": [None, {"layer_norm": True}]}, cv=2).fit(
        x, y
    )
    assert search.best_score_ > 0.8
    differences = make_pipeline(FunctionTransformer(np.diff), model).fit(x, y)
    assert differences.score(x, y) > 0.8
    table = make_pipeline(StandardScaler(), model).fit(x[:, 0], y)
    assert table.score(x[:, 0], y) > 0.8


@pytest.mark.parametrize("kind", KINDS)
def test_an_estimator_can_be_pickled_and_cloned(kind: type) -> None:
    model, x, _ = fitted(kind, layer_options={"layer_norm": True})
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).predict(x), model.predict(x))
    fresh = clone(model)
    assert fresh.get_params() == model.get_params()
    assert not hasattr(fresh, "network_")


@pytest.mark.parametrize(
    ("parameter", "value", "message"),
    [
        ("layer", "mister", "one of mist, narx, clockwork, rnn, lstm, gru, got 'mister'"),
        ("layer", dict, "a layer of mistrnn or its name"),
        ("hidden_size", 0, "hidden_size to be a whole number from 1 on, got 0"),
        ("batch_size", 2.5, "batch_size to be a whole number"),
        ("max_epochs", -1, "max_epochs to be a whole number from 1 on, or None"),
        ("learning_rate", 0.0, "learning_rate to be a number above 0"),
        ("learning_rate", "fast", "learning_rate to be a number above 0"),
        ("weight_decay", -1.0, "weight_decay to be a number from 0 on"),
        ("dropout", 1.0, r"dropout to be a number in \[0, 1\)"),
        ("early_stopping", "yes", 'True, False or "auto"'),
        ("validation_fraction", 1.0, "validation_fraction to be a number between 0 and 1"),
        ("layer_options", [3], "layer_options to be a dict"),
        ("layer_options", {"batch_first": True}, "expected layer_options without batch_first"),
        ("device", None, "device to be auto, cpu or cuda"),
        ("patience", 0, "patience to be a whole number from 1 on, or None"),
        ("device", "tpu", "expected device auto, cpu or cuda"),
    ],
)
def test_a_wrong_parameter_is_named(parameter: str, value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SequenceClassifier(**{parameter: value}).fit(*slopes())
