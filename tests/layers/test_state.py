"""The state of MIST and NARX in the hands of code that was written for torch.nn.LSTM and torch.nn.GRU."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import vmap

from mistrnn import HistoryState
from mistrnn.layers import LAYERS, RecurrentLayer
from tests.layers.cases import close, random_state, small

with_history = pytest.mark.parametrize("name", [name for name in LAYERS if LAYERS[name].cell.keeps_history])
stacks = pytest.mark.parametrize(("num_layers", "bidirectional"), [(1, False), (2, False), (1, True), (2, True)])


def inputs(steps: int = 6) -> Tensor:
    return torch.randn(steps, 2, 3, dtype=torch.float64)


# Idioms of code for torch.nn.LSTM: each is right.


@with_history
@stacks
def test_idiom_h_of_the_last_layer_is_its_newest_output(name: str, num_layers: int, bidirectional: bool) -> None:
    layer = small(name, num_layers=num_layers, bidirectional=bidirectional)
    output, (h, _) = layer(inputs())
    forward, backward = output[-1, :, :6], output[0, :, 6:]
    close(h[-1], backward if bidirectional else forward)
    if bidirectional:
        close(h[-2], forward)
    views = h.view(num_layers, layer.directions, 2, 6)  # as torch documents it
    close(views[-1, 0], forward)


@with_history
@stacks
def test_idiom_h_of_the_last_layer_carries_the_gradient_of_every_layer(
    name: str, num_layers: int, bidirectional: bool
) -> None:
    layer = small(name, num_layers=num_layers, bidirectional=bidirectional)
    _, (h, _) = layer(inputs())
    h[-layer.directions :].square().sum().backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in layer.parameters())


@with_history
def test_idiom_hidden_of_the_tuple_is_h(name: str) -> None:
    layer = small(name, num_layers=2)
    output, hidden = layer(inputs())
    close(hidden[0][-1], output[-1])
    assert hidden.h is hidden[0]
    assert hidden.history is hidden[1]


@with_history
def test_idiom_detached_pair_goes_on_from_the_same_state(name: str) -> None:
    layer = small(name, num_layers=2)
    x = inputs(9)
    whole = layer(x)[0]
    output, state = layer(x[:4])
    state = tuple(part.detach() for part in state)
    onwards, _ = layer(x[4:], state)
    close(torch.cat([output, onwards]), whole)


@with_history
def test_idiom_masked_pair_starts_those_sequences_afresh(name: str) -> None:
    layer = small(name)
    x, begins = inputs(9), torch.tensor([1.0, 0.0], dtype=torch.float64)
    _, (h, history) = layer(x[:4])
    keep = (1 - begins).view(1, -1, 1)
    output, _ = layer(x[4:], (keep * h, keep * history))
    close(output[:, 0], layer(x[4:])[0][:, 0])
    close(output[:, 1], layer(x)[0][4:, 1])


# Idioms of code for torch.nn.GRU: each raises.


@with_history
@pytest.mark.parametrize("index", [-1, -2, 2, slice(-1, None), slice(None), (slice(None), -1)])
def test_idiom_state_without_unpacking_raises(name: str, index: Any) -> None:
    layer = small(name, num_layers=2)
    _, state = layer(inputs())
    with pytest.raises(
        TypeError, match=r"^HistoryState: expected index 0 \(h\) or 1 \(history\), because .* unpack it"
    ):
        state[index]


@with_history
def test_idiom_joining_two_directions_without_unpacking_raises(name: str) -> None:
    _, state = small(name, bidirectional=True)(inputs())
    with pytest.raises(TypeError, match="expected index 0"):
        torch.cat([state[-2], state[-1]], -1)
    with pytest.raises(RuntimeError, match="number of dimensions"):
        torch.cat([state[0], state[1]], -1)


@with_history
def test_idiom_state_without_unpacking_raises_when_compiled(name: str) -> None:
    layer = small(name, num_layers=2)
    with pytest.raises(Exception, match=r"expected index 0 \(h\) or 1 \(history\)"):
        torch.compile(lambda x: layer(x)[1][-1], backend="eager")(inputs())


# What a layer takes.


@with_history
def test_h_alone_starts_from_it_with_zeros_before(name: str) -> None:
    layer = small(name, num_layers=2)
    x, h = inputs(), torch.randn(2, 2, 6, dtype=torch.float64)
    history = torch.zeros(2, 4, 2, 6, dtype=torch.float64)
    history[:, -1] = h
    expected, expected_state = layer(x, (h, history))
    for state in (h, (h,)):
        output, found = layer(x, state)
        close(output, expected, 0.0)
        close(found, expected_state, 0.0)


@with_history
def test_h_alone_of_unbatched_input_starts_from_it(name: str) -> None:
    layer = small(name)
    x, h = inputs(), torch.randn(1, 2, 6, dtype=torch.float64)
    close(layer(x[:, 0], h[:, 0])[0], layer(x, h)[0][:, 0], 0.0)


@with_history
def test_h_counts_where_the_history_differs(name: str) -> None:
    layer = small(name)
    x, (h, history) = inputs(), random_state(layer, 2)
    other = torch.randn_like(h)
    changed = history.clone()
    changed[:, -1] = other
    close(layer(x, HistoryState(other, history))[0], layer(x, HistoryState(other, changed))[0], 0.0)
    assert not torch.allclose(layer(x, HistoryState(other, history))[0], layer(x, HistoryState(h, history))[0])


@with_history
@pytest.mark.parametrize("batched", [True, False])
def test_history_alone_is_taken_with_a_warning(name: str, batched: bool) -> None:
    layer = small(name)
    x, state = inputs(), random_state(layer, 2)
    x, state = (x, state) if batched else (x[:, 0], HistoryState(state.h[:, 0], state.history[:, :, 0]))
    with pytest.warns(DeprecationWarning, match=f"^{type(layer).__name__}: a history alone as the state is deprecated"):
        output, _ = layer(x, state.history)
    close(output, layer(x, state)[0], 0.0)


@with_history
def test_state_goes_through_vmap_and_pytrees(name: str) -> None:
    layer: RecurrentLayer = small(name)
    x, states = torch.stack([inputs(), inputs()]), [random_state(layer, 2) for _ in range(2)]
    stacked = HistoryState(*map(torch.stack, zip(*states, strict=True)))
    assert isinstance(stacked, HistoryState)
    _, after = vmap(layer)(x, stacked)
    assert isinstance(after, HistoryState)
    for k in range(2):
        close(tuple(part[k] for part in after), tuple(layer(x[k], states[k])[1]))


@with_history
def test_readout_of_a_model_for_lstm_learns_with_two_layers(name: str) -> None:
    """The line of every LSTM tutorial, whose second layer got no gradient when the state was one tensor."""
    layer, readout = small(name, num_layers=2), nn.Linear(6, 1, dtype=torch.float64)
    _, (h, _) = layer(inputs())
    readout(h[-1]).sum().backward()
    assert layer.weight_hh_l1.grad is not None
    assert layer.weight_hh_l1.grad.any()
