"""Modules around recurrent layers and cells."""

from typing import Any

from torch import Tensor, nn


class Unrolled(nn.Module):
    """A user's own network: a cell in a loop."""

    def __init__(self, cell: nn.Module) -> None:
        super().__init__()
        self.cell, self.readout = cell, nn.Linear(5, 2)

    def forward(self, input: Tensor) -> Tensor:
        state: Any = None
        for x in input:
            state = self.cell(x, state)
        return self.readout(state[0] if isinstance(state, tuple) else state)


class Wrapped(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer, self.readout = layer, nn.Linear(5, 2)

    def forward(self, input: Tensor) -> Tensor:
        return self.readout(self.layer(input)[0][-1])
