"""The two graphs of a network: whole sequences, and one step.

T time, B batch, C channels, K scores.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from mistrnn.estimators.export._layers import OPEN_RUN, ScanBody, ScanLayer, StepConv, StepLayer
from mistrnn.estimators.export._tracing import OPSET, TRACED_CASES, TRACED_STEPS, traced
from mistrnn.estimators.network import AnyNetwork, Network
from mistrnn.layers import RecurrentLayer
from mistrnn.layers.backends import project
from mistrnn.layers.state import state_tensors
from mistrnn.models._frames import ForwardPass
from mistrnn.models.network import ResidualBlock

if TYPE_CHECKING:
    import onnx


class Prediction(nn.Module):
    """From scores [..., K] to the estimator's prediction, under the name of the graph's output."""

    name: str


class Probabilities(Prediction):
    """The probabilities of classes."""

    name = "probabilities"

    def forward(self, scores: Tensor) -> Tensor:
        """Return the probabilities, [..., K]."""
        return scores.softmax(-1)


class Numbers(Prediction):
    """Numbers in the units of y."""

    name = "numbers"

    def __init__(self, mean: Tensor, scale: Tensor) -> None:
        super().__init__()
        self.mean, self.scale = mean, scale

    def forward(self, scores: Tensor) -> Tensor:
        """Return the numbers, [..., K], in float64 as `predict` does: they may be far from zero."""
        return scores.double() * self.scale + self.mean


def recurrent_layers(network: AnyNetwork) -> list[RecurrentLayer]:
    """Return the recurrent layers of a network, in the order in which it runs them."""
    return [owner.layer for owner in _owners(network)]


def initial_state(network: AnyNetwork, batch_size: int) -> dict[str, Tensor]:
    """Return the state before the first step by name."""
    if not isinstance(network, Network):
        return dict(zip(network.state_names, network.initial_state(batch_size), strict=True))
    layout = network.layer.state_layout(batch_size)
    state = state_tensors(layout.pack(layout.zeros(network.readout.weight.detach())))
    names = layout.components + (("clock",) if layout.has_clock else ())
    return dict(zip(names, state, strict=True))


def batch_axis(part: Tensor) -> int:
    """Return the axis of the cases in a tensor of a state; those that count steps have no channels behind it."""
    return -2 if part.is_floating_point() else -1


def step_model(network: AnyNetwork, prediction: Prediction) -> "onnx.ModelProto":
    """Return the graph of one step; the network's layers are replaced."""
    state = initial_state(network, TRACED_CASES)
    return traced(
        _Step(network, prediction),
        (torch.zeros(TRACED_CASES, network.input_size), tuple(state.values())),
        ({0: "cases"}, tuple({batch_axis(part): "cases"} for part in state.values())),
        ["x", *state],
        [prediction.name, *(f"next_{name}" for name in state)],
    )


def sequence_model(network: AnyNetwork, prediction: Prediction) -> "onnx.ModelProto":
    """Return the graph of whole sequences; the network's layers are replaced."""
    from onnx.helper import make_operatorsetid

    layers = recurrent_layers(network)
    model = traced(
        _Sequences(network, prediction),
        (torch.zeros(TRACED_CASES, network.input_size, TRACED_STEPS), torch.full((TRACED_CASES,), TRACED_STEPS)),
        ({0: "cases", 2: "time"}, {0: "cases"}),
        ["x", "lengths"],
        [prediction.name],
    )
    runs = [node for node in model.graph.node if f"{node.domain}::{node.op_type}" == OPEN_RUN]
    for number, node in enumerate(runs):
        which = {attribute.name: attribute.i for attribute in node.attribute}
        layer, index = layers[which["layer"]], which["index"]
        body = _body_graph(layer, index, f"run_{number}")
        # The weights belong to the outer graph, where tools look for them: a body sees what is around it.
        model.graph.initializer.extend(body.initializer)
        del body.initializer[:]
        node.CopyFrom(_scan(node, body, reverse=index % layer.directions == 1))
    del model.opset_import[:]
    model.opset_import.append(make_operatorsetid("", OPSET))  # and no longer that of `OPEN_RUN`
    return model


class _Step(nn.Module):
    """A network for one row: x [B, C] and the state -> the prediction and the next state."""

    def __init__(self, network: AnyNetwork, prediction: Prediction) -> None:
        super().__init__()
        self.network, self.prediction = network, prediction
        _replace_layers(network, lambda layer, number: StepLayer(layer))
        for block in network.modules():
            if isinstance(block, ResidualBlock) and block.conv is not None:
                block.conv = StepConv(block.conv)  # type: ignore[assignment]

    def forward(self, x: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        network = self.network
        # A network of one layer reads its last output, which is the output here.
        every_step = True if isinstance(network, Network) else network.every_step
        scores, after = network(x.unsqueeze(0), state, every_step=every_step)
        scores = scores.squeeze(0) if every_step else scores
        return self.prediction(scores), *state_tensors(after)


class _Sequences(nn.Module):
    """A network from x [B, C, T] and lengths [B] to the prediction; the layers' runs over time are left open."""

    def __init__(self, network: AnyNetwork, prediction: Prediction) -> None:
        super().__init__()
        self.network, self.prediction = network, prediction
        _replace_layers(network, ScanLayer)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        x = x.permute(2, 0, 1)  # [T, B, C]
        scores, _ = self.network(x, lengths=lengths, keep_state=False)
        predicted: Tensor = self.prediction(scores)
        if not self.network.every_step:
            return predicted
        return ForwardPass.of(x, lengths).clear_padding(predicted).permute(1, 0, 2)


def _owners(network: AnyNetwork) -> list[Network | ResidualBlock]:
    return [module for module in network.modules() if isinstance(module, Network | ResidualBlock)]


def _replace_layers(network: AnyNetwork, stand_in: Callable[[RecurrentLayer, int], nn.Module]) -> None:
    for number, owner in enumerate(_owners(network)):
        owner.layer = stand_in(owner.layer, number)  # type: ignore[assignment]


def _body_graph(layer: RecurrentLayer, index: int, name: str) -> "onnx.GraphProto":
    """Return one step of one layer and direction as a graph whose names no other one has."""
    from onnx.compose import add_prefix_graph

    weights = layer.all_cell_weights()[0]
    like = weights["weight_hh"]
    part = layer.state_layout(TRACED_CASES).unpack(None, like)[index]
    names = [*layer.cell.state, *(["clock"] if layer.cell.has_clock else [])]
    projected = project(like.new_zeros(TRACED_CASES, layer.input_size), weights)
    model = traced(
        ScanBody(layer, index),
        (part, projected, torch.ones(TRACED_CASES, dtype=torch.bool)),
        (tuple({batch_axis(tensor): "cases"} for tensor in part), {0: "cases"}, {0: "cases"}),
        [*names, "x", "active"],
        [*(f"next_{name}" for name in names), "output"],
    )
    model.graph.name = name
    return add_prefix_graph(model.graph, f"{name}/")


def _scan(node: "onnx.NodeProto", body: "onnx.GraphProto", *, reverse: bool) -> "onnx.NodeProto":
    """Return the Scan that takes the place of a node: over time, backwards in the second direction."""
    from onnx.helper import make_node

    unread = [f"{value.name}/last" for value in body.output[:-1]]  # the state after the run
    return make_node(
        "Scan",
        node.input,
        [*unread, *node.output],
        name=body.name,
        body=body,
        num_scan_inputs=2,  # the projected inputs and which sequences are active; before them comes the state
        scan_input_directions=[int(reverse)] * 2,
        scan_output_directions=[int(reverse)],
    )
