"""Streams of networks: state, memory and independence."""

import gc
from typing import Any

import pytest
import torch
from torch import Tensor

from mistrnn.models import Ensemble
from tests.models.streams import close, composed, every_layer, fused, rows, small, whole, without_library


@every_layer
@pytest.mark.parametrize("pooling", ["last+mean+max", None])
@pytest.mark.parametrize("backend", ["fused", "composed"])
def test_reset_of_some_sequences_lets_them_start_afresh(
    layer: str, pooling: str | None, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, x = small(layer, pooling=pooling, dtype=torch.float64), rows(40, 3)
    begins = {1: [0, 13, 14], 2: [0, 25]}  # sequence: where it begins
    expected = whole(network, x)
    for b, starts in begins.items():
        for start in starts:
            expected[start:, b] = whole(network, x[start:, b : b + 1])[:, 0]
    if backend == "composed":
        without_library(monkeypatch)
    stream = fused(network.stream(3)) if backend == "fused" else composed(network.stream(3))
    found = []
    for t, row in enumerate(x):
        reset = torch.tensor([False, *(t in begins[b] and t > 0 for b in (1, 2))])
        found.append(stream(row, reset if t % 2 or reset.any() else None))
    close(torch.stack(found), expected)


@pytest.mark.parametrize("backend", ["fused", "composed"])
def test_reset_after_nan_leaves_nothing_of_it(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    network, x = small(pooling="last+mean+max", dtype=torch.float64), rows(12, 2)
    expected = whole(network, x)
    if backend == "composed":
        without_library(monkeypatch)
    stream = network.stream(2)
    assert stream(torch.full((2, 3), torch.nan)).isnan().all()
    assert stream(x[0]).isnan().all()
    found = [stream(row, torch.ones(2, dtype=torch.bool) if t == 0 else None) for t, row in enumerate(x)]
    close(torch.stack(found), expected)


@every_layer
@pytest.mark.parametrize("pooling", ["last+mean+max", None])
@pytest.mark.parametrize("backend", ["fused", "composed"])
def test_stream_goes_on_from_a_whole_run_and_back(
    layer: str, pooling: str | None, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, x = small(layer, pooling=pooling, dtype=torch.float64), rows(40, 2)
    if backend == "composed":
        without_library(monkeypatch)
    expected = whole(network, x)
    with torch.no_grad():
        _, before = network(x[:17])
        stream = network.stream(2, before)
        close(torch.stack([stream(row) for row in x[17:29]]), expected[17:29])
        state = stream.state
        scores, _ = network(x[29:], state)
        _, at_once = network(x[:29])
    close(scores if pooling else scores[-1], expected[-1])
    assert len(state) == len(network.state_names)
    for one, other in zip(state, at_once, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_stream_of_an_ensemble_goes_on_from_its_state() -> None:
    ensemble = Ensemble([small(dtype=torch.float64), small("lstm", 16, kernel_size=1, dtype=torch.float64)]).eval()
    x, first = rows(20, 2), ensemble.stream(2)
    for row in x[:9]:
        first(row)
    second = ensemble.stream(2, first.state)
    close(torch.stack([second(row) for row in x[9:]]), whole(ensemble, x)[9:])


@pytest.mark.parametrize("backend", ["fused", "composed"])
def test_stream_shares_no_memory_with_anything(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    network, x = small(dtype=torch.float64), rows(12, 2)
    if backend == "composed":
        without_library(monkeypatch)
    expected = whole(network, x)
    with torch.no_grad():
        _, state = network(x[:3])
    stream = network.stream(2, state)
    with torch.no_grad():
        for tensor in (*state, *network.parameters(), *network.buffers()):
            tensor.zero_()
    for t, row in enumerate(x[3:], start=3):
        scores = stream(row)
        close(scores, expected[t])
        for tensor in (scores, row, *stream.state):
            tensor.zero_()


@pytest.mark.parametrize("backend", ["fused", "composed"])
def test_stream_holds_the_same_memory_after_any_number_of_steps(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if backend == "composed":
        without_library(monkeypatch)
    stream, row = small("mist").stream(2), rows(1, 2)[0]

    def alive_after(steps: int) -> tuple[int, list[torch.Size]]:
        for step in range(steps):
            stream(row, torch.tensor([step % 7 == 0, False]))
        gc.collect()
        return sum(type(thing) is Tensor for thing in gc.get_objects()), [tensor.shape for tensor in stream.state]

    assert alive_after(10) == alive_after(100)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_stream_outlives_the_mode_in_which_it_was_made(mode: Any) -> None:
    network, x = small(dtype=torch.float64), rows(10, 2)
    with mode():
        stream = network.stream(2)
        found = [stream(row) for row in x[:5]]
    found += [stream(row, torch.tensor([False, False])) for row in x[5:]]
    assert not any(scores.requires_grad for scores in found)
    close(torch.stack(found), whole(network, x))


def test_streams_of_one_network_run_apart() -> None:
    network, x = small(dtype=torch.float64), rows(10, 2)
    one, two = network.stream(), network.stream()
    found = [torch.cat([one(row[:1]), two(row[1:])]) for row in x]
    close(torch.stack(found), whole(network, x))
