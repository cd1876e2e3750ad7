"""The network of an estimator that was saved by version 1: standardised inputs, one recurrent layer, a linear readout."""

from inspect import signature
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from torch.nn.utils.parametrize import is_parametrized

from mistrnn.errors import UsageError
from mistrnn.layers import RecurrentLayer
from mistrnn.layers.state import State
from mistrnn.layers.weight_hooks import hooked_weight_names
from mistrnn.models import Ensemble, SequenceNetwork
from mistrnn.models.standardisation import StandardisedModule
from mistrnn.training.model import Model


class Network(StandardisedModule, Model):
    """Scores for each step [T, B, K], or for each whole sequence [B, K], from what was measured, [T, B, C].

    The inputs are shifted by `mean` and divided by `scale`, both [C], in float64: a signal may be far from zero. The scores
    of a whole sequence are read at its last step (of the second direction, at its first).

    >>> from mistrnn import MIST
    >>> network = Network(MIST(2, 8, delays=3), output_size=4, every_step=False)
    >>> network(torch.randn(9, 3, 2), lengths=torch.tensor([9, 5, 7]))[0].shape
    torch.Size([3, 4])
    """

    def __init__(self, layer: RecurrentLayer, output_size: int, *, every_step: bool, dropout: float = 0.0) -> None:
        super().__init__(layer, output_size, every_step=every_step)
        self.dropout = dropout
        self.register_standardisation(layer.input_size)

    @property
    def input_size(self) -> int:
        """C, the channels of the input."""
        return self.layer.input_size

    @property
    def output_size(self) -> int:
        """K, the scores."""
        return self.readout.out_features

    @property
    def bidirectional(self) -> bool:
        """Whether it reads sequences in both directions."""
        return self.layer.bidirectional

    def standardised(self, input: Tensor) -> Tensor:
        """Return the input as the layer reads it."""
        return self.standardisation(input).to(self.readout.weight.dtype)

    def forward(  # type: ignore[override]
        self,
        input: Tensor,
        state: State | None = None,
        *,
        lengths: Tensor | None = None,
        every_step: bool | None = None,
        keep_state: bool = True,
    ) -> tuple[Tensor, State]:
        """Return the scores and the state to go on from; every_step: the network's own setting if None."""
        output, state = self.layer(self.standardised(input), state, lengths=lengths)
        read = output if (self.every_step if every_step is None else every_step) else self.at_the_end(state)
        return self.readout(F.dropout(read, self.dropout, self.training)), state

    def stream(self, batch_size: int = 1) -> "LayerStream":
        """Return the network as a stream: one call for each step."""
        return LayerStream(self, batch_size)


class LayerStream:
    """A running `Network`: rows [B, C] in, scores [B, K] out."""

    def __init__(self, network: Network, batch_size: int) -> None:
        self._network, self._layer = network, network.layer.stream(batch_size)

    @torch.no_grad()
    def __call__(self, input: Tensor, reset: Tensor | None = None) -> Tensor:
        """Take one step; `reset` [B] names the sequences that start afresh."""
        network = self._network
        scores: Tensor = network.readout(self._layer(network.standardised(input.to(network.mean.device)), reset))
        return scores


AnyNetwork = Network | SequenceNetwork | Ensemble
"""The networks that an estimator may have."""


def check_plain_weights(network: AnyNetwork) -> None:
    """Refuse weights that are computed from others: a file would hold those, and nothing of how."""
    if hooked := hooked_weight_names(network):
        raise UsageError(
            f"expected plain weights, and {hooked[0]} is pruned or normalised by a hook; make it a weight first "
            "(torch.nn.utils.prune.remove, remove_weight_norm, remove_spectral_norm)."
        )
    for name, module in network.named_modules():
        if is_parametrized(module):
            raise UsageError(
                f"expected plain weights, and {name} has parametrised ones; make them weights first "
                "(torch.nn.utils.parametrize.remove_parametrizations)."
            )


def layer_arguments(layer: RecurrentLayer) -> dict[str, Any]:
    """Return the arguments, other than sizes, that make another layer of the same kind."""
    others = {"input_size", "hidden_size", "batch_first", "device", "dtype"}
    return {name: getattr(layer, name) for name in signature(type(layer)).parameters if name not in others}
