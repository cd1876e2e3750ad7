"""Fitted estimators as ONNX graphs: whole sequences of any length, or one step with the state going in and out.

Both are traced from what PyTorch runs: the network's standardisation and readout, and the layers' own steps of `reference.py`.
In the graph of whole sequences each layer and direction is one ONNX `Scan`, whose body is the traced step: nothing depends on
the length that was traced.

T time, B batch, C channels, H hidden, K scores, M memory.
"""

import contextlib
import copy
import json
import logging
import os
import warnings
from collections.abc import Iterator, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

import mistrnn
from mistrnn.errors import UsageError
from mistrnn.estimators._classes import labels_to_json
from mistrnn.estimators._estimator import SequenceEstimator
from mistrnn.estimators.network import Network, check_plain_weights
from mistrnn.estimators.regressor import SequenceRegressor
from mistrnn.files import write_whole
from mistrnn.layers import RecurrentLayer
from mistrnn.layers._recurrence import Past, Step, advance
from mistrnn.layers._state import State
from mistrnn.layers._timeline import Timeline

if TYPE_CHECKING:
    import onnx

OPSET, IR_VERSION = 18, 8
"""The versions of ONNX that the graphs are written in: the oldest that torch writes, so that old runtimes read them."""
_RUN = "mistrnn::Run"
"""What stands for one layer's run in one direction while the rest is traced; a Scan takes its place."""
_TRACED_CASES, _TRACED_STEPS = 3, 5  # any sizes that torch does not take for constants, as it does 0 and 1


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

    One step: from a row `x` [cases, channels] and the state (`h`, and by the layer `c` or `clock`; zeros to begin with) to the
    same prediction as if the case ended here, and the state for the next row (`next_h`, ...).

    `docs/export.md` shows how to run them and what their metadata say.
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
    # A copy, because the estimator may be on a GPU and goes on being used.
    network = copy.deepcopy(estimator.network_).cpu().eval().requires_grad_(False)
    _check_layer(network.layer, step=step)
    prediction = _prediction_of(estimator)
    with torch.no_grad(), _quiet():
        model = _step_model(network, prediction) if step else _sequence_model(network, prediction)
    _describe(model, estimator, network.layer, step=step)
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
    for method in ("forward", "_run", "_run_one"):
        if getattr(type(layer), method) is not getattr(RecurrentLayer, method):
            raise UsageError(
                f"expected a layer that runs its step time after time, as all of mistrnn do, because the graph is made "
                f"of that step, got {name}, which has a {method} of its own."
            )


class _Prediction(nn.Module):
    """From scores [..., K] to what the estimator predicts, under the name of the graph's output."""

    name: str


class _Probabilities(_Prediction):
    name = "probabilities"

    def forward(self, scores: Tensor) -> Tensor:
        return scores.softmax(-1)


class _Numbers(_Prediction):
    name = "numbers"

    def __init__(self, mean: Tensor, scale: Tensor) -> None:
        super().__init__()
        self.mean, self.scale = mean, scale

    def forward(self, scores: Tensor) -> Tensor:
        return scores.double() * self.scale + self.mean  # in float64 as in `predict`: numbers may be far from zero


def _prediction_of(estimator: SequenceEstimator) -> _Prediction:
    if isinstance(estimator, SequenceRegressor):
        return _Numbers(torch.from_numpy(estimator.y_mean_), torch.from_numpy(estimator.y_scale_))
    if hasattr(estimator, "classes_"):
        return _Probabilities()
    raise UsageError(
        f"expected a SequenceClassifier, FrameLabeler or SequenceRegressor to export, got {type(estimator).__name__}."
    )


class _SlicedPast(Past):
    """The past as one tensor [M, B, H] per component, read by slices: a graph needs no node for steps that nobody reads."""

    def __init__(self, state: Sequence[Tensor], active: Tensor | None) -> None:
        self._tensors, self._active = tuple(state), active
        self.age = self.clock = None

    def __call__(self, delay: int, component: int = 0) -> Tensor:
        tensor = self._tensors[component]
        return tensor[tensor.size(0) - delay]

    def append(self, state: Sequence[Tensor]) -> None:
        self._tensors = tuple(
            torch.cat([tensor[1:], _cleared(value, self._active).unsqueeze(0)])
            for tensor, value in zip(self._tensors, state, strict=True)
        )

    def stacked(self) -> tuple[Tensor, ...]:
        return self._tensors


def _cleared(value: Tensor, active: Tensor | None) -> Tensor:  # [B, H]
    return value if active is None else value.masked_fill(~active.unsqueeze(-1), 0.0)


def _advanced(
    layer: RecurrentLayer, step: Step, projected: Tensor, part: tuple[Tensor, ...], active: Tensor | None = None
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Take one step from the state of one layer and direction; return its output [B, H] and the state after it.

    active [B] bool: whether a sequence is inside its length. Outside, outputs are zero. The second direction begins outside,
    where its states and its clock stay at zero; the first ends there, and nobody reads what its states become.
    """
    count = len(layer.state_components)
    past = _SlicedPast(part[:count], active)
    past.clock = part[count] if layer.has_clock else None
    new = advance(step, projected, past, layer.zoneout or None)
    after = past.stacked()
    if past.clock is not None:
        after += (past.clock + (1 if active is None else active.to(past.clock.dtype)),)
    return _cleared(new[0], active), after


class _Step(nn.Module):
    """The whole network for one row: x [B, C] and the state -> the prediction and the next state."""

    def __init__(self, network: Network, prediction: _Prediction) -> None:
        super().__init__()
        self.network, self.prediction = network, prediction
        self.weights = network.layer._current_weights()
        self.steps = [network.layer._step(weights, None) for weights in self.weights]

    def forward(self, x: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        layer = self.network.layer
        x = self.network.standardised(x)
        form = layer._state_form(x.size(0))
        after = []
        for part, weights, step in zip(form.unpack(state, x), self.weights, self.steps, strict=True):
            x, part_after = _advanced(layer, step, layer._project(x, weights), part)
            after.append(part_after)
        return self.prediction(self.network.readout(x)), *_as_tuple(form.pack(after))


class _Body(nn.Module):
    """One step of one layer and direction, in the order of a Scan: its state first, and what is collected last."""

    def __init__(self, layer: RecurrentLayer, index: int) -> None:
        super().__init__()
        self.layer = layer
        self.step = layer._step(layer._current_weights()[index], None)

    def forward(self, part: tuple[Tensor, ...], projected: Tensor, active: Tensor) -> tuple[Tensor, ...]:
        output, after = _advanced(self.layer, self.step, projected, part, active)
        return *after, output


class _Sequences(nn.Module):
    """The whole network, from x [B, C, T] and lengths [B] to the prediction; the layers' runs over time are left open."""

    def __init__(self, network: Network, prediction: _Prediction) -> None:
        super().__init__()
        self.network, self.prediction = network, prediction
        self.weights = network.layer._current_weights()

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        network, layer = self.network, self.network.layer
        batch, steps = x.size(0), x.size(2)
        timeline = Timeline(steps, batch, x.device, lengths)
        x = network.standardised(
            x.permute(2, 0, 1)
        )  # [T, B, C], whatever the padding holds: the bodies clear what comes of it
        active = torch.arange(steps).unsqueeze(1) < lengths  # [T, B]
        parts = layer._state_form(batch).unpack(None, x)
        for number in range(layer.num_layers):
            outputs = []
            for direction in range(layer.directions):
                index = number * layer.directions + direction
                outputs.append(
                    torch.onnx.ops.symbolic(
                        _RUN,
                        [*parts[index], layer._project(x, self.weights[index]), active],
                        {"index": index},
                        dtype=x.dtype,
                        shape=(steps, batch, layer.hidden_size),
                    )
                )
            x = torch.cat(outputs, -1) if layer.bidirectional else outputs[0]
        if not network.every_step:
            last: Tensor = self.prediction(network.readout(_at_the_end(layer, x, lengths)))
            return last
        predicted = self.prediction(network.readout(x))  # [T, B, K]
        return timeline.clear_padding(predicted).permute(1, 0, 2)


def _at_the_end(layer: RecurrentLayer, output: Tensor, lengths: Tensor) -> Tensor:
    """Return what `Model.at_the_end` does, from the outputs: a run over time in a graph gives nothing else."""
    place = (lengths - 1).view(1, -1, 1).expand(1, -1, output.size(-1))
    last = output.gather(0, place).squeeze(0)
    if not layer.bidirectional:
        return last
    return torch.cat([last[:, : layer.hidden_size], output[0, :, layer.hidden_size :]], dim=-1)


def _step_model(network: Network, prediction: _Prediction) -> "onnx.ModelProto":
    state = _fresh_state(network.layer)
    return _traced(
        _Step(network, prediction),
        (torch.zeros(_TRACED_CASES, network.layer.input_size), tuple(state.values())),
        ({0: "cases"}, tuple({_batch_axis(name): "cases"} for name in state)),
        ["x", *state],
        [prediction.name, *(f"next_{name}" for name in state)],
    )


def _fresh_state(layer: RecurrentLayer) -> dict[str, Tensor]:
    """Return the state of the whole stack before the first step, by name, in the form that the layer takes."""
    form = layer._state_form(_TRACED_CASES)
    parts = _as_tuple(form.pack(form.unpack(None, layer._all_weights()[0]["weight_hh"])))
    names = form.components + (("clock",) if form.has_clock else ())
    return dict(zip(names, parts, strict=True))


def _batch_axis(name: str) -> int:
    return -1 if name == "clock" else -2


def _as_tuple(state: State) -> tuple[Tensor, ...]:
    return state if isinstance(state, tuple) else (state,)


def _sequence_model(network: Network, prediction: _Prediction) -> "onnx.ModelProto":
    from onnx.helper import make_operatorsetid

    layer = network.layer
    model = _traced(
        _Sequences(network, prediction),
        (torch.zeros(_TRACED_CASES, layer.input_size, _TRACED_STEPS), torch.full((_TRACED_CASES,), _TRACED_STEPS)),
        ({0: "cases", 2: "time"}, {0: "cases"}),
        ["x", "lengths"],
        [prediction.name],
    )
    for node in model.graph.node:
        if f"{node.domain}::{node.op_type}" == _RUN:
            index = next(attribute.i for attribute in node.attribute if attribute.name == "index")
            body = _body_graph(layer, index)
            # The weights belong to the outer graph, where tools look for them: a body sees what is around it.
            model.graph.initializer.extend(body.initializer)
            del body.initializer[:]
            node.CopyFrom(_scan(node, body, reverse=index % layer.directions == 1))
    del model.opset_import[:]
    model.opset_import.append(make_operatorsetid("", OPSET))  # and no longer that of `_RUN`
    return model


def _body_graph(layer: RecurrentLayer, index: int) -> "onnx.GraphProto":
    """Return one step of one layer and direction as a graph whose names no other one has."""
    from onnx.compose import add_prefix_graph

    weights = layer._all_weights()[0]
    like = weights["weight_hh"]
    part = layer._state_form(_TRACED_CASES).unpack(None, like)[index]
    names = [*layer.state_components, *(["clock"] if layer.has_clock else [])]
    projected = layer._project(like.new_zeros(_TRACED_CASES, layer.input_size), weights)
    model = _traced(
        _Body(layer, index),
        (part, projected, torch.ones(_TRACED_CASES, dtype=torch.bool)),
        (tuple({_batch_axis(name): "cases"} for name in names), {0: "cases"}, {0: "cases"}),
        [*names, "x", "active"],
        [*(f"next_{name}" for name in names), "output"],
    )
    model.graph.name = f"run_{index}"
    return add_prefix_graph(model.graph, f"{model.graph.name}/")


def _scan(node: "onnx.NodeProto", body: "onnx.GraphProto", *, reverse: bool) -> "onnx.NodeProto":
    """Return the Scan that takes the place of a node: over time, backwards in the second direction."""
    from onnx.helper import make_node

    nobody_reads = [f"{value.name}/last" for value in body.output[:-1]]  # the state after the run
    return make_node(
        "Scan",
        node.input,
        [*nobody_reads, *node.output],
        name=body.name,
        body=body,
        num_scan_inputs=2,  # the projected inputs and which sequences are active; before them comes the state
        scan_input_directions=[int(reverse)] * 2,
        scan_output_directions=[int(reverse)],
    )


def _traced(
    module: nn.Module, inputs: tuple[Any, ...], axes: tuple[Any, ...], input_names: list[str], output_names: list[str]
) -> "onnx.ModelProto":
    """Return a module as an ONNX model; `axes` names the axes of any length, nested as the inputs."""
    dimensions = {name: torch.export.Dim(name) for name in ("cases", "time")}

    def distinct(given: Any, named: Any) -> tuple[Any, Any]:
        """Return clones, because torch takes inputs that are one tensor for one input, and the axes counted from 0."""
        if isinstance(given, tuple):
            pairs = [distinct(*pair) for pair in zip(given, named, strict=True)]
            return tuple(pair[0] for pair in pairs), tuple(pair[1] for pair in pairs)
        return given.clone(), {axis % given.dim(): dimensions[name] for axis, name in named.items()}

    arguments, dynamic = distinct(inputs, axes)
    program = torch.onnx.export(
        module.eval(),
        arguments,
        input_names=input_names,
        output_names=output_names,
        dynamic_shapes=dynamic,
        opset_version=OPSET,
        dynamo=True,
        verbose=False,
    )
    assert program is not None
    model = program.model_proto
    model.ir_version = IR_VERSION
    # torch notes at every node and value from where in whose files it comes: that belongs to nobody else. And what it says
    # of the shapes of initializers they say themselves.
    graph, own = model.graph, {initializer.name for initializer in model.graph.initializer}
    shapes = [value for value in graph.value_info if value.name not in own]
    del graph.value_info[:]
    graph.value_info.extend(shapes)
    for noted in (model, graph, *graph.node, *graph.value_info, *graph.input, *graph.output):
        del noted.metadata_props[:]
    return model


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Leave out what torch says of itself while it traces: nothing of it is the caller's to mend."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)  # it tells that torchvision is not there, which nobody needs
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings(
                "ignore", ".*LeafSpec.* is deprecated", FutureWarning
            )  # torch copies its own objects
            warnings.filterwarnings("ignore", "# The axis name: .* shares the same shape constraints")  # as is meant
            yield
    finally:
        log.setLevel(level)


def _describe(model: "onnx.ModelProto", estimator: SequenceEstimator, layer: RecurrentLayer, *, step: bool) -> None:
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
    text = f"A {kind} of mistrnn {mistrnn.__version__}: {layer}.\n"
    if step:
        state = _fresh_state(layer)
        about["state"] = {name: _described(value, _batch_axis(name)) for name, value in state.items()}
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


def _described(value: Tensor, batch_axis: int) -> dict[str, Any]:
    shape: list[int | str] = list(value.shape)
    shape[batch_axis] = "cases"
    return {"shape": shape, "dtype": str(value.dtype).removeprefix("torch.")}


def _write(path: Path, data: bytes) -> None:
    """Write a file that is whole or absent."""
    try:
        write_whole(path, data, suffix=f".{os.getpid()}.part")
    except OSError as error:
        raise UsageError(f"{path}: cannot be written ({error.strerror}).") from error
