"""Saved models of every version of the format still load, and say what they said."""

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mistrnn import LSTM, FrameLabeler, SequenceClassifier, SequenceRegressor
from mistrnn.estimators import _saved
from mistrnn.estimators.network import Network
from mistrnn.models import Ensemble, SequenceNetwork
from tests.estimators.data import data, fitted, numbers, slopes
from tests.estimators.make_saved import SAVED, models
from tests.estimators.test_streams import check_stream

FOLDERS = sorted(SAVED.glob("version-*/*"))
KINDS = {
    "classifier": SequenceClassifier,
    "labeler": FrameLabeler,
    "regressor": SequenceRegressor,
    "ensemble": SequenceClassifier,
    "network": SequenceClassifier,
}

every_folder = pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: "/".join(path.parts[-2:]))


def test_there_are_saved_files_of_every_version() -> None:
    assert sorted(path.name for path in SAVED.iterdir()) == [f"version-{k + 1}" for k in range(_saved.VERSION)]
    assert {path.name for path in (SAVED / f"version-{_saved.VERSION}").iterdir()} == set(KINDS) == set(models())


@every_folder
def test_files_of_every_version_still_load(folder: Path) -> None:
    expected = json.loads((folder / "expected.json").read_text())
    model = KINDS[folder.name].from_pretrained(folder)
    x = np.array(expected["x"])
    np.testing.assert_allclose(numbers(model, x), expected["found"], rtol=1e-4, atol=1e-5)
    if folder.name != "regressor":
        assert model.classes_.tolist() == expected["classes"]
    assert type(model.network_) is (
        Network
        if folder.parent.name == "version-1"
        else Ensemble
        if folder.name == "ensemble" or (folder.name == "classifier" and folder.parent.name != "version-2")
        else SequenceNetwork
    )
    if not model.network_.bidirectional:
        check_stream(model, x)


@every_folder
def test_models_of_every_version_are_saved_again_and_fitted_anew(folder: Path, tmp_path: Path) -> None:
    expected = json.loads((folder / "expected.json").read_text())
    model, x = KINDS[folder.name].from_pretrained(folder), np.array(expected["x"])
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path)
    np.testing.assert_array_equal(numbers(again, x), numbers(model, x))
    assert again.get_params() == model.get_params()
    version = json.loads((tmp_path / "config.json").read_text())["version"]
    assert version == (1 if folder.parent.name == "version-1" else _saved.VERSION)
    many, y = data(type(model), cases=20, steps=6)
    model.set_params(max_epochs=1, class_weight=None) if folder.name == "labeler" else model.set_params(max_epochs=1)
    model.fit(many, y)
    assert isinstance(model.network_, SequenceNetwork | Ensemble)


@pytest.mark.parametrize("version", [2, 3])
def test_models_are_made_again_with_the_parameters_that_were_saved(version: int) -> None:
    for folder in (SAVED / f"version-{version}").iterdir():
        made = models()[folder.name]
        if version == 2 and isinstance(made, SequenceClassifier):
            made.set_params(random_features=0)  # there were none
        assert KINDS[folder.name].from_pretrained(folder).get_params() == made.get_params(), folder.name


@pytest.fixture
def old(tmp_path: Path) -> Any:
    """Return a function that saves a classifier of version 1 with some parameters as that version knew them."""

    def saved(**parameters: Any) -> Path:
        model = fitted(SequenceClassifier, max_epochs=1)[0]
        bidirectional = (parameters.get("layer_options") or {}).get("bidirectional", False)
        model.network_ = Network(LSTM(2, 8, bidirectional=bidirectional), 2, every_step=False).eval()
        model.save_pretrained(tmp_path, force=True)
        path = tmp_path / "config.json"
        config = json.loads(path.read_text())
        assert config["version"] == 1
        del config["digest"]
        config["parameters"] = {"early_stopping": "auto", "batch_size": 32} | parameters
        config["digest"] = hashlib.sha256(_saved._canonical(config)).hexdigest()
        path.write_text(json.dumps(config))
        return tmp_path

    return saved


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {"early_stopping": False, "bidirectional": False, "layer_options": None}),
        ({"early_stopping": True, "patience": 3}, {"early_stopping": True, "patience": 3}),
        ({"layer_options": {"bidirectional": True}}, {"bidirectional": True, "layer_options": None}),
        (
            {"layer_options": {"bidirectional": False, "zoneout": 0.1}},
            {"bidirectional": False, "layer_options": {"zoneout": 0.1}},
        ),
        ({"layer_options": {"dropout": 0.1}}, {"layer_options": None}),
        ({"standardize": 1}, {"standardize": True}),
    ],
)
def test_parameters_of_version_1_are_taken_as_they_are_called_now(old: Any, given: Any, expected: Any) -> None:
    model, x = SequenceClassifier.from_pretrained(old(**given)), slopes()[0]
    assert {name: value for name, value in model.get_params().items() if name in expected} == expected
    assert model.network_.bidirectional == model.bidirectional
    assert model.predict_proba(x).shape == (40, 2)
    if model.bidirectional:
        with pytest.raises(ValueError, match="expected bidirectional=False for a stream"):
            model.stream()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "transformer"}, "transformer"),
        ({"hidden_size": 10**7}, "size mismatch"),
        ({"arguments": {"num_layers": 20_000}}, "more layers than weights"),
    ],
)
def test_contradictions_of_version_1_are_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    shutil.copytree(SAVED / "version-1" / "classifier", tmp_path, dirs_exist_ok=True)
    config = json.loads((tmp_path / "config.json").read_text())
    del config["digest"]
    config["layer"] |= changes
    config["digest"] = hashlib.sha256(_saved._canonical(config)).hexdigest()
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=message):
        SequenceClassifier.from_pretrained(tmp_path)
