"""Laws that hold for every layer, whatever its sizes: chunks, lengths, resets, batches, streams, directions, trials.

Each law is checked on outputs, states and, where gradients could go astray, on gradients.
"""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.func import functional_call, stack_module_state, vmap

from mistrnn.layers import LAYERS, LSTM, RecurrentLayer
from tests.layers.cases import (
    as_tuple,
    close,
    every_device,
    every_layer,
    options,
    random_state,
    randomised,
    seeded,
    seeds,
)

pytestmark = pytest.mark.usefixtures("backend")

steps_and_batches = {"steps": st.integers(1, 14), "batch": st.integers(1, 3)}


def make(name: str, chosen: dict[str, Any], seed: int, device: str) -> RecurrentLayer:
    with seeded(seed):
        return randomised(LAYERS[name](**chosen, dtype=torch.float64)).eval().to(device)


def draw_input(layer: RecurrentLayer, seed: int, steps: int, batch: int, device: str) -> Tensor:
    with seeded(seed + 1):
        return torch.randn(steps, batch, layer.input_size, dtype=torch.float64).to(device)


def at(state: Any, row: int) -> Any:
    """The state of one sequence of the batch, as a batch of one."""
    parts = tuple(
        part[..., row : row + 1, :] if part.is_floating_point() else part[..., row : row + 1]
        for part in as_tuple(state)
    )
    return parts if len(parts) > 1 else parts[0]


@every_device
@every_layer
@given(data=st.data(), seed=seeds, **steps_and_batches)
def test_chunks_with_the_state_handed_on_equal_the_whole(
    name: str, device: str, data: st.DataObject, seed: int, steps: int, batch: int
) -> None:
    layer = make(name, data.draw(options(name, bidirectional=False)), seed, device)
    input = draw_input(layer, seed, steps, batch, device).requires_grad_()
    with seeded(seed + 2):
        initial = random_state(layer, batch)
        probe = torch.randn(steps, batch, layer.output_size, dtype=torch.float64).to(device)
    for part in as_tuple(initial):
        part.requires_grad_(part.is_floating_point())
    wrt = [input, *(part for part in as_tuple(initial) if part.is_floating_point()), *layer.parameters()]
    whole, whole_state = layer(input, initial)

    cuts = sorted(data.draw(st.lists(st.integers(0, steps), max_size=steps), label="cuts"))
    outputs, state = [], initial
    for begin, end in zip([0, *cuts], [*cuts, steps], strict=True):  # chunks of length 0 and 1 among them
        output, state = layer(input[begin:end], state)
        outputs.append(output)
    chunked = torch.cat(outputs)

    close(chunked, whole)
    close(state, whole_state)

    def gradients(output: Tensor, final: Any) -> tuple[Tensor, ...]:
        loss = (output * probe).sum() + sum(part.sin().sum() for part in as_tuple(final) if part.is_floating_point())
        return torch.autograd.grad(loss, wrt)

    close(gradients(chunked, state), gradients(whole, whole_state), 1e-10)


@every_device
@every_layer
@given(data=st.data(), seed=seeds, **steps_and_batches)
def test_chunks_of_one_step_equal_the_whole(
    name: str, device: str, data: st.DataObject, seed: int, steps: int, batch: int
) -> None:
    layer = make(name, data.draw(options(name, bidirectional=False)), seed, device)
    input = draw_input(layer, seed, steps, batch, device)
    whole, whole_state = layer(input)
    outputs, state = [], None
    for x in input:
        output, state = layer(x.unsqueeze(0), state)
        outputs.append(output)
    close(torch.cat(outputs), whole)
    close(state, whole_state)


@every_device
@every_layer
@given(data=st.data(), seed=seeds, **steps_and_batches)
def test_lengths_equal_running_each_sequence_alone(
    name: str, device: str, data: st.DataObject, seed: int, steps: int, batch: int
) -> None:
    layer = make(name, data.draw(options(name)), seed, device)
    lengths = data.draw(st.lists(st.integers(0, steps), min_size=batch, max_size=batch))
    input = draw_input(layer, seed, steps, batch, device)
    for row, length in enumerate(lengths):
        input[length:, row] = float("nan")  # padding may hold anything
    input.requires_grad_()
    with seeded(seed + 2):
        initial = random_state(layer, batch)
    output, final = layer(input, initial, lengths=torch.tensor(lengths, device=device))
    (gradient, *by_parameter) = torch.autograd.grad(output.square().sum(), [input, *layer.parameters()])
    summed = [torch.zeros_like(parameter) for parameter in layer.parameters()]
    for row, length in enumerate(lengths):
        alone_input = input[:length, row : row + 1].detach().requires_grad_()
        alone, alone_final = layer(alone_input, at(initial, row))
        close(output[:length, row : row + 1], alone)
        close(at(final, row), alone_final)
        assert not output[length:, row].any()
        wrt = [alone_input, *layer.parameters()]
        (alone_gradient, *parts) = torch.autograd.grad(alone.square().sum(), wrt, materialize_grads=True)
        summed = [total + part for total, part in zip(summed, parts, strict=True)]
        close(gradient[:length, row : row + 1], alone_gradient, 1e-10)
        assert not gradient[length:, row].any()
    close(tuple(by_parameter), tuple(summed), 1e-10)


@every_device
@every_layer
@given(data=st.data(), seed=seeds, **steps_and_batches)
def test_reset_equals_cutting_the_sequence_there(
    name: str, device: str, data: st.DataObject, seed: int, steps: int, batch: int
) -> None:
    layer = make(name, data.draw(options(name)), seed, device)
    input = draw_input(layer, seed, steps, batch, device)
    with seeded(seed + 2):
        initial = random_state(layer, batch)
        reset = torch.rand(steps, batch).to(device) < data.draw(st.sampled_from([0.0, 0.2, 0.6, 1.0]))
    output, final = layer(input, initial, reset=reset)
    by_parameter = torch.autograd.grad(output.square().sum(), list(layer.parameters()))
    summed = [torch.zeros_like(parameter) for parameter in layer.parameters()]
    for row in range(batch):
        cuts = [t for t in range(1, steps) if reset[t, row]]
        pieces = list(zip([0, *cuts], [*cuts, steps], strict=True))
        for begin, end in pieces:
            # A forward state enters the first piece and leaves the last; a backward one the other way round.
            forward = at(initial, row) if begin == 0 and not reset[0, row] else None
            backward = at(initial, row) if end == steps else None
            state = join_directions(layer, forward, backward, at(initial, row))
            piece, piece_final = layer(input[begin:end, row : row + 1], state)
            close(output[begin:end, row : row + 1], piece)
            parts = torch.autograd.grad(piece.square().sum(), list(layer.parameters()))
            summed = [total + part for total, part in zip(summed, parts, strict=True)]
            for direction in range(layer.directions):
                if (begin, end) == (pieces[-1] if direction == 0 else pieces[0]):
                    close(one_direction(layer, at(final, row), direction), one_direction(layer, piece_final, direction))

    close(by_parameter, tuple(summed), 1e-10)


def one_direction(layer: RecurrentLayer, state: Any, direction: int) -> tuple[Tensor, ...]:
    return tuple(part[direction :: layer.directions] for part in as_tuple(state))


def join_directions(layer: RecurrentLayer, forward: Any, backward: Any, like: Any) -> Any:
    """A state whose forward and backward rows come from two others; None stands for zeros."""
    joined = []
    for k, part in enumerate(as_tuple(like)):
        part = torch.zeros_like(part)
        for direction, source in enumerate([forward, backward][: layer.directions]):
            if source is not None:
                part[direction :: layer.directions] = as_tuple(source)[k][direction :: layer.directions]
        joined.append(part)
    return tuple(joined) if len(joined) > 1 else joined[0]


@every_device
@every_layer
@given(data=st.data(), seed=seeds, steps=st.integers(2, 14))
def test_reset_lets_nothing_from_before_through(
    name: str, device: str, data: st.DataObject, seed: int, steps: int
) -> None:
    layer = make(name, data.draw(options(name, bidirectional=False)), seed, device)
    input = draw_input(layer, seed, steps, 1, device)
    with seeded(seed + 2):
        initial = random_state(layer, 1)
    at_step = data.draw(st.integers(1, steps - 1))
    reset = torch.zeros(steps, 1, dtype=torch.bool, device=device)
    reset[at_step] = True
    clean, clean_final = layer(input, initial, reset=reset)
    poisoned = input.clone()
    poisoned[:at_step] = float("nan")
    for part in as_tuple(initial):
        if part.is_floating_point():
            part.fill_(float("nan"))
    dirty, dirty_final = layer(poisoned, initial, reset=reset)
    assert dirty[:at_step].isnan().all()
    assert torch.equal(dirty[at_step:], clean[at_step:])
    for a, b in zip(as_tuple(dirty_final), as_tuple(clean_final), strict=True):
        assert torch.equal(a, b)


@every_device
@every_layer
@given(data=st.data(), seed=seeds, steps=st.integers(1, 10))
def test_batch_members_do_not_mix(name: str, device: str, data: st.DataObject, seed: int, steps: int) -> None:
    layer = make(name, data.draw(options(name)), seed, device)
    input = draw_input(layer, seed, steps, 3, device)
    output, _ = layer(input)
    poisoned = input.clone()
    poisoned[:, 1] = float("nan")
    dirty, dirty_final = layer(poisoned)
    close(dirty[:, [0, 2]], output[:, [0, 2]])
    assert dirty[:, 1].isnan().all()
    for row in (0, 2):
        alone, alone_final = layer(input[:, row : row + 1])
        close(dirty[:, row : row + 1], alone)
        close(at(dirty_final, row), alone_final)


@every_device
@every_layer
@given(data=st.data(), seed=seeds, **steps_and_batches)
def test_stream_equals_the_whole(
    name: str, device: str, data: st.DataObject, seed: int, steps: int, batch: int
) -> None:
    layer = make(name, data.draw(options(name, bidirectional=False)), seed, device)
    input = draw_input(layer, seed, steps, batch, device)
    with seeded(seed + 2):
        initial = random_state(layer, batch) if data.draw(st.booleans()) else None
        reset = torch.rand(steps, batch).to(device) < 0.2 if data.draw(st.booleans()) else None
    whole, whole_final = layer(input, initial, reset=reset)
    stream = layer.stream(batch, initial)
    outputs = [stream(x, None if reset is None else reset[t]) for t, x in enumerate(input)]
    close(torch.stack(outputs), whole)
    close(stream.state, whole_final)
    assert not outputs[0].requires_grad


@every_device
@every_layer
@given(data=st.data(), seed=seeds, **steps_and_batches)
def test_reversed_input_with_exchanged_directions_gives_the_reversed_output(
    name: str, device: str, data: st.DataObject, seed: int, steps: int, batch: int
) -> None:
    layer = make(name, {**data.draw(options(name, bidirectional=True)), "num_layers": 1}, seed, device)
    exchanged = make(name, layer_options(layer), seed, device)
    parameters = dict(layer.named_parameters())
    exchanged.load_state_dict(
        {
            key: parameters[key.removesuffix("_reverse") if key.endswith("_reverse") else key + "_reverse"]
            for key in parameters
        }
    )
    input = draw_input(layer, seed, steps, batch, device)
    forward, backward = layer(input)[0].chunk(2, dim=-1)
    mirrored = exchanged(input.flip(0))[0].flip(0)
    close(mirrored, torch.cat([backward, forward], dim=-1))


def layer_options(layer: RecurrentLayer) -> dict[str, Any]:
    names = ["input_size", "hidden_size", "bias", "bidirectional", "zoneout", "layer_norm"]
    names += [own for own in ("delays", "periods", "single_bias", "nonlinearity") if hasattr(layer, own)]
    names += ["proj_size"] if isinstance(layer, LSTM) else []
    return {name: getattr(layer, name) for name in names}


@every_device
@every_layer
@given(data=st.data(), seed=seeds, **steps_and_batches)
def test_second_direction_equals_a_layer_of_its_own_on_the_reversed_input(
    name: str, device: str, data: st.DataObject, seed: int, steps: int, batch: int
) -> None:
    layer = make(name, {**data.draw(options(name, bidirectional=True)), "num_layers": 1}, seed, device)
    alone = make(name, {**layer_options(layer), "bidirectional": False}, seed, device)
    alone.load_state_dict(
        {
            key.removesuffix("_reverse"): parameter
            for key, parameter in layer.named_parameters()
            if key.endswith("_reverse")
        }
    )
    input = draw_input(layer, seed, steps, batch, device)
    backward = layer(input)[0].chunk(2, dim=-1)[1]
    close(backward, alone(input.flip(0))[0].flip(0))


@every_device
@every_layer
@given(data=st.data(), seed=seeds, steps=st.integers(1, 8), per_trial_input=st.booleans())
def test_vmap_over_five_parameter_sets_equals_a_loop(
    name: str, device: str, data: st.DataObject, seed: int, steps: int, per_trial_input: bool
) -> None:
    chosen = data.draw(options(name))
    layers = [make(name, chosen, seed + k, device) for k in range(5)]
    inputs = torch.stack([draw_input(layers[0], seed + k * per_trial_input, steps, 2, device) for k in range(5)])
    lengths = torch.tensor([steps, data.draw(st.integers(0, steps))], device=device)
    with seeded(seed + 2):
        reset = torch.rand(steps, 2).to(device) < 0.2

    def call(parameters: Any, buffers: Any, x: Tensor) -> Any:
        return functional_call(layers[0], (parameters, buffers), (x,), {"lengths": lengths, "reset": reset})

    def loss(parameters: Any, buffers: Any, x: Tensor) -> Tensor:
        output: Tensor = call(parameters, buffers, x)[0]
        return output.square().sum()

    parameters, buffers = stack_module_state(list(layers))
    outputs, states = vmap(call)(parameters, buffers, inputs)
    gradients = vmap(torch.func.grad(loss))(parameters, buffers, inputs)
    for k, layer in enumerate(layers):
        output, state = layer(inputs[k], lengths=lengths, reset=reset)
        close(outputs[k], output)
        close(tuple(part[k] for part in as_tuple(states)), as_tuple(state))
        expected = torch.autograd.grad(output.square().sum(), list(layer.parameters()))
        close(tuple(gradients[n][k] for n, _ in layer.named_parameters()), expected, 1e-10)
