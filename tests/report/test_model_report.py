"""`model.report(X, y, folder)`: the same report as the command's, from Python."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.exceptions import NotFittedError

from mistrnn import FrameLabeler, SequenceClassifier, SequenceRegressor
from mistrnn.errors import UsageError
from mistrnn.report.evaluation_folder import FILES

TINY: dict[str, Any] = {"hidden_size": 4, "num_layers": 1, "max_epochs": 2, "random_state": 0}
X = np.random.RandomState(0).randn(12, 2, 15)
Y = np.repeat(["down", "up"], 6)


def figures(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "report.json").read_text())
    return found


def test_classifier_reports_what_it_scores(tmp_path: Path) -> None:
    model = SequenceClassifier(**TINY).fit(X, Y)
    page = model.report(X, Y, tmp_path / "report", [1, 2] * 6, ids=[f"case-{k}" for k in range(12)], title="Mine")
    assert page == tmp_path / "report" / "report.html"
    assert {path.name for path in page.parent.iterdir()} <= set(FILES)
    text = page.read_text()
    assert "<h1>Mine</h1>" in text
    assert "Loss over epochs" in text
    assert "Evaluated on 12 cases given to `report`." in text
    found = figures(page.parent)
    assert found["accuracy"] == pytest.approx(model.score(X, Y))
    assert found["groups"] == 2
    assert "case-11" in (page.parent / "predictions.csv").read_text()
    with pytest.raises(UsageError, match=r"there is a report\.json already"):
        model.report(X, Y, page.parent)
    assert (
        "MIST, 4 units, and random convolutions: 6 cases"
        in model.report(X[3:9], Y[3:9], str(page.parent), force=True).read_text()
    )
    with pytest.raises(UsageError, match="expected y for 12 cases, as X has, got 3"):
        model.report(X, Y[:3], tmp_path / "other")
    with pytest.raises(UsageError, match="expected 2 channels"):
        model.report(X[:, :1], Y, tmp_path / "other")
    with pytest.raises(NotFittedError):
        SequenceClassifier().report(X, Y, tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_labeler_reports_a_table_of_labels_and_both_directions(tmp_path: Path) -> None:
    y = np.where(X[:, 0] > 0, "high", "low")
    model = FrameLabeler(**TINY, bidirectional=True).fit(X, y)
    page = model.report(X, pd.DataFrame(y), tmp_path)
    assert figures(tmp_path)["accuracy"] == pytest.approx(model.score(X, y))
    assert 'id="over-time"' in page.read_text()


def test_classifier_of_both_directions_has_no_accuracy_over_time(tmp_path: Path) -> None:
    page = SequenceClassifier(**TINY, bidirectional=True).fit(X, Y).report(X, Y, tmp_path)
    assert 'id="over-time"' not in page.read_text()


def test_regressor_reports_a_table_of_cases(tmp_path: Path) -> None:
    model = SequenceRegressor(**TINY).fit(X[:, 0], X[:, 0, 0])  # [cases, time]: one channel
    model.report(X[:, 0], X[:, 0, 0], tmp_path)
    assert figures(tmp_path)["r2"] == pytest.approx(model.score(X[:, 0], X[:, 0, 0]))


def test_search_reports_its_trials_and_leaves_what_belongs_to_the_session_out(tmp_path: Path) -> None:
    model = SequenceClassifier(**TINY, n_trials=2, n_best=2, callback=lambda epoch: None).fit(X, Y)
    text = model.report(X, Y, tmp_path).read_text()
    assert 'id="search"' in text
    assert "mean of 2 networks" in text
    assert "function" not in text
