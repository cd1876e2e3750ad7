"""Saved models: the same predictions after loading, and clear words about files that are not what they should be."""

import hashlib
import json
import os
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.utils.prune

from mistrnn import MIST, FrameLabeler, SequenceClassifier, SequenceRegressor
from mistrnn.estimators import _saved
from mistrnn.estimators.export import export_onnx
from mistrnn.layers import LAYERS
from tests.estimators.data import slopes

X, Y = slopes()
SAVED = Path(__file__).parent / "saved"


def new(kind: type, **parameters: Any) -> Any:
    targets = {FrameLabeler: np.where(X[:, 0] > 0, 1, 0), SequenceRegressor: X[:, 0, :2]}.get(kind, Y)
    return kind(**{"hidden_size": 8, "max_epochs": 2, "random_state": 0, **parameters}).fit(X, targets)


@pytest.mark.parametrize("kind", [SequenceClassifier, FrameLabeler, SequenceRegressor])
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
    assert loaded.network_.layer.delays == (1, 3, 9)
    new(SequenceClassifier, random_state=np.random.RandomState(0)).save_pretrained(tmp_path / "b")
    assert SequenceClassifier.from_pretrained(tmp_path / "b").random_state is None
    with pytest.raises(ValueError, match="expected log_dir to be something that JSON knows"):
        model.set_params(log_dir=object()).save_pretrained(tmp_path / "c")
    new(SequenceClassifier, layer_options={"delays": range(1, 4)}).save_pretrained(tmp_path / "e")
    assert SequenceClassifier.from_pretrained(tmp_path / "e").network_.layer.delays == (1, 2, 3)
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
    torch.nn.utils.prune.random_unstructured(model.network_.layer, "weight_hh_l0", 0.5)
    for write in (lambda: model.save_pretrained(tmp_path), lambda: export_onnx(model, tmp_path / "model.onnx")):
        with pytest.raises(
            ValueError, match=r"expected plain weights, and layer\.weight_hh_l0 is pruned or normalised"
        ):
            write()
    assert list(tmp_path.iterdir()) == []
    torch.nn.utils.prune.remove(model.network_.layer, "weight_hh_l0")
    torch.nn.utils.parametrizations.weight_norm(model.network_.readout, "weight")
    with pytest.raises(ValueError, match="expected plain weights, and readout has parametrised ones"):
        model.save_pretrained(tmp_path)
    torch.nn.utils.parametrize.remove_parametrizations(model.network_.readout, "weight")
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


@pytest.fixture
def model_folder(tmp_path: Path) -> Path:
    new(SequenceClassifier).save_pretrained(tmp_path)
    return tmp_path


def rewrite(folder: Path, signed: bool = True, **changes: Any) -> None:
    """Change the configuration, and sign it again if its own digest is not what is tested."""
    path = folder / "config.json"
    config = json.loads(path.read_text()) | changes
    if signed:
        del config["digest"]
        config["digest"] = hashlib.sha256(_saved._canonical(config)).hexdigest()
    path.write_text(json.dumps(config))


def test_a_truncated_or_changed_file_is_refused(model_folder: Path) -> None:
    weights, config = model_folder / "model.safetensors", model_folder / "config.json"
    whole = weights.read_bytes()
    for broken in (whole[:-1], whole[:100], b"", whole[:-1] + bytes([whole[-1] ^ 1])):
        weights.write_bytes(broken)
        with pytest.raises(ValueError, match=r"model\.safetensors: these are not the weights that config\.json"):
            SequenceClassifier.from_pretrained(model_folder)
    weights.unlink()
    with pytest.raises(ValueError, match=r"model\.safetensors: cannot be read"):
        SequenceClassifier.from_pretrained(model_folder)
    weights.write_bytes(whole)
    SequenceClassifier.from_pretrained(model_folder)
    text = config.read_text()
    config.write_text(text[:-20])
    with pytest.raises(ValueError, match=r"not readable as JSON .* truncated"):
        SequenceClassifier.from_pretrained(model_folder)
    config.write_text(text.replace('"down"', '"done"'))
    with pytest.raises(ValueError, match="changed since it was saved, its digest does not match"):
        SequenceClassifier.from_pretrained(model_folder)
    config.unlink()
    with pytest.raises(ValueError, match=r"expected a saved model, and its config\.json cannot be read"):
        SequenceClassifier.from_pretrained(model_folder)


def test_a_file_of_the_future_or_of_somebody_else_is_refused(model_folder: Path) -> None:
    rewrite(model_folder, version=2, mistrnn="7.0.0")
    with pytest.raises(
        ValueError, match=r"written by mistrnn 7\.0\.0 in version 2 of the format, .* pip install --upgrade"
    ):
        SequenceClassifier.from_pretrained(model_folder)
    rewrite(model_folder, version=True)
    with pytest.raises(ValueError, match="in version True of the format"):
        SequenceClassifier.from_pretrained(model_folder)
    rewrite(model_folder, version="one")
    with pytest.raises(ValueError, match="in version one of the format"):
        SequenceClassifier.from_pretrained(model_folder)
    (model_folder / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(ValueError, match="expected a model saved by mistrnn, and this is none"):
        SequenceClassifier.from_pretrained(model_folder)
    (model_folder / "config.json").write_text('{"format": "mistrnn-model", "version": 1, "weights": NaN}')
    with pytest.raises(ValueError, match=r"not readable as JSON .NaN is no number that JSON knows"):
        SequenceClassifier.from_pretrained(model_folder)
    (model_folder / "config.json").write_text("[" * 100_000)
    with pytest.raises(ValueError, match="not readable as JSON"):
        SequenceClassifier.from_pretrained(model_folder)
    (model_folder / "config.json").write_text("[]")
    with pytest.raises(ValueError, match="expected a model saved by mistrnn, and this is none"):
        SequenceClassifier.from_pretrained(model_folder)


@pytest.mark.parametrize(
    "changes",
    [
        {"kind": "Oracle"},
        {"parameters": {"hidden_sizes": 3}},
        {"layer": {"name": "transformer"}},
        {"learnt": {}},
        {"parameters": None},
        {"parameters": {"dropout": "x"}},
        {"parameters": {"hidden_size": 2**70, "device": None}},
    ],
)
def test_a_signed_file_that_makes_no_sense_is_refused(model_folder: Path, changes: dict[str, Any]) -> None:
    rewrite(model_folder, **changes)
    with pytest.raises(ValueError, match=r"this model cannot be rebuilt|expected"):
        SequenceClassifier.from_pretrained(model_folder)


@pytest.mark.parametrize(
    ("part", "changes", "message"),
    [
        ("learnt", {"history": []}, "IndexError"),
        ("learnt", {"classes": {"type": "int", "values": [1, 2**70]}}, "OverflowError"),
        ("learnt", {"classes": {"type": "int", "values": [1]}}, "1 classes or numbers, and weights for 2"),
        ("layer", {"arguments": {"num_layers": 20_000}}, "more layers than weights"),
    ],
)
def test_a_signed_file_that_contradicts_itself_is_refused(
    model_folder: Path, part: str, changes: dict[str, Any], message: str
) -> None:
    config = json.loads((model_folder / "config.json").read_text())
    rewrite(model_folder, **{part: config[part] | changes})
    with pytest.raises(ValueError, match=f"this model cannot be rebuilt .*{message}"):
        SequenceClassifier.from_pretrained(model_folder)


def test_sizes_that_the_weights_do_not_have_are_refused_without_memory_for_them(model_folder: Path) -> None:
    layer = json.loads((model_folder / "config.json").read_text())["layer"]
    rewrite(model_folder, layer={**layer, "hidden_size": 10**7})
    with pytest.raises(ValueError, match=r"this model cannot be rebuilt .*size mismatch"):
        SequenceClassifier.from_pretrained(model_folder)


@pytest.mark.parametrize("folder", sorted(SAVED.glob("version-*/*")), ids=lambda path: "/".join(path.parts[-2:]))
def test_files_of_every_version_still_load(folder: Path) -> None:
    kind = {"classifier": SequenceClassifier, "labeler": FrameLabeler, "regressor": SequenceRegressor}[folder.name]
    expected = json.loads((folder / "expected.json").read_text())
    model = kind.from_pretrained(folder)
    x = np.array(expected["x"])
    found = model.predict(x) if kind is SequenceRegressor else model.predict_proba(x)
    np.testing.assert_allclose(found, expected["found"], rtol=1e-4, atol=1e-5)
    if kind is not SequenceRegressor:
        assert model.classes_.tolist() == expected["classes"]


def test_there_are_saved_files_of_every_version() -> None:
    assert sorted(path.name for path in SAVED.iterdir()) == [f"version-{k + 1}" for k in range(_saved.VERSION)]


def test_a_folder_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there is no such folder"):
        SequenceClassifier.from_pretrained("./nowhere")
    with pytest.raises(ValueError, match=r"expected a saved model, and its config\.json cannot be read"):
        SequenceClassifier.from_pretrained(tmp_path)


class Hub(BaseHTTPRequestHandler):
    """As much of the Hugging Face hub as a download needs: what a repository holds, and its files."""

    folder: Path
    commit = "0123456789abcdef0123456789abcdef01234567"

    def log_message(self, *_: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.split("?")[0]
        if path.startswith("/api/models/me/slopes"):
            names = sorted(os.listdir(self.folder))
            about = {"id": "me/slopes", "sha": self.commit, "siblings": [{"rfilename": name} for name in names]}
            tree = [
                {"type": "file", "path": name, "oid": "0", "size": (self.folder / name).stat().st_size}
                for name in names
            ]
            self._answer(json.dumps(tree if "/tree/" in path else about).encode(), "application/json")
        elif path.startswith("/me/slopes/resolve/"):
            self._answer((self.folder / path.split("/")[-1]).read_bytes(), "application/octet-stream")
        else:
            self.send_response(404)
            self.send_header("X-Error-Code", "RepoNotFound")
            self.send_header("Content-Length", "0")
            self.end_headers()

    def _answer(self, data: bytes, kind: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("ETag", f'"{hashlib.sha256(data).hexdigest()}"')
        self.send_header("X-Repo-Commit", self.commit)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    constants = pytest.importorskip("huggingface_hub.constants")
    handler = type("TheHub", (Hub,), {"folder": tmp_path / "hub"})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    # It reads its address from the environment when it is loaded.
    monkeypatch.setattr(constants, "ENDPOINT", address)
    template = address + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    yield tmp_path / "hub"
    server.shutdown()
    server.server_close()


def test_a_model_comes_from_the_hub(hub: Path, tmp_path: Path) -> None:
    model = new(SequenceClassifier)
    model.save_pretrained(hub)
    (hub / "large.bin").write_bytes(b"not asked for")
    loaded = SequenceClassifier.from_pretrained("me/slopes", cache_dir=str(tmp_path / "cache"))
    np.testing.assert_array_equal(loaded.predict_proba(X), model.predict_proba(X))
    assert not list((tmp_path / "cache").rglob("large.bin"))
    with pytest.raises(ValueError, match="me/other: there is no such folder, and the Hugging Face hub did not give it"):
        SequenceClassifier.from_pretrained("me/other", cache_dir=str(tmp_path / "cache"))


def test_a_model_goes_to_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    huggingface_hub = pytest.importorskip("huggingface_hub")
    sent: dict[str, Any] = {}

    def create_repo(self: Any, name: str, **given: Any) -> None:
        sent.update(given, made=name)

    def upload_folder(self: Any, *, repo_id: str, folder_path: str, commit_message: str) -> None:
        sent.update(to=repo_id, files={path.name: path.read_bytes() for path in Path(folder_path).iterdir()})

    monkeypatch.setattr(huggingface_hub.HfApi, "create_repo", create_repo)
    monkeypatch.setattr(huggingface_hub.HfApi, "upload_folder", upload_folder)
    address = new(SequenceClassifier).push_to_hub("me/slopes", private=True)
    assert address.endswith("/me/slopes")
    assert sent["made"] == sent["to"] == "me/slopes"
    assert sent["private"] is True
    assert sorted(sent["files"]) == ["README.md", "config.json", "model.safetensors"]
    assert b'SequenceClassifier.from_pretrained("me/slopes")' in sent["files"]["README.md"]

    def refuse(self: Any, *_: Any, **given: Any) -> None:
        raise RuntimeError("no network\nwith details")  # the hub's library has errors of other libraries

    monkeypatch.setattr(huggingface_hub.HfApi, "upload_folder", refuse)
    with pytest.raises(ValueError, match=r"me/slopes: the Hugging Face hub did not take it: no network$"):
        new(SequenceClassifier).push_to_hub("me/slopes")


def test_without_the_hubs_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "huggingface_hub", None)
    with pytest.raises(ValueError, match=r"me/slopes: there is no such folder, and .* pip install 'mistrnn\[hub\]'"):
        SequenceClassifier.from_pretrained("me/slopes")
