"""The export itself: checks, the graph, its metadata, the file."""

import copy
import json
import os
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

import mistrnn
from mistrnn.errors import UsageError
from mistrnn.estimators._classes import labels_to_json
from mistrnn.estimators._estimator import SequenceEstimator
from mistrnn.estimators.export._graphs import (
    Numbers,
    Prediction,
    Probabilities,
    batch_axis,
    initial_state,
    recurrent_layers,
    sequence_model,
    step_model,
)
from mistrnn.estimators.network import AnyNetwork, Network, check_plain_weights
from mistrnn.estimators.regressor import SequenceRegressor
from mistrnn.files import write_whole
from mistrnn.layers import LSTM, RecurrentLayer
from mistrnn.models import Ensemble

if TYPE_CHECKING:
    import onnx


def export_onnx(
    estimator: SequenceEstimator, path: str | PathLike[str], *, step: bool = False, force: bool = False
) -> None:
    """Write a fitted estimator as an ONNX graph.

    Args:
        estimator: a fitted SequenceClassifier, FrameLabeler or SequenceRegressor.
        path: the file to write; one that exists is left alone unless `force` is true.
        step: write one step, for a device or a live signal, instead of whole sequences.
        force: overwrite.

    Whole sequences: from `x` [cases, channels, time] float32 and `lengths` [cases] int64 to `probabilities` [cases, classes]
    (of a FrameLabeler [cases, time, classes], zero past a case's length) or `numbers` [cases, numbers] float64.

    One step: from a row `x` [cases, channels] and the state by the names of its tensors (`network_.state_names`; zeros to
    begin with) to the same prediction as if the case ended here, and the state for the next row (`next_` and the name).

    `docs/how-to/export.md` shows how to run them, and names their state and metadata.
    """
    check_is_fitted(estimator, "network_")
    path = Path(path)
    if path.is_dir():
        raise UsageError(f"{path}: expected the name of a file to write, such as model.onnx, got a folder.")
    if path.exists() and not force:
        raise UsageError(
            f"{path}: there is such a file already; choose another name, or overwrite it with force (--force)."
        )
    if not path.parent.is_dir():
        raise UsageError(f"{path}: expected a folder to write to, and {path.parent} is none; make it first.")
    _check_packages()
    check_plain_weights(estimator.network_)
    # A copy, because the estimator may be on a GPU and goes on being used, and because its layers are replaced.
    network = copy.deepcopy(estimator.network_).cpu().eval().requires_grad_(False)
    for layer in recurrent_layers(network):
        _check_layer(layer, step=step)
    model = (step_model if step else sequence_model)(network, _prediction_of(estimator))
    _describe(model, estimator, step=step)
    _write(path, model.SerializeToString(deterministic=True))


def _check_packages() -> None:
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise UsageError(f"export to ONNX needs {error.name}: pip install 'mistrnn[onnx]'.") from error


def _check_layer(layer: RecurrentLayer, *, step: bool) -> None:
    name = type(layer).__name__
    if step and layer.bidirectional:
        raise UsageError(
            f"expected one direction for a graph of one step, because the second direction starts at the end of a case, which "
            f"has not come yet, got {name} with bidirectional=True; export whole sequences, or fit with bidirectional=False."
        )
    for method in ("forward", "run_cell"):
        own = {getattr(kind, method) for kind in (RecurrentLayer, LSTM)}
        if getattr(type(layer), method) not in own:
            raise UsageError(
                f"expected a layer that runs its step time after time, as all of mistrnn do, because the graph is made "
                f"of that step, got {name}, which has a {method} of its own."
            )


def _prediction_of(estimator: SequenceEstimator) -> Prediction:
    if isinstance(estimator, SequenceRegressor):
        return Numbers(torch.from_numpy(estimator.y_mean_), torch.from_numpy(estimator.y_scale_))
    if hasattr(estimator, "classes_"):
        return Probabilities()
    raise UsageError(
        f"expected a SequenceClassifier, FrameLabeler or SequenceRegressor to export, got {type(estimator).__name__}."
    )


def _describe(model: "onnx.ModelProto", estimator: SequenceEstimator, *, step: bool) -> None:
    """Write into the model what a program needs to know to use it; every value of the metadata is JSON."""
    from onnx.helper import set_model_props

    kind = type(estimator).__name__
    about: dict[str, Any] = {
        "kind": kind,
        "graph": "step" if step else "sequence",
        "channels": estimator.channel_names_,
        "mistrnn": mistrnn.__version__,
    }
    if hasattr(estimator, "classes_"):
        about["classes"] = labels_to_json(estimator.classes_)["values"]
    text = f"A {kind} of mistrnn {mistrnn.__version__}: {_named(estimator.network_)}.\n"
    if step:
        state = initial_state(estimator.network_, 1)
        about["state"] = {name: _described(part) for name, part in state.items()}
        text += (
            "One step: x is a row of measurements for each case. Before a case's first row, all of its state "
            f"({', '.join(state)}) is zeros; for the next row, hand back next_{', next_'.join(state)}. "
            "The prediction is that for a case that ends here.\n"
        )
    else:
        text += "Whole sequences: lengths says how many steps of each case count, from 1 to time; the rest may hold anything.\n"
    text += "Measurements are standardised inside. The metadata say the rest, as JSON."
    model.doc_string = model.graph.doc_string = text
    model.graph.name = model.producer_name = "mistrnn"
    model.producer_version = mistrnn.__version__
    set_model_props(model, {name: json.dumps(value, ensure_ascii=False) for name, value in about.items()})


def _named(network: AnyNetwork) -> str:
    if isinstance(network, Network):
        return str(network.layer)
    if isinstance(network, Ensemble):
        return f"the mean of {len(network.networks)} networks: {'; '.join(map(_named, network.networks))}"
    return f"{network.num_layers} residual blocks around {network.recurrent_layers()[0]}"


def _described(part: Tensor) -> dict[str, Any]:
    shape: list[int | str] = list(part.shape)
    shape[batch_axis(part)] = "cases"
    return {"shape": shape, "dtype": str(part.dtype).removeprefix("torch.")}


def _write(path: Path, data: bytes) -> None:
    """Write a file that is whole or absent."""
    try:
        write_whole(path, data, suffix=f".{os.getpid()}.part")
    except OSError as error:
        raise UsageError(f"{path}: cannot be written ({error.strerror}).") from error
