"""Weights that torch's older utilities compute by hooks before each call are the current ones outside of calls, too."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import prune, spectral_norm, weight_norm

from mistrnn import GRU, LSTM, MIST, RNN
from mistrnn.analysis import attention, ordered_derivative
from mistrnn.layers import RecurrentLayer
from tests.layers.cases import close, every_layer, seeded, small

NAME = "weight_hh_l0"
HOOKS: dict[str, Callable[[nn.Module], object]] = {
    "pruning": lambda module: prune.l1_unstructured(module, NAME, 0.5),
    "weight norm": lambda module: weight_norm(module, NAME),
    "spectral norm": lambda module: spectral_norm(module, NAME),
}
every_hook = pytest.mark.parametrize("hook", HOOKS)
pytestmark = pytest.mark.filterwarnings("ignore:.*weight_norm. is deprecated:FutureWarning")


def trained(module: nn.Module, hook: str) -> Tensor:
    """Hang the hook in and take a step, after which the attribute holds old weights; return an input."""
    with seeded(1):
        HOOKS[hook](module)
        x = torch.randn(7, 3, 3, dtype=torch.float64)
    module(x)[0].square().sum().backward()
    torch.optim.SGD(module.parameters(), 0.5).step()
    module.eval()
    return x


@every_layer
@every_hook
def test_a_stream_reads_the_weights_of_now(name: str, hook: str) -> None:
    with seeded(0):
        layer = small(name)
    x = trained(layer, hook)
    stream = layer.stream(3)
    close(torch.stack([stream(step) for step in x]), layer(x)[0])


@every_hook
@pytest.mark.parametrize("kind", [RNN, LSTM, GRU])
def test_torch_twins_get_the_weights_of_now(kind: type[RNN | LSTM | GRU], hook: str) -> None:
    with seeded(0):
        ours = kind(3, 6, dtype=torch.float64)
        theirs = kind.torch_class(3, 6, dtype=torch.float64)
    x = trained(ours, hook)
    close(ours.to_torch()(x)[0], ours(x)[0])
    x = trained(theirs, hook)
    close(kind.from_torch(theirs)(x)[0], theirs(x)[0])


@every_hook
def test_the_analysis_reads_the_weights_of_now(hook: str) -> None:
    with seeded(0):
        layer = MIST(3, 6, delays=[1, 2], dtype=torch.float64)
    x = trained(layer, hook)
    mixture, derivative = attention(layer, x), ordered_derivative(layer, x[:, 0], t=5, tau=3)
    close(derivative.total, derivative.full)  # the paths are found outside of a call, the whole inside
    layer(x)  # the hook computes
    close(attention(layer, x), mixture)


@every_layer
@every_hook
def test_parameters_are_drawn_anew_under_a_hook(name: str, hook: str) -> None:
    with seeded(0):
        layer = small(name)
    x = trained(layer, hook)
    before, output = {key: value.clone() for key, value in layer.named_parameters()}, layer(x)[0]
    with seeded(2):
        layer.reset_parameters()
    assert all(not torch.equal(value, before[key]) for key, value in layer.named_parameters())
    assert not torch.equal(layer(x)[0], output)
    if hook == "weight norm":  # which then has no effect yet
        close(getattr(layer, f"{NAME}_v"), getattr(layer, NAME))


def test_a_look_at_the_weights_leaves_spectral_norm_as_it_was() -> None:
    with seeded(0):
        layer: RecurrentLayer = spectral_norm(LSTM(3, 6), NAME)
    estimate = layer.weight_hh_l0_u.clone()
    layer.stream(2)
    assert torch.equal(layer.weight_hh_l0_u, estimate)
