"""torch.fx: a layer is one node of a symbolic trace, as torch.nn.LSTM is."""

from collections.abc import Mapping
from typing import Any

from torch import nn
from torch.fx import Proxy, Tracer


def trace_as_leaf(module: nn.Module, input: Proxy, options: Mapping[str, Any]) -> Any:
    """Record the call of a module as one `call_module` node, with the options that are not None."""
    tracer = input.tracer
    assert isinstance(tracer, Tracer)
    given = {name: value for name, value in options.items() if value is not None}
    return tracer.create_proxy("call_module", tracer.path_of_module(module), (input,), given)
