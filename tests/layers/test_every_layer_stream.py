"""Every layer as a stream, a step at a time: constant memory and time, nothing shared, on and back from whole runs."""

import gc
import time

import pytest
import torch
from torch import Tensor

from tests.layers.cases import as_tuple, close, every_layer, random_state, small

pytestmark = pytest.mark.usefixtures("backend")


def tensors_alive() -> int:
    gc.collect()
    return sum(type(thing) is Tensor for thing in gc.get_objects())


@every_layer
def test_stream_holds_the_same_memory_after_any_number_of_steps(name: str) -> None:
    layer = small(name)
    stream = layer.stream(2)

    def go_on(steps: int) -> None:
        for step in range(steps):
            stream(torch.randn(2, 3, dtype=torch.float64), torch.tensor([step % 7 == 0, False]))

    go_on(10)
    before = tensors_alive()
    go_on(100)
    assert tensors_alive() == before


@every_layer
def test_stream_takes_the_same_time_after_any_number_of_steps(name: str) -> None:
    stream, x = small(name).stream(1), torch.randn(1, 3, dtype=torch.float64)

    def fastest(steps: int) -> float:
        times = []
        for _ in range(steps):
            start = time.perf_counter()
            stream(x)
            times.append(time.perf_counter() - start)
        return min(times)

    early = fastest(100)
    for _ in range(2000):
        stream(x)
    assert fastest(100) < 3 * early


@every_layer
def test_stream_shares_no_memory_with_its_caller(name: str) -> None:
    layer = small(name, num_layers=2)
    input, initial = torch.randn(6, 2, 3, dtype=torch.float64), random_state(layer, 2)
    whole = layer(input, initial)[0]
    stream = layer.stream(2, initial)
    for part in as_tuple(initial):
        part.zero_()
    for t, x in enumerate(input):
        output = stream(x)
        close(output, whole[t])
        output.fill_(7.0)
        for part in as_tuple(stream.state):
            part.zero_()


@every_layer
def test_stream_keeps_the_weights_it_was_made_with(name: str) -> None:
    layer = small(name)
    input = torch.randn(4, 2, 3, dtype=torch.float64)
    whole = layer(input)[0]
    stream = layer.stream(2)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.zero_()
    close(torch.stack([stream(x) for x in input]), whole)


@every_layer
def test_stream_goes_on_from_a_whole_run_and_back(name: str) -> None:
    layer = small(name, num_layers=2)
    input = torch.randn(12, 2, 3, dtype=torch.float64)
    whole, whole_state = layer(input)
    _, state = layer(input[:5])
    stream = layer.stream(2, state)
    middle = torch.stack([stream(x) for x in input[5:8]])
    rest, last = layer(input[8:], stream.state)
    close(torch.cat([middle, rest]), whole[5:])
    close(last, whole_state)


@every_layer
def test_stream_refuses_a_forward_of_ones_own(name: str) -> None:
    layer = small(name)
    layer.forward = lambda *arguments, **options: None  # type: ignore[assignment, method-assign]
    with pytest.raises(TypeError, match=f"{type(layer).__name__}.stream: expected a layer with the forward of mistrnn"):
        layer.stream(2)
