"""Which past a MIST layer uses: its mixture over delays, at every step of every sequence.

N layers * directions, T time, B batch, I input, H hidden, D delays.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from mistrnn.layers import MIST, checks
from mistrnn.layers.backends import Weights
from mistrnn.layers.recurrence import linear, norms
from mistrnn.layers.sequence_mask import SequenceMask
from mistrnn.layers.state import State


@torch.no_grad()
def attention(
    layer: MIST,
    input: Tensor,
    state: State | None = None,
    *,
    lengths: Tensor | Sequence[int] | None = None,
    reset: Tensor | None = None,
) -> Tensor:
    """Return the mixture weights a_t of equation (1), [N, T, B, D]: how much of each delayed state enters the next one.

    They sum to 1 over the delays, in the order of `layer.delays`; past a sequence's length they are 0. Arguments as in the
    layer's own call, for a batch of sequences.

    >>> layer = MIST(3, 8, delays=[1, 2, 4])
    >>> attention(layer, torch.randn(20, 2, 3)).shape
    torch.Size([1, 20, 2, 3])
    """
    if not isinstance(layer, MIST):
        raise TypeError(
            f"attention: expected a MIST layer, because others have no mixture, got {type(layer).__name__}."
        )
    layer.require_own_forward("attention")
    if layer.draws_at_random:
        raise ValueError("attention: expected evaluation mode, because dropout and zoneout draw at random in training.")
    weights = layer.all_cell_weights(recompute=True)
    like = weights[0]["weight_hh"]
    if not isinstance(input, Tensor) or input.dim() != 3:
        got = list(input.shape) if isinstance(input, Tensor) else type(input).__name__
        raise ValueError(f"attention: expected a batch of sequences as a Tensor with three axes, got {got}.")
    checks.check_input("MIST", input, layer.input_size, layer.batch_first, like)
    if reset is not None:
        checks.check_reset("MIST", reset, input.shape[:-1], "[B, T]" if layer.batch_first else "[T, B]", like)
    x = (input.transpose(0, 1) if layer.batch_first else input).to(like.dtype)
    reset = reset.transpose(0, 1) if reset is not None and layer.batch_first else reset
    steps, batch = x.shape[:2]
    if lengths is not None:
        lengths = checks.check_lengths("MIST", lengths, batch, steps, like.device)
    mask = SequenceMask(steps, batch, like.device, lengths, reset)
    parts = layer.state_layout(batch).unpack(state, like)
    mixtures = []
    for number in range(layer.num_layers):
        outputs = []
        for direction in range(layer.directions):
            index = number * layer.directions + direction
            output, _ = layer.run_cell(weights[index], direction, x, parts[index], mask)
            mixtures.append(_mixture(layer, weights[index], x, output, parts[index][0], mask, direction == 1))
            outputs.append(output)
        x = torch.cat(outputs, dim=-1)
    return torch.stack(mixtures)


def _mixture(
    layer: MIST,
    weights: Weights,
    x: Tensor,
    output: Tensor,
    initial: Tensor,
    mask: SequenceMask,
    reverse: bool,
) -> Tensor:  # [T, B, D]
    """Return the mixture of one layer in one direction, from its inputs and outputs of all steps at once."""
    x, own = mask.clear_padding(x), mask
    if reverse:
        x, output, own = mask.flip(x), mask.flip(output), mask.reversed()
    before = torch.cat([initial[-1:], output[:-1]])  # [T, B, H] the state before each step
    if own.reset is not None:
        before = before.masked_fill(own.reset.unsqueeze(-1), 0.0)
    count = len(layer.delays)
    bias, gain = (weights[name][:count] if name in weights else None for name in ("bias", "gain"))
    (norm,) = norms([count], gain, bias)
    z = linear(x, weights["weight_ih"][:count], None if gain is not None else bias)
    mixture = own.clear_padding(torch.softmax(norm(z + linear(before, weights["weight_hh"][:count])), dim=-1))  # (1)
    return mask.flip(mixture) if reverse else mixture
