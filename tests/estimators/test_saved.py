"""Saved models: the same predictions after loading, and all parameters; nothing is overwritten or half written."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.utils.prune

from mistrnn import MIST, FrameLabeler, SequenceClassifier, SequenceRegressor
from mistrnn.estimators.export import export_onnx
from mistrnn.layers import LAYERS
from mistrnn.layers.initialization import INITIALIZATIONS
from mistrnn.training.embedded import Embedded
from mistrnn.training.examples import Augmentation
from tests.estimators.data import KINDS, SMALL, network_of, slopes

X, Y = slopes()


def new(kind: type, **parameters: Any) -> Any:
    targets = {FrameLabeler: np.where(X[:, 0] > 0, 1, 0), SequenceRegressor: X[:, 0, :2]}.get(kind, Y)
    return kind(**{**SMALL, "max_epochs": 2, **parameters}).fit(X, targets)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layer", LAYERS)
def test_a_loaded_model_predicts_the_same(kind: type, layer: str, tmp_path: Path) -> None:
    options = {"layer_norm": True, "zoneout": 0.1}
    model = new(kind, layer=layer, hidden_size=16, num_layers=2, layer_options=options, dropout=0.2)
    model.save_pretrained(tmp_path / "model")
    loaded = kind.from_pretrained(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict(X), model.predict(X))
    if kind is not SequenceRegressor:
        np.testing.assert_array_equal(loaded.predict_proba(X), model.predict_proba(X))
    assert loaded.get_params() == model.get_params()
    assert loaded.history_ == model.history_
    assert loaded.parameter_count() == model.parameter_count()
    assert sorted(os.listdir(tmp_path / "model")) == ["config.json", "model.safetensors"]
    loaded.fit(X, loaded.predict(X) if kind is not SequenceClassifier else Y)  # and it can be fitted again


@pytest.mark.parametrize(
    "labels",
    [
        [1, 2],
        ["01", "1"],
        [1.0, 2.0],
        [False, True],
        np.array([7, 9], dtype=np.uint8),
        np.array(["é", "ß"], dtype=object),
    ],
)
def test_labels_stay_what_they_are(labels: Any, tmp_path: Path) -> None:
    y = np.asarray(labels)[np.arange(40) % 2]
    model = SequenceClassifier(
        hidden_size=4, max_epochs=1, class_weight=dict.fromkeys(np.asarray(labels).tolist(), 1.5)
    )
    model.fit(X, y).save_pretrained(tmp_path)
    loaded = SequenceClassifier.from_pretrained(tmp_path)
    assert loaded.classes_.tolist() == model.classes_.tolist()
    assert [type(label) for label in loaded.classes_.tolist()] == [type(label) for label in model.classes_.tolist()]
    assert loaded.class_weight == model.class_weight


def test_parameters_of_all_sorts_are_kept_and_odd_ones_are_named(tmp_path: Path) -> None:
    model = new(SequenceClassifier, layer=MIST, layer_options={"delays": (1, 3, 9)}, random_state=np.int64(3))
    model.set_params(log_dir=tmp_path / "log", verbose=np.bool_(False)).save_pretrained(tmp_path / "a")
    loaded = SequenceClassifier.from_pretrained(tmp_path / "a")
    assert loaded.layer == "mist"
    assert loaded.random_state == 3
    assert network_of(loaded).recurrent_layers()[0].delays == (1, 3, 9)
    new(SequenceClassifier, random_state=np.random.RandomState(0)).save_pretrained(tmp_path / "b")
    assert SequenceClassifier.from_pretrained(tmp_path / "b").random_state is None
    with pytest.raises(ValueError, match="expected log_dir to be something that JSON knows"):
        model.set_params(log_dir=object()).save_pretrained(tmp_path / "c")
    new(SequenceClassifier, layer_options={"delays": range(1, 4)}).save_pretrained(tmp_path / "e")
    assert network_of(SequenceClassifier.from_pretrained(tmp_path / "e")).recurrent_layers()[0].delays == (1, 2, 3)
    new(FrameLabeler, unlabeled=np.nan).save_pretrained(tmp_path / "f")
    assert FrameLabeler.from_pretrained(tmp_path / "f").unlabeled is None
    model.set_params(log_dir=None, layer_options={"delays": [1, 3, 9], "zoneout": object()})
    with pytest.raises(ValueError, match=r"expected layer_options\['zoneout'\] to be something that JSON knows"):
        model.save_pretrained(tmp_path / "c")

    class Mine(MIST):
        pass

    with pytest.raises(ValueError, match=r"expected one of mistrnn's own layers to save, .*, got Mine"):
        new(SequenceClassifier, layer=Mine).save_pretrained(tmp_path / "d")


def test_names_of_channels_are_one_for_each_whatever_they_come_as(tmp_path: Path) -> None:
    model = new(SequenceClassifier)
    count = model.n_channels_
    names = [f"axis {k}" for k in range(count)]
    for number, given in enumerate((names, tuple(names), np.array(names), pd.Index(names))):
        model.channel_names_ = given
        model.save_pretrained(tmp_path / str(number))
        assert SequenceClassifier.from_pretrained(tmp_path / str(number)).channel_names_ == names
    for wrong in ([*names, "more"], "x" * count, ["the same"] * (count + 1)):
        model.channel_names_ = wrong
        with pytest.raises(
            ValueError, match=f"expected channel_names_ to be {count} names, one for each channel, got "
        ):
            model.save_pretrained(tmp_path / "wrong")
    assert not (tmp_path / "wrong").exists()


def test_numbers_of_numpy_are_kept(tmp_path: Path) -> None:
    options = {"layer_norm": np.bool_(True)}
    model = new(SequenceClassifier, max_epochs=np.int64(2), learning_rate=np.float32(1e-3), layer_options=options)
    model.save_pretrained(tmp_path)
    assert SequenceClassifier.from_pretrained(tmp_path).max_epochs == 2


def test_a_kind_of_ones_own_cannot_be_saved(tmp_path: Path) -> None:
    class Mine(SequenceClassifier):
        pass

    with pytest.raises(
        ValueError, match=r"expected one of SequenceClassifier, FrameLabeler, SequenceRegressor .* got Mine"
    ):
        new(Mine).save_pretrained(tmp_path)


def test_weights_that_hooks_compute_are_refused_and_saved_once_they_are_weights(tmp_path: Path) -> None:
    model = new(SequenceClassifier)
    layer = network_of(model).recurrent_layers()[0]
    torch.nn.utils.prune.random_unstructured(layer, "weight_hh_l0", 0.5)
    for write in (lambda: model.save_pretrained(tmp_path), lambda: export_onnx(model, tmp_path / "model.onnx")):
        with pytest.raises(
            ValueError,
            match=r"expected plain weights, and members\.0\.blocks\.0\.layer\.weight_hh_l0 is pruned or normalised",
        ):
            write()
    assert list(tmp_path.iterdir()) == []
    torch.nn.utils.prune.remove(layer, "weight_hh_l0")
    torch.nn.utils.parametrizations.weight_norm(network_of(model).head, "weight")
    with pytest.raises(ValueError, match=r"expected plain weights, and members\.0\.head has parametrised ones"):
        model.save_pretrained(tmp_path)
    torch.nn.utils.parametrize.remove_parametrizations(network_of(model).head, "weight")
    model.save_pretrained(tmp_path)
    np.testing.assert_array_equal(SequenceClassifier.from_pretrained(tmp_path).predict_proba(X), model.predict_proba(X))


def test_a_disk_that_fills_up_leaves_the_old_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = new(SequenceClassifier)
    old.save_pretrained(tmp_path)
    write, written = Path.write_bytes, []

    def full(path: Path, data: bytes) -> int:
        written.append(path)
        if len(written) == 2:
            raise OSError(28, "No space left on device")
        return write(path, data)

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(ValueError, match=r"cannot write to the folder .*: No space left on device"):
        new(SequenceClassifier, random_state=1).save_pretrained(tmp_path, force=True)
    np.testing.assert_array_equal(SequenceClassifier.from_pretrained(tmp_path).predict_proba(X), old.predict_proba(X))
    assert sorted(os.listdir(tmp_path)) == ["config.json", "model.safetensors"]


def test_nothing_is_overwritten_unless_forced(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    model = new(SequenceClassifier)
    model.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"there is a config\.json already"):
        model.save_pretrained(tmp_path)
    new(SequenceRegressor).save_pretrained(tmp_path, force=True)
    assert (tmp_path / "notes.txt").read_text() == "mine"
    with pytest.raises(ValueError, match="expected a SequenceClassifier, got a SequenceRegressor"):
        SequenceClassifier.from_pretrained(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="cannot write to the folder"):
        model.save_pretrained(tmp_path / "file" / "model")


def test_a_folder_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there is no such folder"):
        SequenceClassifier.from_pretrained("./nowhere")
    with pytest.raises(ValueError, match=r"expected a saved model, and its config\.json cannot be read"):
        SequenceClassifier.from_pretrained(tmp_path)


@pytest.mark.parametrize("initialization", INITIALIZATIONS)
def test_every_initialization_and_both_directions_are_kept(initialization: str, tmp_path: Path) -> None:
    model = new(SequenceClassifier, layer="clockwork", initialization=initialization, bidirectional=True)
    model.save_pretrained(tmp_path)
    loaded = SequenceClassifier.from_pretrained(tmp_path)
    np.testing.assert_array_equal(loaded.predict_proba(X), model.predict_proba(X))
    assert network_of(loaded).initialization == initialization


def test_callback_and_engine_are_left_out_and_augmentation_becomes_a_dict(tmp_path: Path) -> None:
    model = new(
        SequenceClassifier, augmentation=Augmentation(jitter=0.5), callback=lambda epoch: None, engine=Embedded()
    )
    model.save_pretrained(tmp_path)
    loaded = SequenceClassifier.from_pretrained(tmp_path)
    assert (loaded.callback, loaded.engine) == (None, None)
    assert Augmentation(**loaded.augmentation) == model.augmentation
    np.testing.assert_array_equal(loaded.fit(X, Y).predict_proba(X), model.predict_proba(X))
