"""Every layer equals an independent NumPy evaluation of its equations, in float64, to 1e-12."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from mistrnn.layers import LAYERS, RecurrentLayer
from mistrnn.layers.sequence_mask import SequenceMask
from tests.layers import numpy_equations
from tests.layers.cases import as_tuple, close, every_layer, options, random_state, randomised, seeded, seeds

pytestmark = pytest.mark.usefixtures("backend")


def numpy_run(
    name: str,
    layer: RecurrentLayer,
    input: Tensor,
    state: Any = None,
    lengths: list[int] | None = None,
    reset: Tensor | None = None,
    draws_seed: int | None = None,
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """What `layer(input, state, lengths=..., reset=...)` should return, from numpy_equations; input is [T, B, I]."""
    steps, batch, _ = input.shape
    hidden, directions, has_c = layer.hidden_size, layer.directions, "c" in layer.cell.state
    size = layer.state_sizes[0]
    ends = lengths if lengths is not None else [steps] * batch
    masks = draw_masks(layer, steps, batch, draws_seed)
    memory_size = max(getattr(layer, "delays", [1]))
    parts = [part.numpy() for part in as_tuple(state)] if state is not None else None
    finals_h = np.zeros((layer.num_layers * directions, memory_size, batch, size))
    finals_c = np.zeros((layer.num_layers * directions, batch, hidden))
    finals_clock = np.zeros((layer.num_layers * directions, batch), dtype=np.int64)
    output = np.zeros((steps, batch, directions * size))
    for b in range(batch):
        xs = input[: ends[b], b].numpy()
        starts = [t for t in range(ends[b]) if reset is not None and reset[t, b]]
        for k in range(layer.num_layers):
            ways = []
            for direction in range(directions):
                index = k * directions + direction
                suffix = f"_l{k}" + ("_reverse" if direction else "")
                weights = {
                    full[: -len(suffix)]: parameter.detach().numpy()
                    for full, parameter in layer.named_parameters()
                    if full.endswith(suffix)
                }
                dropout_mask, zoneout_masks = masks[index]
                piece = numpy_equations.Piece(
                    name,
                    weights,
                    hidden,
                    delays=getattr(layer, "delays", ()),
                    periods=getattr(layer, "periods", ()),
                    nonlinearity=getattr(layer, "nonlinearity", "tanh"),
                    zoneout=layer.zoneout,
                    zoneout_masks=[mask[:, b] for mask in zoneout_masks],
                    dropout_mask=None if dropout_mask is None else dropout_mask[b],
                )
                memory = numpy_equations.Memory([np.zeros(size)] * memory_size, np.zeros(hidden), 0, size)
                if parts is not None:
                    first = parts[1][index] if layer.cell.keeps_history else parts[0][index][None]
                    memory.history = [first[m, b] for m in range(memory_size)]
                    memory.c = parts[1][index, b] if has_c else memory.c
                    memory.clock = int(parts[1][index, b]) if name == "clockwork" else 0
                if direction == 0:
                    hs, memory = numpy_equations.run_sequence(piece, xs, memory, starts)
                else:
                    # Cut at the resets, take the pieces from last to first, each backwards.
                    cuts = [0, *(t for t in starts if t > 0), ends[b]]
                    lengths_backwards = [end - begin for begin, end in pairwise(cuts)][::-1]
                    begins = np.cumsum(lengths_backwards)[:-1].tolist()
                    hs, memory = numpy_equations.run_sequence(piece, xs[::-1], memory, begins)
                    hs = hs[::-1]
                ways.append(np.array(hs).reshape(ends[b], size))
                for m in range(memory_size):
                    finals_h[index, m, b] = memory.h(memory_size - m)
                finals_c[index, b], finals_clock[index, b] = memory.c, memory.clock
            xs = np.concatenate(ways, axis=1)
        output[: ends[b], b] = xs
    history = torch.from_numpy(finals_h)
    extra = [history] * layer.cell.keeps_history + [torch.from_numpy(finals_c)] * has_c
    extra += [torch.from_numpy(finals_clock)] * layer.cell.has_clock
    return torch.from_numpy(output), (history[:, -1], *extra)


def draw_masks(layer: RecurrentLayer, steps: int, batch: int, seed: int | None) -> list[tuple[Any, list[Any]]]:
    """The masks that a training run draws after this seed: (recurrent dropout, zoneouts) per layer and direction."""
    masks: list[tuple[Any, list[Any]]] = []
    mask = SequenceMask(steps, batch, torch.device("cpu"))
    with seeded(seed or 0):
        for _ in range(layer.num_layers * layer.directions):
            dropout = layer.draw_dropout(mask, torch.empty(0, dtype=torch.float64))
            zoneout = layer.draw_zoneout(mask, torch.empty(0, dtype=torch.float64))
            zoneout_masks = [kept.numpy() for kept in zoneout] if isinstance(zoneout, tuple) else []
            masks.append((None if dropout is None else dropout.numpy(), zoneout_masks))
    return masks


@every_layer
@settings(max_examples=60)
@given(data=st.data(), seed=seeds, steps=st.integers(1, 14), batch=st.integers(1, 3))
def test_layer_random_sizes_equals_numpy(name: str, data: st.DataObject, seed: int, steps: int, batch: int) -> None:
    chosen = data.draw(options(name))
    with seeded(seed):
        layer = randomised(LAYERS[name](**chosen, dtype=torch.float64)).eval()
        input = torch.randn(steps, batch, layer.input_size, dtype=torch.float64)
        state = random_state(layer, batch) if data.draw(st.booleans()) else None
        reset = torch.rand(steps, batch) < 0.25 if data.draw(st.booleans()) else None
    lengths = data.draw(st.none() | st.lists(st.integers(0, steps), min_size=batch, max_size=batch))
    output, final = layer(input, state, lengths=lengths, reset=reset)
    expected_output, expected_final = numpy_run(name, layer, input, state, lengths, reset)
    close(output, expected_output)
    close(final, expected_final)


@every_layer
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("layer_norm", [False, True])
def test_layer_in_training_with_masks_equals_numpy(name: str, bidirectional: bool, layer_norm: bool) -> None:
    chosen: dict[str, Any] = {"mist": {"delays": [1, 2, 5]}, "narx": {"delays": [2, 3]}, "clockwork": {"periods": 3}}
    layer = randomised(
        LAYERS[name](
            2,
            6,
            2,
            bidirectional=bidirectional,
            layer_norm=layer_norm,
            zoneout=0.4,
            recurrent_dropout=0.3,
            dtype=torch.float64,
            **chosen.get(name, {}),
        )
    )
    input = torch.randn(9, 3, 2, dtype=torch.float64)
    reset = torch.rand(9, 3) < 0.2
    lengths = [9, 4, 0]
    with seeded(5):
        output, final = layer(input, lengths=lengths, reset=reset)
    expected_output, expected_final = numpy_run(name, layer, input, None, lengths, reset, draws_seed=5)
    close(output, expected_output)
    close(final, expected_final)


@every_layer
def test_layer_draws_masks_at_the_stated_rates(name: str) -> None:
    layer = LAYERS[name](1, 24, zoneout=0.2, recurrent_dropout=0.5)
    mask = SequenceMask(50, 40, torch.device("cpu"))
    with seeded(0):
        dropout = layer.draw_dropout(mask, torch.empty(0, dtype=torch.float64))
        zoneout = layer.draw_zoneout(mask, torch.empty(0, dtype=torch.float64))
    assert dropout is not None
    assert isinstance(zoneout, tuple)
    assert set(dropout.unique().tolist()) == {0.0, 2.0}
    assert dropout.mean().item() == pytest.approx(1.0, abs=0.1)
    for mask in zoneout:
        assert mask.shape == (50, 40, 24)
        assert mask.double().mean().item() == pytest.approx(0.2, abs=0.01)
        assert not torch.equal(mask[0], mask[1])
    assert len(zoneout) == len(layer.cell.state)
    assert all(not torch.equal(zoneout[0], other) for other in zoneout[1:])


@every_layer
def test_layer_in_evaluation_draws_nothing(name: str) -> None:
    layer = LAYERS[name](2, 8, 2, zoneout=0.2, recurrent_dropout=0.5, dropout=0.5).eval()
    input = torch.randn(5, 3, 2)
    assert torch.equal(layer(input)[0], layer(input)[0])
    layer.train()
    assert not torch.equal(layer(input)[0], layer(input)[0])
