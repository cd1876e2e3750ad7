"""Forms of input that every layer takes: batch first, unbatched, packed; under torch.func and autocast."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pack_sequence, pad_packed_sequence

from mistrnn.kernels.cell import is_registered
from mistrnn.layers import LAYERS
from tests.layers.cases import (
    as_tuple,
    both_directions,
    close,
    every_device,
    every_layer,
    random_state,
    seeded,
    small,
)


@every_layer
@both_directions
def test_batch_first_only_transposes(name: str, bidirectional: bool) -> None:
    layer = small(name, num_layers=2, bidirectional=bidirectional)
    turned = small(name, num_layers=2, bidirectional=bidirectional, batch_first=True)
    turned.load_state_dict(layer.state_dict())
    input, reset = torch.randn(7, 2, 3, dtype=torch.float64), torch.rand(7, 2) < 0.3
    output, state = layer(input, lengths=[7, 4], reset=reset)
    turned_output, turned_state = turned(input.transpose(0, 1), lengths=[7, 4], reset=reset.transpose(0, 1))
    close(turned_output.transpose(0, 1), output, 0.0)
    close(turned_state, state, 0.0)


@every_layer
@both_directions
def test_unbatched_input_equals_a_batch_of_one(name: str, bidirectional: bool) -> None:
    layer = small(name, num_layers=2, bidirectional=bidirectional)
    input, reset = torch.randn(7, 3, dtype=torch.float64), torch.rand(7) < 0.3
    initial = random_state(layer, 1)
    squeezed = tuple(part.squeeze(-2 if part.is_floating_point() else -1) for part in as_tuple(initial))
    output, state = layer(input, squeezed if len(squeezed) > 1 else squeezed[0], reset=reset)
    batch_output, batch_state = layer(input.unsqueeze(1), initial, reset=reset.unsqueeze(1))
    close(output, batch_output.squeeze(1))
    for part, batch_part in zip(as_tuple(state), as_tuple(batch_state), strict=True):
        close(part, batch_part.squeeze(-2 if part.is_floating_point() else -1))


@every_device
@every_layer
@both_directions
@pytest.mark.parametrize("enforce_sorted", [False, True])
def test_packed_sequence_in_gives_packed_sequence_out(
    name: str, bidirectional: bool, enforce_sorted: bool, device: str
) -> None:
    layer = small(name, bidirectional=bidirectional, num_layers=2).to(device)
    lengths = [6, 6, 4, 1] if enforce_sorted else [4, 6, 1, 6]
    sequences = [torch.randn(length, 3, dtype=torch.float64, device=device) for length in lengths]
    packed = pack_sequence(sequences, enforce_sorted=enforce_sorted)
    initial = random_state(layer, 4)
    output, state = layer(packed, initial)
    assert isinstance(output, PackedSequence)
    assert torch.equal(output.batch_sizes, packed.batch_sizes)
    if not enforce_sorted:
        assert output.sorted_indices is packed.sorted_indices
        assert output.unsorted_indices is packed.unsorted_indices
    padded, own_lengths = pad_packed_sequence(output)
    expected, expected_state = layer(pad_packed_sequence(packed)[0], initial, lengths=lengths)
    assert own_lengths.tolist() == lengths
    close(padded, expected)
    close(state, expected_state)


def test_packed_lstm_equals_torch_on_packed_input() -> None:
    twin = nn.LSTM(3, 5, 2, bidirectional=True, dtype=torch.float64)
    layer = LAYERS["lstm"].from_torch(twin)
    packed = pack_padded_sequence(
        torch.randn(6, 3, 3, dtype=torch.float64), torch.tensor([2, 6, 3]), enforce_sorted=False
    )
    output, state = layer(packed)
    expected, expected_state = twin(packed)
    close(output.data, expected.data)
    close(state, expected_state)


@every_layer
def test_packed_input_works_under_torch_func(name: str) -> None:
    layer = small(name, bidirectional=True)
    sequences = [torch.randn(length, 3, dtype=torch.float64) for length in (2, 5, 3)]
    packed = pack_sequence(sequences, enforce_sorted=False)

    def loss(parameters: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(layer, parameters, (packed,))[0].data.square().sum()

    parameters = {key: value.detach() for key, value in layer.named_parameters()}
    gradients = torch.func.grad(loss)(parameters)
    expected = torch.autograd.grad(layer(packed)[0].data.square().sum(), list(layer.parameters()))
    close(tuple(gradients[key] for key, _ in layer.named_parameters()), expected)
    tangents = {key: torch.ones_like(value) for key, value in parameters.items()}
    _, derivative = torch.func.jvp(loss, (parameters,), (tangents,))
    close(derivative, sum(gradient.sum() for gradient in expected), 1e-10)


@every_layer
def test_vmap_over_lengths_resets_and_states_equals_a_loop(name: str) -> None:
    layer = small(name)
    input = torch.randn(6, 2, 3, dtype=torch.float64)
    lengths, resets = torch.tensor([[6, 2], [0, 5]]), torch.rand(2, 6, 2) < 0.3
    states = [random_state(layer, 2) for _ in range(2)]
    stacked = tuple(torch.stack(parts) for parts in zip(*map(as_tuple, states), strict=True))

    def call(parts: tuple[Tensor, ...], lengths: Tensor, reset: Tensor) -> Any:
        return layer(input, parts if len(parts) > 1 else parts[0], lengths=lengths, reset=reset)[0]

    outputs = torch.func.vmap(call)(stacked, lengths, resets)
    for k in range(2):
        close(outputs[k], layer(input, states[k], lengths=lengths[k], reset=resets[k])[0])


@every_device
@every_layer
@pytest.mark.parametrize("option", [{}, {"layer_norm": True, "zoneout": 0.2, "recurrent_dropout": 0.2}])
def test_autocast_shortens_products_and_keeps_states_in_full(
    name: str, option: dict[str, Any], device: str, backend: str
) -> None:
    layer = small(name, input_size=16, hidden_size=24, dtype=torch.float32, **option).to(device)
    input = torch.randn(5, 2, 16, device=device)
    with seeded(1):
        exact, _ = layer(input)
    with seeded(1), torch.autocast(device, dtype=torch.bfloat16):
        output, state = layer(input)
    with seeded(1), torch.autocast(device, dtype=torch.bfloat16):
        low_input, _ = layer(input.bfloat16())  # as the layer before it may hand on
    with torch.autocast(device, dtype=torch.bfloat16):
        assert copy.deepcopy(layer).double()(input.bfloat16())[0].dtype == torch.float64
    for value in (output, low_input):
        assert value.dtype == torch.float32
        error = (value - exact).norm() / exact.norm()
        if backend == "reference" or not is_registered(layer.cell) or device != "cpu":
            assert 1e-5 < error < 5e-2  # some precision is gone, and not much
        else:
            assert error < (1e-6 if value is output else 5e-2)  # the fused backends compute in full
    assert all(part.dtype == torch.float32 for part in as_tuple(state) if part.is_floating_point())
    low_state = tuple(part.bfloat16() if part.is_floating_point() else part for part in as_tuple(state))
    read = low_state if len(low_state) > 1 else low_state[0]
    with seeded(1), torch.autocast(device, dtype=torch.bfloat16):
        onwards, _ = layer(input, read)  # a state that another layer has made, say
    same = tuple(part.to(old.dtype) for part, old in zip(low_state, as_tuple(state), strict=True))
    with seeded(1), torch.autocast(device, dtype=torch.bfloat16):
        assert torch.equal(layer(input, same if len(same) > 1 else same[0])[0], onwards)
    with pytest.raises(TypeError, match=r"expected state.* of torch.float32, got torch.bfloat16"):
        layer(input, read)
    output.sum().backward()
    for parameter in layer.parameters():
        assert parameter.grad is not None
        assert parameter.grad.dtype == torch.float32
        assert parameter.grad.isfinite().all()


@every_layer
def test_calling_a_layer_changes_nothing_of_the_callers(name: str) -> None:
    layer = small(name, bidirectional=True)
    input, reset, lengths = torch.randn(5, 2, 3, dtype=torch.float64), torch.rand(5, 2) < 0.3, torch.tensor([5, 3])
    state = random_state(layer, 2)
    given: list[Tensor] = [input, reset, lengths, *as_tuple(state)]
    before = [value.clone() for value in given]
    layer(input, state, lengths=lengths, reset=reset)
    assert all(torch.equal(a, b) for a, b in zip(given, before, strict=True))


@every_layer
def test_lengths_of_fake_tensors(name: str) -> None:
    """Tools that estimate shapes and memory run a layer on tensors without values."""
    with FakeTensorMode():
        layer = LAYERS[name](3, 8)
        output, _ = layer(torch.randn(5, 2, 3), lengths=torch.tensor([5, 2]))
    assert output.shape == (5, 2, 8)
