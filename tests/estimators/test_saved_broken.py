"""Saved files that are not what they should be: truncated, changed, of the future, contradicting themselves."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from mistrnn import SequenceClassifier
from mistrnn.estimators import _saved
from tests.estimators.data import fitted


@pytest.fixture
def model_folder(tmp_path: Path) -> Path:
    fitted(SequenceClassifier, max_epochs=1, random_features=0)[0].save_pretrained(tmp_path)
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
    rewrite(model_folder, version=_saved.VERSION + 1, mistrnn="7.0.0")
    with pytest.raises(
        ValueError,
        match=rf"written by mistrnn 7\.0\.0 in version {_saved.VERSION + 1} of the format, .* pip install --upgrade",
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
        {"networks": [{"layer": "transformer"}]},
        {"networks": []},
        {"networks": {}},
        {"networks": None},
        {"version": 1},
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
    ],
)
def test_a_signed_file_that_contradicts_itself_is_refused(
    model_folder: Path, part: str, changes: dict[str, Any], message: str
) -> None:
    config = json.loads((model_folder / "config.json").read_text())
    rewrite(model_folder, **{part: config[part] | changes})
    with pytest.raises(ValueError, match=f"this model cannot be rebuilt .*{message}"):
        SequenceClassifier.from_pretrained(model_folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_layers": 20_000}, "more layers than weights"),
        ({"hidden_size": 10**7}, "size mismatch"),
        ({"kernel_size": 10**9}, "size mismatch"),
        ({"input_size": 10**12}, "size mismatch"),
        ({"output_size": 3}, "networks of another kind than the estimator"),
        ({"pooling": None}, "networks of another kind than the estimator"),
        ({"pooling": "last"}, "size mismatch"),
        ({"layer": "gru", "layer_options": {}}, r"size mismatch|Unexpected key|Missing key"),
        ({"layer_options": {"delays": 10**9}}, "delays"),
        ({"layer_options": {"delays": 2}}, "size mismatch"),
        ({"dropout": 2.0}, "dropout"),
        ({"windows": 3}, "unexpected keyword argument 'windows'"),
    ],
)
def test_networks_that_the_weights_do_not_fit_are_refused_without_memory_for_them(
    model_folder: Path, changes: dict[str, Any], message: str
) -> None:
    (network,) = json.loads((model_folder / "config.json").read_text())["networks"]
    rewrite(model_folder, networks=[network | changes])
    with pytest.raises(ValueError, match=f"this model cannot be rebuilt .*({message})"):
        SequenceClassifier.from_pretrained(model_folder)


def test_more_networks_than_there_are_weights_for_are_refused(model_folder: Path) -> None:
    (network,) = json.loads((model_folder / "config.json").read_text())["networks"]
    for count, message in ((2, "Missing key"), (10_000, "more layers than weights")):
        rewrite(model_folder, networks=[network] * count)
        with pytest.raises(ValueError, match=f"this model cannot be rebuilt .*{message}"):
            SequenceClassifier.from_pretrained(model_folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"convolutions": []}, "expected 1 positive weights"),
        ({"member_weights": [1.0, -1.0]}, "expected 2 positive weights"),
        ({"member_weights": ["much", 1.0]}, "could not convert"),
        (
            {"convolutions": [{"input_size": 2, "output_size": 2, "dilations": [1], "thresholds": [10**9]}]},
            "size mismatch",
        ),
        (
            {"convolutions": [{"input_size": 2, "output_size": 2, "dilations": [], "thresholds": []}]},
            "for each dilation",
        ),
        ({"convolutions": [{"input_size": 2, "output_size": 3, "dilations": [1], "thresholds": [1]}]}, "another kind"),
    ],
)
def test_convolutions_that_do_not_fit_are_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    fitted(SequenceClassifier, max_epochs=1, random_features=84)[0].save_pretrained(tmp_path)
    rewrite(tmp_path, **changes)
    with pytest.raises(ValueError, match=f"this model cannot be rebuilt .*{message}"):
        SequenceClassifier.from_pretrained(tmp_path)
