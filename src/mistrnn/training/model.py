"""A model: a recurrent layer and a linear readout, at every step or at the end."""

import contextlib
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from mistrnn.layers import RecurrentLayer
from mistrnn.layers.masks import MaskDraw
from mistrnn.layers.state import State


class Model(nn.Module):
    """Scores for each step [T, B, C], or for the whole sequence [B, C], from inputs [T, B, I].

    The readout starts as in the paper: its matrix N(0, 1/H), its bias 0.

    >>> from mistrnn import MIST
    >>> scores, state = Model(MIST(3, 8), output_size=5, every_step=False)(torch.zeros(20, 4, 3))
    >>> scores.shape
    torch.Size([4, 5])
    """

    def __init__(
        self, layer: RecurrentLayer, output_size: int, *, every_step: bool, readout_dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.layer = layer
        self.every_step = every_step
        self.readout_dropout = readout_dropout
        like = next(layer.parameters())
        self.readout = nn.Linear(layer.output_size, output_size, device=like.device, dtype=like.dtype)
        with torch.no_grad():
            self.readout.weight.normal_(0.0, layer.hidden_size**-0.5)
            self.readout.bias.zero_()

    def forward(
        self,
        input: Tensor,
        state: State | None = None,
        masks: Sequence[Tensor] | None = None,
        reset: Tensor | None = None,
    ) -> tuple[Tensor, State]:
        """Return the scores and the state to go on from.

        In training with the masks of `mask_draws`, or random ones; where `reset` [T, B] is true, a sequence starts afresh.
        """
        draws = None if masks is None else iter(masks)
        with contextlib.nullcontext() if draws is None else self.layer.drawing_from(draws):
            output, state = self.layer(input, state, reset=reset)
        read = output if self.every_step else self.at_the_end(state)
        if self.readout_dropout and self.training:
            dropped = torch.rand_like(read) < self.readout_dropout if draws is None else next(draws)
            read = read.masked_fill(dropped, 0.0) / (1 - self.readout_dropout)
        scores: Tensor = self.readout(read)
        return scores, state

    def mask_draws(self) -> list[MaskDraw]:
        """Return the masks that a call in training draws, in order: those of the layer, and the dropout of the readout."""
        readout = MaskDraw(self.readout_dropout, self.layer.output_size, self.every_step)
        return self.layer.mask_draws() + ([readout] if self.readout_dropout else [])

    def at_the_end(self, state: State) -> Tensor:
        """Return the last layer's h at the end of each sequence, [B, directions * H]: the second one ends at the first step.

        That is the last output, too, but the gradient of outputs would hold zeros for all the other steps.
        """
        h = state[0] if isinstance(state, tuple) else state
        return torch.cat(h[-self.layer.directions :].unbind(), dim=-1)

    def parameter_count(self) -> int:
        """Return the number of weights of layer and readout."""
        return self.layer.parameter_count() + sum(parameter.numel() for parameter in self.readout.parameters())
