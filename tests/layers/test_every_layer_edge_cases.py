"""Edge cases of every layer: no steps, no sequences, numbers of NumPy."""

from typing import Any

import numpy as np
import torch

from mistrnn.layers import LAYERS
from tests.layers.cases import every_layer


@every_layer
def test_no_steps_give_no_output_and_the_same_state(name: str) -> None:
    layer = LAYERS[name](3, 8)
    _, state = layer(torch.randn(4, 2, 3))
    output, same = layer(torch.zeros(0, 2, 3), state)
    assert output.shape == (0, 2, 8)
    for a, b in zip(
        state if isinstance(state, tuple) else (state,), same if isinstance(same, tuple) else (same,), strict=True
    ):
        assert torch.equal(a, b)


@every_layer
def test_numpy_numbers_are_welcome(name: str) -> None:
    options: dict[str, Any] = {"mist": {"delays": np.array([1, 3])}, "narx": {"delays": np.int32(2)}}
    layer = LAYERS[name](np.int64(3), np.int64(8), zoneout=np.float32(0.5), bias=np.True_, **options.get(name, {}))
    assert layer(torch.zeros(5, 2, 3), lengths=np.array([5, 2]))[0].shape == (5, 2, 8)


@every_layer
def test_numpy_bools_become_those_of_python(name: str) -> None:
    names = ("bias", "batch_first", "bidirectional", "layer_norm")
    layer = LAYERS[name](3, 16, **dict.fromkeys(names, np.True_))
    assert all(getattr(layer, argument) is True for argument in names)


@every_layer
def test_empty_batch_gives_an_empty_output(name: str) -> None:
    layer = LAYERS[name](3, 8, bidirectional=True)
    reset = torch.zeros(4, 0, dtype=torch.bool)
    output, state = layer(torch.zeros(4, 0, 3), lengths=[], reset=reset)
    assert output.shape == (4, 0, 16)
    output.sum().backward()
    again, _ = layer(torch.zeros(4, 0, 3), state)
    assert again.shape == (4, 0, 16)
