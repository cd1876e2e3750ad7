"""The layers that every contract test runs over, and random members of each kind."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

from mistrnn.kernels.cell import cells, is_registered
from mistrnn.layers import LAYERS, HistoryState, RecurrentLayer
from mistrnn.layers.torch_twin import TorchTwin

NAMES = list(LAYERS)
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]

every_layer = pytest.mark.parametrize("name", NAMES)
every_fused_layer = pytest.mark.parametrize("name", [name for name in NAMES if is_registered(LAYERS[name].cell)])
every_cuda_layer = pytest.mark.parametrize("name", [cell.name for cell in cells() if cell.cuda])
both_directions = pytest.mark.parametrize("bidirectional", [False, True])
every_device = pytest.mark.parametrize("device", DEVICES)

REGULARISERS: dict[str, dict[str, Any]] = {
    "plain": {},
    "zoneout": {"zoneout": 0.3},
    "recurrent_dropout": {"recurrent_dropout": 0.4},
    "layer_norm": {"layer_norm": True},
    "zoneout+recurrent_dropout": {"zoneout": 0.3, "recurrent_dropout": 0.4},
    "zoneout+layer_norm": {"zoneout": 0.3, "layer_norm": True},
    "recurrent_dropout+layer_norm": {"recurrent_dropout": 0.4, "layer_norm": True},
    "all": {"zoneout": 0.3, "recurrent_dropout": 0.4, "layer_norm": True},
}


def small(name: str, *, input_size: int = 3, hidden_size: int = 6, **options: Any) -> RecurrentLayer:
    """A small layer in float64 whose parameters, biases and gains included, are all random and count."""
    if name in ("mist", "narx"):
        options.setdefault("delays", [1, 3, 4])
    if name == "clockwork":
        options.setdefault("periods", [1, 2, 3])
    options.setdefault("dtype", torch.float64)
    return randomised(LAYERS[name](input_size, hidden_size, **options))


def randomised(layer: RecurrentLayer) -> RecurrentLayer:
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_(0.0, 0.7)
    return layer


def needs_fused_backend(name: str) -> None:
    """Skip the test for a layer that has only the reference backend."""
    if not is_registered(LAYERS[name].cell):
        pytest.skip(f"{LAYERS[name].__name__} has only the reference backend")


def as_tuple(state: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return state if isinstance(state, tuple) else (state,)


def random_state(layer: RecurrentLayer, batch: int) -> Any:
    """A state that is no state of a run: random values, and for Clockwork a random clock."""
    like = next(layer.parameters())
    empty = torch.empty(0, batch, layer.input_size, dtype=like.dtype, device=like.device)
    if layer.batch_first:
        empty = empty.transpose(0, 1)
    zeros = as_tuple(layer(empty)[1])
    parts = tuple(torch.randn_like(z) if z.is_floating_point() else torch.randint_like(z, 0, 7) for z in zeros)
    if layer.cell.keeps_history:
        return HistoryState(parts[1][:, -1].clone(), parts[1])
    return parts if len(parts) > 1 else parts[0]


@contextmanager
def probing(layer: RecurrentLayer, really: bool = True) -> Iterator[dict[str, Tensor]]:
    """Put zeros beside all states of a layer and give them by name: "probe 0 h" of the first layer and direction."""
    probes: dict[str, Tensor] = {}
    if not really:
        yield probes
        return
    like = next(layer.parameters())

    def new(index: int, steps: int, batch: int) -> tuple[Tensor, ...]:
        zero = torch.zeros((), dtype=like.dtype, device=like.device)
        sizes = zip(layer.cell.state, layer.state_sizes, strict=True)
        made = {f"probe {index} {c}": zero.expand(steps, batch, size) for c, size in sizes}
        probes.update({name: value.requires_grad_() for name, value in made.items()})
        return tuple(made.values())

    with layer.probed(new):
        yield probes


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Draw from this seed inside, and leave the generator as it was."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        yield


@st.composite
def options(draw: st.DrawFn, name: str, *, bidirectional: bool | None = None) -> dict[str, Any]:
    """Arguments of a random layer of this kind."""
    chosen: dict[str, Any] = {
        "input_size": draw(st.integers(1, 4)),
        "hidden_size": draw(st.integers(2, 5)),
        "num_layers": draw(st.integers(1, 2)),
        "bias": draw(st.booleans()),
        "bidirectional": draw(st.booleans()) if bidirectional is None else bidirectional,
        "zoneout": draw(st.sampled_from([0.0, 0.25])),
        "layer_norm": draw(st.booleans()),
    }
    if name in ("mist", "narx"):
        chosen["delays"] = draw(st.lists(st.integers(1, 9), min_size=1, max_size=4, unique=True))
    if name == "clockwork":
        chosen["periods"] = draw(st.lists(st.integers(1, 6), min_size=1, max_size=3, unique=True))
        chosen["hidden_size"] = len(chosen["periods"]) * draw(st.integers(2, 3))
    if issubclass(LAYERS[name], TorchTwin):
        chosen["single_bias"] = draw(st.booleans())
    if name == "rnn":
        chosen["nonlinearity"] = draw(st.sampled_from(["tanh", "relu"]))
    if name == "lstm":
        chosen["proj_size"] = draw(st.sampled_from([0, 0, 1, chosen["hidden_size"] - 1]))
    return chosen


seeds = st.integers(0, 2**16)


def close(actual: Any, expected: Any, tolerance: float = 1e-12) -> None:
    """Assert that two tensors, or tuples of them, are equal up to float64's roundings."""
    for a, e in zip(as_tuple(actual), as_tuple(expected), strict=True):
        torch.testing.assert_close(a, e, rtol=tolerance, atol=tolerance)
