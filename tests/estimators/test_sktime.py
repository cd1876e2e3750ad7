"""Inside sktime: its own checks, a pipeline and its tuning."""

import numpy as np
import pytest

pytest.importorskip("sktime")
from sklearn.model_selection import KFold
from sktime.classification.model_selection import TSCGridSearchCV
from sktime.transformations.series.exponent import ExponentTransformer
from sktime.utils.estimator_checks import check_estimator, parametrize_with_checks

from mistrnn import SequenceClassifier
from mistrnn.estimators.sktime import SktimeClassifier
from tests.estimators.data import slopes


@parametrize_with_checks(SktimeClassifier)
def test_the_classifier_passes_the_checks_of_sktime(obj: object, test_name: str) -> None:
    check_estimator(obj, tests_to_run=test_name, raise_exceptions=True, verbose=False)


def test_pipelines_and_tuning_of_sktime_work() -> None:
    x, y = slopes()
    model = SktimeClassifier(SequenceClassifier(hidden_size=6, max_epochs=8), random_state=0)
    piped = ExponentTransformer(1) * model
    np.testing.assert_array_equal(piped.fit(x, y).predict(x), model.fit(x, y).predict(x))
    search = TSCGridSearchCV(model, {"estimator__layer": ["mist", "lstm"]}, cv=KFold(2)).fit(x, y)
    assert search.best_params_["estimator__layer"] in ("mist", "lstm")
