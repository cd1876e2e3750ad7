"""Fitted estimators in a folder: config.json and model.safetensors, never pickle.

config.json, version 3:
    format, version   "mistrnn-model", 3
    mistrnn           the version of the library that wrote it
    kind              SequenceClassifier, FrameLabeler or SequenceRegressor
    parameters        what the estimator was made with
    networks          the arguments of each `SequenceNetwork`: one, or several that answer together
    convolutions      the arguments of each `RandomConvolutions`, if there are any; they follow the networks in the ensemble
    member_weights    the share of each member of the ensemble, if there is one
    learnt            classes, or mean and scale of the targets; the channels' names; what training came to
    weights           the SHA-256 of model.safetensors
    digest            the SHA-256 of everything above
model.safetensors holds the state of the network; mean and scale of the inputs are part of it.

Version 2 knows no convolutions and only equal shares. Version 1 has `layer` in place of `networks`: the name, the sizes and all
arguments of the one layer of a `Network`. A model that was loaded from version 1 is saved as version 1 again. Every change here
gets a new version; old versions are still read.
"""

import contextlib
import hashlib
import json
import math
import os
import tempfile
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import safetensors
import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

import mistrnn
from mistrnn.errors import UsageError
from mistrnn.estimators.network import AnyNetwork, Network, check_plain_weights, layer_arguments
from mistrnn.files import written_together
from mistrnn.layers import LAYERS, RecurrentLayer, layer_class
from mistrnn.layers.names import single_bias
from mistrnn.models import Ensemble, RandomConvolutions, SequenceNetwork
from mistrnn.models.ensemble import Member
from mistrnn.training.embedded import choose_device
from mistrnn.training.examples import Augmentation

if TYPE_CHECKING:
    from mistrnn.estimators._estimator import SequenceEstimator

FORMAT, VERSION = "mistrnn-model", 3
CONFIG, WEIGHTS = "config.json", "model.safetensors"


def save(estimator: "SequenceEstimator", folder: str | PathLike[str], *, force: bool = False) -> None:
    """Write a fitted estimator into a folder; what else is there stays."""
    folder = Path(folder)
    taken = [name for name in (CONFIG, WEIGHTS) if (folder / name).exists()]
    if taken and not force:
        raise UsageError(
            f"{folder}: there is a {taken[0]} already; choose another folder, or overwrite it with force (--force)."
        )
    if type(estimator).__name__ not in _kinds():
        raise UsageError(f"expected one of {', '.join(_kinds())} to save, got {type(estimator).__name__}.")
    network = estimator.network_
    check_plain_weights(network)
    tensors = {name: value.detach().cpu().contiguous().clone() for name, value in network.state_dict().items()}
    weights = save_tensors(tensors)
    config: dict[str, Any] = {
        "format": FORMAT,
        "version": 1 if isinstance(network, Network) else VERSION,
        "mistrnn": mistrnn.__version__,
        "kind": type(estimator).__name__,
        "parameters": {name: _to_json(name, value) for name, value in estimator.get_params(deep=False).items()},
        **_described(network),
        "learnt": {
            **estimator._learnt(),
            "output_size": network.output_size,
            "channels": _channels(estimator.channel_names_, network.input_size),
            "history": _to_json("history", estimator.history_),
            "trials": _to_json("trials", getattr(estimator, "trials_", None)),
        },
        "weights": _digest(weights),
    }
    config["digest"] = _digest(_canonical(config))
    with written_together(folder) as place:
        (place / WEIGHTS).write_bytes(weights)
        (place / CONFIG).write_bytes(json.dumps(config, indent=1, ensure_ascii=False).encode())


def load(folder: str | PathLike[str], **hub: Any) -> "SequenceEstimator":
    """Return the estimator that a folder holds, or one from the Hugging Face hub."""
    path = Path(folder)
    if not path.is_dir() and isinstance(folder, str):
        path = _from_hub(folder, **hub)
    config = _config(path)
    try:
        weights = (path / WEIGHTS).read_bytes()
    except OSError as error:
        raise UsageError(
            f"{path / WEIGHTS}: cannot be read ({error.strerror}); it belongs to a saved model."
        ) from error
    if _digest(weights) != config.get("weights"):
        raise UsageError(
            f"{path / WEIGHTS}: these are not the weights that {CONFIG} was written with: truncated, changed, or of another "
            "model. Save or copy the model again."
        )
    try:
        return _rebuilt(config, load_tensors(weights))
    except UsageError:
        raise
    except (
        LookupError, ValueError, TypeError, AttributeError, ArithmeticError, RuntimeError, safetensors.SafetensorError
    ) as error:  # fmt: skip
        reason = " ".join(str(error).split())[:300]
        raise UsageError(f"{path}: this model cannot be rebuilt ({type(error).__name__}: {reason}).") from error


def _config(folder: Path) -> dict[str, Any]:
    path = folder / CONFIG
    try:
        config = json.loads(path.read_text(encoding="utf-8"), parse_constant=_no_number)
    except OSError as error:
        raise UsageError(
            f"{folder}: expected a saved model, and its {CONFIG} cannot be read ({error.strerror})."
        ) from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: not readable as JSON ({error}): truncated? Save or copy the model again.") from error
    if not isinstance(config, dict) or config.get("format") != FORMAT:
        raise UsageError(f"{path}: expected a model saved by mistrnn, and this is none.")
    version = config.get("version")
    if type(version) is not int or not 1 <= version <= VERSION:
        raise UsageError(
            f"{path}: written by mistrnn {config.get('mistrnn')} in version {version} of the format, and mistrnn "
            f"{mistrnn.__version__} reads up to version {VERSION}: pip install --upgrade mistrnn."
        )
    digest = config.pop("digest", None)
    if digest != _digest(_canonical(config)):
        raise UsageError(
            f"{path}: changed since it was saved, its digest does not match. Save or copy the model again."
        )
    return config


def _rebuilt(config: dict[str, Any], tensors: dict[str, torch.Tensor]) -> "SequenceEstimator":
    parameters = {name: _from_json(name, value) for name, value in config["parameters"].items()}
    if config["version"] == 1:
        parameters = _of_version_1(parameters)
    if config["version"] < 3 and config["kind"] == "SequenceClassifier":
        parameters["random_features"] = 0
    estimator = _kinds()[config["kind"]](**parameters)
    estimator._check_parameters()
    learnt = config["learnt"]
    # Made without memory, so that sizes that do not fit the weights cost nothing.
    with torch.device("meta"):
        network = _network(config, learnt["output_size"], estimator, len(tensors))
    network.load_state_dict(tensors, assign=True)
    estimator.network_ = network.requires_grad_(True).eval()
    estimator.n_channels_ = network.input_size
    estimator.channel_names_ = _channels(learnt["channels"], network.input_size)
    estimator.history_ = learnt["history"]
    estimator.n_epochs_, estimator.best_epoch_ = len(estimator.history_), estimator.history_[-1]["best_epoch"]
    if learnt.get("trials") is not None:
        estimator.trials_ = learnt["trials"]
    estimator._set_learnt(learnt)
    if estimator._output_size() != learnt["output_size"]:
        raise ValueError(f"{estimator._output_size()} classes or numbers, and weights for {learnt['output_size']}")
    with contextlib.suppress(UsageError):  # where there is no such device, the CPU serves
        network.to(choose_device(str(estimator.device)))
    return estimator


def _of_version_1(parameters: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters that an estimator was made with in version 1 as they are called now."""
    found = dict(parameters)
    if found.get("early_stopping") == "auto":
        found["early_stopping"] = False
    if "standardize" in found:
        found["standardize"] = bool(found["standardize"])  # 0 and 1 did, too
    options = dict(found.get("layer_options") or {})
    found["bidirectional"] = bool(options.pop("bidirectional", found.get("bidirectional", False)))
    options.pop("dropout", None)  # between the layers of the network, whose own arguments are kept apart
    found["layer_options"] = options or None
    return found


def _described(network: AnyNetwork) -> dict[str, Any]:
    """Return the shape of the network."""
    if isinstance(network, Network):
        layer = network.layer
        return {
            "layer": {
                "name": _layer_name(type(layer)),
                "input_size": layer.input_size,
                "hidden_size": layer.hidden_size,
                "arguments": _to_json("arguments", layer_arguments(layer)),
            }
        }
    if not isinstance(network, Ensemble):
        return {"networks": [_to_json("network", network.arguments)]}
    described: dict[str, Any] = {"networks": [_to_json("network", member.arguments) for member in network.networks]}
    others = [member for member in network.members if isinstance(member, RandomConvolutions)]
    if others:
        described["convolutions"] = [_to_json("convolutions", member.arguments) for member in others]
    return {**described, "member_weights": list(network.weights)}


def _network(config: dict[str, Any], outputs: int, estimator: "SequenceEstimator", tensors: int) -> AnyNetwork:
    """Return the network that a configuration describes, without its weights."""
    if config["version"] == 1:
        stored = config["layer"]
        if stored["arguments"]["num_layers"] > tensors:
            raise ValueError("more layers than weights")
        kind = layer_class(stored["name"])
        layer = kind(stored["input_size"], stored["hidden_size"], **single_bias(kind, stored["arguments"]))
        return Network(layer, outputs, every_step=estimator._every_step, dropout=estimator.dropout)
    stored = config["networks"]
    if sum(one["num_layers"] for one in stored) > tensors:
        raise ValueError("more layers than weights")
    members: list[Member] = [SequenceNetwork(**one) for one in stored]
    members += [RandomConvolutions(**one) for one in config.get("convolutions", [])]
    if any(member.output_size != outputs or member.every_step != estimator._every_step for member in members):
        raise ValueError("networks of another kind than the estimator")
    if len(members) == 1 and "member_weights" not in config:
        only = members[0]
        assert isinstance(only, SequenceNetwork)
        return only
    return Ensemble(members, estimator._answer, config.get("member_weights"))


def _kinds() -> "dict[str, type[SequenceEstimator]]":
    from mistrnn import estimators  # it imports this file

    kinds = (estimators.SequenceClassifier, estimators.FrameLabeler, estimators.SequenceRegressor)
    return {kind.__name__: kind for kind in kinds}


def _layer_name(kind: type[RecurrentLayer]) -> str:
    for name, own in LAYERS.items():
        if own is kind:
            return name
    raise UsageError(
        f"expected one of mistrnn's own layers to save, because a file can only name those, got {kind.__name__}; "
        "torch.save(estimator.network_.state_dict(), ...) keeps the weights."
    )


def _channels(names: Any, count: int) -> list[str] | None:
    """Return the names of all channels, if there are any."""
    if names is None:
        return None
    found = [] if isinstance(names, str) else [str(name) for name in names]
    if len(set(found)) != count or len(found) != count:
        raise UsageError(f"expected channel_names_ to be {count} names, one for each channel, got {names!r}.")
    return found


def _to_json(name: str, value: Any) -> Any:
    """Return a parameter as JSON knows it."""
    if name in ("callback", "engine"):
        return None  # objects of the session that made it
    if name == "unlabeled" and isinstance(value, float) and math.isnan(value):
        return None  # which says the same
    if isinstance(value, type) and issubclass(value, RecurrentLayer):
        return _layer_name(value)
    if isinstance(value, Augmentation):
        return vars(value)
    if isinstance(value, np.random.RandomState):
        return None  # its state has moved on
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, torch.device):
        return str(value)
    if isinstance(value, PathLike):
        return os.fspath(value)
    if name == "class_weight" and isinstance(value, Mapping):  # keys that are not strings stay what they are
        return [[_to_json(f"a key of {name}", key), _to_json(f"{name}[{key!r}]", item)] for key, item in value.items()]
    if isinstance(value, Mapping):
        return {str(key): _to_json(f"{name}[{key!r}]", item) for key, item in value.items()}
    if isinstance(value, list | tuple | range | np.ndarray):
        return [_to_json(f"what is in {name}", item) for item in value]
    if value is None or isinstance(value, bool | int | str) or (isinstance(value, float) and math.isfinite(value)):
        return value
    raise UsageError(f"expected {name} to be something that JSON knows to save it, got {value!r}.")


def _from_json(name: str, value: Any) -> Any:
    return dict(value) if name == "class_weight" and isinstance(value, list) else value


def _no_number(text: str) -> None:
    raise ValueError(f"{text} is no number that JSON knows")


def _canonical(config: dict[str, Any]) -> bytes:
    return json.dumps(config, sort_keys=True, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _from_hub(name: str, **hub: Any) -> Path:
    if name.count("/") != 1 or name.startswith((".", "/", "~")):
        raise UsageError(f"{name}: there is no such folder.")
    hub_api = _hub(f"{name}: there is no such folder, and to load a model of that name from the Hugging Face hub")
    try:
        return Path(hub_api.snapshot_download(name, allow_patterns=[CONFIG, WEIGHTS], **hub))
    except Exception as error:  # whatever the hub or the network says
        reason = str(error).strip().split("\n")[0]
        raise UsageError(
            f"{name}: there is no such folder, and the Hugging Face hub did not give it: {reason}"
        ) from error


def push(estimator: "SequenceEstimator", name: str, *, private: bool = False, token: str | None = None) -> str:
    """Save an estimator on the Hugging Face hub and return its address."""
    hub_api = _hub("saving on the Hugging Face hub")
    with tempfile.TemporaryDirectory() as folder:
        save(estimator, folder)
        (Path(folder) / "README.md").write_text(_card(estimator, name), encoding="utf-8")
        try:
            api = hub_api.HfApi(token=token)
            api.create_repo(name, private=private, exist_ok=True)
            api.upload_folder(repo_id=name, folder_path=folder, commit_message="Save the model")
        except Exception as error:  # whatever the hub or the network says
            reason = str(error).strip().split("\n")[0]
            raise UsageError(f"{name}: the Hugging Face hub did not take it: {reason}") from error
    return f"{hub_api.constants.ENDPOINT}/{name}"


def _card(estimator: "SequenceEstimator", name: str) -> str:
    kind = type(estimator).__name__
    return (
        "---\nlibrary_name: mistrnn\ntags: [time-series]\n---\n\n"
        f"A {kind} of [mistrnn](https://pypi.org/project/mistrnn/): {estimator.layer}, "
        f"{estimator.parameter_count():,} weights.\n\n"
        f'```python\nfrom mistrnn import {kind}\n\nmodel = {kind}.from_pretrained("{name}")\n```\n'
    )


def _hub(purpose: str) -> Any:
    try:
        import huggingface_hub
        import huggingface_hub.constants
    except ImportError as error:
        raise UsageError(f"{purpose} needs its package: pip install 'mistrnn[hub]'.") from error
    return huggingface_hub
