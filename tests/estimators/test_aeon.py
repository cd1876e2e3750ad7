"""Inside aeon: its own checks, and one of its ensembles."""

import numpy as np
import pytest

pytest.importorskip("aeon")
from aeon.classification.compose import ClassifierEnsemble
from aeon.classification.dummy import DummyClassifier
from aeon.datasets import load_japanese_vowels
from aeon.testing.estimator_checking import parametrize_with_checks

from mistrnn import SequenceClassifier
from mistrnn.estimators.aeon import AeonClassifier
from tests.estimators.data import slopes


@parametrize_with_checks([AeonClassifier], use_first_parameter_set=True)
def test_the_classifier_passes_the_checks_of_aeon(check: object) -> None:
    check()  # type: ignore[operator]


def test_the_classifier_is_the_one_that_it_holds() -> None:
    x, y = slopes()
    plain = SequenceClassifier(hidden_size=4, max_epochs=3, random_state=5)
    np.testing.assert_array_equal(AeonClassifier(plain).fit(x, y).predict_proba(x), plain.fit(x, y).predict_proba(x))
    other = AeonClassifier(plain, random_state=6).fit(x, y)
    assert other.estimator_.random_state == 6
    assert plain.random_state == 5
    assert other.set_params(estimator__hidden_size=7).get_params()["estimator__hidden_size"] == 7


def test_cases_of_unequal_length_and_ensembles_work() -> None:
    x, y = load_japanese_vowels(split="train")
    model = AeonClassifier(SequenceClassifier(hidden_size=16, max_epochs=20), random_state=0).fit(x, y)
    assert model.score(x, y) > 0.8
    ensemble = ClassifierEnsemble([("mist", model), ("dummy", DummyClassifier())], weights=[1, 0])
    x, y = slopes()
    assert ensemble.fit(x, y).score(x, y) > 0.8
