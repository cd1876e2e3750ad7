"""A torch module as an ONNX model that tells nothing of where it was made."""

import contextlib
import logging
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

if TYPE_CHECKING:
    import onnx

OPSET, IR_VERSION = 18, 8
"""The versions of ONNX that the graphs are written in: the oldest that torch writes, so that old runtimes read them."""
TRACED_CASES, TRACED_STEPS = 3, 5
"""Any sizes that torch does not take for constants, as it does 0 and 1."""


def traced(
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
    with torch.no_grad(), _quiet():
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
    # torch stores source paths of this machine at every node and value: remove them. Initializers carry their own shapes.
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
    log.setLevel(logging.ERROR)  # it tells that torchvision is missing, which is not needed
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings(
                "ignore", ".*LeafSpec.* is deprecated", FutureWarning
            )  # torch copies its own objects
            warnings.filterwarnings("ignore", "# The axis name: .* shares the same shape constraints")  # as is meant
            yield
    finally:
        log.setLevel(level)
