"""Named initializations of the layers.

normal   the paper's and the layers' own: matrices N(0, 1/H), biases 0, LSTM's forget bias 1.
uniform  matrices uniform in ±0.1, biases as in `normal`.
groups   Clockwork only: as `normal`, and each group reads itself with weights of N(0, 1/its units).
open     as `normal`, with gates that let the past through: MIST's reset gates start at sigmoid(3), LSTM's forget gates and
         GRU's update gates remember between 1 and `steps` steps (Tallec and Ollivier 2018), Clockwork starts as in `groups`.

With zero biases each hop through a MIST layer is halved by its reset gate, so gradients fade over a few hops.
`results/accuracy` shows how much gradient arrives from the first step with each of them, and how many seeds learn.
"""

import torch
from torch import Tensor

from mistrnn.layers.base import RecurrentLayer
from mistrnn.layers.clockwork import Clockwork
from mistrnn.layers.gru import GRU
from mistrnn.layers.lstm import LSTM
from mistrnn.layers.mist import MIST
from mistrnn.layers.peephole_lstm import PeepholeLSTM

INITIALIZATIONS = ("normal", "uniform", "groups", "open")
UNIFORM = 0.1
"""Bound of the weights of `uniform`."""
OPEN_RESET_BIAS = 3.0
EXPECTED_STEPS = 100
"""Length of sequences that `open` assumes unless it is told."""


@torch.no_grad()
def initialize(layer: RecurrentLayer, name: str = "normal", *, steps: int | None = None) -> None:
    """Draw the parameters of a layer.

    Args:
        layer: any of the layers.
        name: normal, uniform, groups or open.
        steps: the length of the sequences, for `open`.

    >>> from mistrnn import MIST
    >>> layer = MIST(3, 4, delays=2)
    >>> initialize(layer, "open")
    >>> layer.bias_l0
    Parameter containing:
    tensor([0., 0., 3., 3., 3., 3., 0., 0., 0., 0.], requires_grad=True)
    """
    if name not in INITIALIZATIONS:
        raise ValueError(f"expected an initialization among {', '.join(INITIALIZATIONS)}, got {name!r}.")
    if name == "groups" and not isinstance(layer, Clockwork):
        raise ValueError(
            f"{type(layer).__name__}: expected no initialization 'groups', because only Clockwork has groups."
        )
    layer.reset_parameters()
    if name == "uniform":
        for parameter_name, parameter in layer.named_parameters():
            if "weight" in parameter_name:
                draw_uniform(parameter)
    elif name == "groups" or (name == "open" and isinstance(layer, Clockwork)):
        assert isinstance(layer, Clockwork)
        layer.scale_groups()
    elif name == "open" and layer.bias:
        for bias in _biases(layer):
            _open_gates(layer, bias, EXPECTED_STEPS if steps is None else steps)


@torch.no_grad()
def draw_uniform(weight: Tensor) -> None:
    """Draw a matrix uniformly in ±0.1; elements that are exactly zero are severed connections and stay zero."""
    severed = weight.detach() == 0
    torch.nn.init.uniform_(weight, -UNIFORM, UNIFORM)
    weight.masked_fill_(severed, 0.0)


def _biases(layer: RecurrentLayer) -> list[Tensor]:
    """Return the bias of each layer and direction; of two biases the first."""
    own = [layer.own_parameters(number, way) for number in range(layer.num_layers) for way in range(layer.directions)]
    return [parameters["bias" if "bias" in parameters else "bias_ih"] for parameters in own]


def _open_gates(layer: RecurrentLayer, bias: Tensor, steps: int) -> None:
    units = layer.hidden_size
    if isinstance(layer, MIST):
        reset = slice(len(layer.delays), len(layer.delays) + units)
        bias[reset] = OPEN_RESET_BIAS
    elif isinstance(layer, LSTM | PeepholeLSTM):
        remembered = torch.empty_like(bias[:units]).uniform_(1.0, max(2.0, steps - 1.0)).log()
        bias[:units], bias[units : 2 * units] = -remembered, remembered  # input and forget gates
    elif isinstance(layer, GRU):
        bias[units : 2 * units] = torch.empty_like(bias[:units]).uniform_(1.0, max(2.0, steps - 1.0)).log()
