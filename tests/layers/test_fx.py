"""Layers under torch.fx: one node of a symbolic trace, as torch.nn.LSTM."""

from typing import Any

import torch
from torch import Tensor, nn

from mistrnn.layers import LAYERS
from tests.layers.cases import every_layer


class Tagger(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer, self.readout = layer, nn.Linear(6, 2)

    def forward(self, x: Tensor, lengths: Any = None) -> Tensor:
        output, _ = self.layer(x, lengths=lengths)
        return self.readout(output)


@every_layer
def test_symbolic_trace_has_one_node_for_a_layer(name: str) -> None:
    model = Tagger(LAYERS[name](3, 6, **({"periods": 3} if name == "clockwork" else {})))
    traced = torch.fx.symbolic_trace(model)
    assert [node.target for node in traced.graph.nodes if node.op == "call_module"] == ["layer", "readout"]
    for steps in (4, 9):
        x = torch.randn(steps, 2, 3)
        assert torch.equal(traced(x, torch.tensor([1, steps])), model(x, torch.tensor([1, steps])))
