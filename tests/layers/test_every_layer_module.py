"""Every layer has the habits of torch.nn's recurrent modules."""

import copy
import io
import pickle
import time
from inspect import Parameter, signature
from typing import Any

import pytest
import torch
from torch import nn

from mistrnn.layers import LAYERS, RecurrentLayer
from mistrnn.layers.torch_twin import TorchTwin
from tests.layers.cases import (
    as_tuple,
    both_directions,
    close,
    every_device,
    every_layer,
    needs_fused_backend,
    random_state,
    seeded,
    small,
)

pytestmark = pytest.mark.usefixtures("backend")


@every_layer
@both_directions
def test_shapes_are_those_of_torch(name: str, bidirectional: bool) -> None:
    layer, twin = LAYERS[name](3, 8, 2, bidirectional=bidirectional), nn.RNN(3, 8, 2, bidirectional=bidirectional)
    input = torch.randn(5, 4, 3)
    output, state = layer(input)
    expected_output, expected_state = twin(input)
    last = as_tuple(state)[0]
    assert output.shape == expected_output.shape
    assert last.shape == expected_state.shape
    torch.testing.assert_close(last[-layer.directions], output[-1, :, :8])


@every_layer
def test_arguments_by_position_are_those_of_torch(name: str) -> None:
    own: dict[str, Any] = {"mist": {"delays": 3}, "narx": {"delays": 3}, "clockwork": {"periods": 4}}.get(name, {})
    nonlinearity = ["tanh"] if name == "rnn" else []
    by_position = LAYERS[name](3, 8, 2, *nonlinearity, False, True, 0.5, True, **own)
    twin = nn.LSTM(3, 8, 2, False, True, 0.5, True)
    for argument in ("input_size", "hidden_size", "num_layers", "bias", "batch_first", "dropout", "bidirectional"):
        assert getattr(by_position, argument) == getattr(twin, argument)
    assert by_position(torch.zeros(2, 5, 3))[0].shape == twin(torch.zeros(2, 5, 3))[0].shape
    by_name = LAYERS[name](
        **own, bidirectional=True, dropout=0.5, batch_first=True, bias=False, num_layers=2, hidden_size=8, input_size=3
    )
    assert repr(by_name) == repr(by_position)
    with pytest.raises(TypeError, match="positional arguments"):
        LAYERS[name](3, 8, 2, *nonlinearity, False, True, 0.5, True, 0, None, None, None)


@every_layer
def test_flatten_parameters_can_be_called_and_changes_nothing(name: str) -> None:
    with seeded(0):
        layer, input = small(name), torch.randn(5, 2, 3, dtype=torch.float64)
    before, places = layer(input)[0], [parameter.data_ptr() for parameter in layer.parameters()]
    layer.flatten_parameters()
    assert torch.equal(layer(input)[0], before)
    assert [parameter.data_ptr() for parameter in layer.parameters()] == places


@every_layer
def test_deepcopy_is_equal_and_independent(name: str) -> None:
    layer = small(name, num_layers=2, bidirectional=True, layer_norm=True)
    twin = copy.deepcopy(layer)
    input = torch.randn(5, 2, 3, dtype=torch.float64)
    before = layer(input)[0]
    assert torch.equal(twin(input)[0], before)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.add_(1.0)
    assert torch.equal(layer(input)[0], before)


@every_layer
def test_pickled_module_is_equal(name: str) -> None:
    layer = small(name, num_layers=2)
    input = torch.randn(5, 2, 3, dtype=torch.float64)
    assert torch.equal(pickle.loads(pickle.dumps(layer))(input)[0], layer(input)[0])


@every_layer
def test_parametrised_weights_work_and_can_be_reset(name: str) -> None:
    layer = small(name)
    input = torch.randn(5, 2, 3, dtype=torch.float64)
    before = layer(input)[0]
    calls = []
    nn.utils.parametrizations.weight_norm(layer, "weight_hh_l0")
    layer.parametrizations.weight_hh_l0.register_forward_hook(lambda *_: calls.append(1))
    close(layer(input)[0], before)
    assert len(calls) == 1  # computed once a call
    layer.reset_parameters()
    after = layer(input)[0]
    assert after.isfinite().all()
    assert not torch.equal(after, before)


@every_layer
def test_module_compiles_and_exports_whole(name: str) -> None:
    layer = small(name, zoneout=0.2, layer_norm=True).eval()
    input, lengths, reset = torch.randn(3, 2, 3, dtype=torch.float64), torch.tensor([3, 2]), torch.rand(3, 2) < 0.3
    expected, expected_state = layer(input, lengths=lengths, reset=reset)
    torch._dynamo.reset()
    compiled = torch.compile(layer, fullgraph=True, backend="eager")
    output, state = compiled(input, lengths=lengths, reset=reset)
    close(output, expected)
    close(state, expected_state)
    exported = torch.export.export(layer, (input,), {"lengths": lengths, "reset": reset}).module()
    close(exported(input, lengths=lengths, reset=reset)[0], expected)


@every_layer
def test_skip_init_makes_the_layer_without_drawing(name: str) -> None:
    layer = nn.utils.skip_init(LAYERS[name], 3, 8)
    assert layer(torch.zeros(2, 1, 3))[0].shape == (2, 1, 8)


def test_constructor_that_hands_on_options_shows_what_it_takes() -> None:
    shared = list(signature(RecurrentLayer).parameters)

    class Behind(LAYERS["mist"]):  # type: ignore[misc]
        def __init__(self, *arguments: Any, leak: float = 0.5, **options: Any) -> None:
            super().__init__(*arguments, **options)

    class ByName(Behind):
        def __init__(self, input_size: int, hidden_size: int, *, more: int = 1, **options: Any) -> None:
            super().__init__(input_size, hidden_size, **options)

    class Written(Behind):
        def __init__(self, input_size: int, device: Any = None) -> None:
            super().__init__(input_size, 4, device=device)

    class Inherited(Behind):
        pass

    class InNoOrder(Behind):
        def __init__(self, leak: float = 0.5, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, leak=leak, **options)

    assert list(signature(Behind).parameters) == [*shared[:7], "leak", "delays", *shared[7:]]
    assert signature(Inherited) == signature(Behind)
    kinds = {name: argument.kind for name, argument in signature(ByName).parameters.items()}
    assert set(kinds) == {"more", *signature(Behind).parameters}
    assert [name for name, kind in kinds.items() if kind is not Parameter.KEYWORD_ONLY] == ["input_size", "hidden_size"]
    assert list(signature(Written).parameters) == ["input_size", "device"]
    assert list(signature(InNoOrder).parameters) == ["leak", "arguments", "options"]
    for kind in (Behind, ByName, Inherited):
        assert nn.utils.skip_init(kind, 3, 8)(torch.zeros(2, 1, 3))[0].shape == (2, 1, 8)


@every_layer
def test_state_dict_round_trip_restores_the_layer(name: str) -> None:
    layer, other = small(name, layer_norm=True), small(name, layer_norm=True)
    stored = io.BytesIO()
    torch.save(layer.state_dict(), stored)
    stored.seek(0)
    other.load_state_dict(torch.load(stored, weights_only=True))
    input = torch.randn(5, 2, 3, dtype=torch.float64)
    assert torch.equal(layer(input)[0], other(input)[0])


@every_layer
def test_parameters_carry_torch_names(name: str) -> None:
    weights = {"weight_ih", "weight_hh", *(["weight_ch"] if name == "peephole_lstm" else [])}
    twin = issubclass(LAYERS[name], TorchTwin)
    for options in ({}, {"single_bias": True})[: 1 + twin]:
        layer = LAYERS[name](3, 8, 2, bidirectional=True, **options)
        biases = {"bias_ih", "bias_hh"} if twin and not options else {"bias", *(["bias_hn"] if name == "gru" else [])}
        expected = {f"{kind}_l{k}{end}" for kind in weights | biases for k in range(2) for end in ("", "_reverse")}
        assert set(layer.state_dict()) == expected
    assert set(LAYERS[name](3, 8, bias=False).state_dict()) == {f"{kind}_l0" for kind in weights}
    assert "gain_l0" in LAYERS[name](3, 16, layer_norm=True).state_dict()


@every_layer
def test_layer_made_on_meta_and_materialised_works(name: str) -> None:
    layer = LAYERS[name](3, 8, device="meta").to_empty(device="cpu")
    layer.reset_parameters()
    assert layer(torch.randn(5, 2, 3))[0].isfinite().all()


@every_device
@every_layer
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_output_and_state_follow_the_parameters_dtype_and_device(name: str, dtype: torch.dtype, device: str) -> None:
    layer = LAYERS[name](3, 8, dtype=dtype, device=device)
    output, state = layer(torch.randn(5, 2, 3, dtype=dtype, device=device))
    moved, _ = LAYERS[name](3, 8).to(device=device, dtype=dtype)(torch.randn(5, 2, 3, dtype=dtype, device=device))
    for value in (output, moved, *(part for part in as_tuple(state) if part.is_floating_point())):
        assert value.dtype == dtype
        assert value.device.type == device
        assert value.isfinite().all()


@pytest.mark.parametrize("name", ["rnn", "lstm", "peephole_lstm", "gru", "clockwork"])
@pytest.mark.parametrize("num_layers", [1, 2])
def test_a_state_can_be_detached_in_place(name: str, num_layers: int) -> None:
    layer = small(name, num_layers=num_layers)
    _, state = layer(torch.randn(5, 2, 3, dtype=torch.float64))
    for part in as_tuple(state):
        assert not part.detach_().requires_grad


@every_layer
def test_dropout_acts_between_layers_only(name: str) -> None:
    layer = small(name, num_layers=2, dropout=1.0)
    input = torch.randn(5, 2, 3, dtype=torch.float64)
    first, second = layer(input)[0], layer(torch.randn_like(input))[0]
    assert torch.equal(first, second)  # nothing comes through to the second layer
    assert first.any()  # and its own output is not dropped
    layer.eval()
    assert not torch.equal(layer(input)[0], first)


@every_layer
def test_repr_shows_what_differs_from_the_defaults(name: str) -> None:
    kind = LAYERS[name]
    own = {"mist": ", delays=[1, 2, 4]", "narx": ", delays=[1, 2, 3]", "clockwork": ", periods=[1, 2, 4]"}.get(name, "")
    count: dict[str, Any] = {"mist": {"delays": 3}, "narx": {"delays": 3}, "clockwork": {"periods": 3}}.get(name, {})
    assert repr(kind(3, 6, **count)) == f"{kind.__name__}(3, 6{own})"
    full = kind(3, 6, 2, bias=False, batch_first=True, dropout=0.1, bidirectional=True, zoneout=0.2, **count)
    assert repr(full) == (
        f"{kind.__name__}(3, 6, num_layers=2{own}, bias=False, batch_first=True, dropout=0.1, bidirectional=True, "
        "zoneout=0.2)"
    )


@every_layer
def test_parameters_start_as_in_the_paper(name: str) -> None:
    with seeded(0):
        layer = LAYERS[name](40, 64, 2, layer_norm=True)
    for key, parameter in layer.named_parameters():
        if key.startswith("weight"):
            values = parameter[parameter != 0]
            error = values.numel() ** -0.5  # standard error of the mean, in standard deviations
            assert values.mean().item() == pytest.approx(0.0, abs=4 * error * 64**-0.5)
            assert values.std().item() == pytest.approx(64**-0.5, rel=3 * error)
        elif key.startswith("gain"):
            assert (parameter == 1).all()
        elif name in ("lstm", "peephole_lstm") and not key.startswith("bias_hh"):
            assert (parameter[64:128] == 1).all()
            assert not parameter[:64].any()
            assert not parameter[128:].any()
        else:
            assert not parameter.any()


def time_of_backward(layer: RecurrentLayer, steps: int) -> float:
    input = torch.randn(steps, 64, 1)
    best = float("inf")
    for _ in range(3):
        output, _ = layer(input)
        start = time.process_time()  # whatever else the machine does
        output.sum().backward()
        best = min(best, time.process_time() - start)
    return best


@every_layer
def test_backward_time_is_linear_in_the_steps(name: str) -> None:
    # Four times the steps: measured at 4.1x to 5.5x the time, and at 18x to 80x when the loop indexes one big tensor at
    # each step instead of unbinding it.
    layer = LAYERS[name](1, 64)
    time_of_backward(layer, 50)
    ratio = time_of_backward(layer, 800) / time_of_backward(layer, 200)
    assert ratio < 10


@every_layer
@pytest.mark.parametrize("backend", ["reference", "fused"])
@pytest.mark.parametrize("steps", [0, 5])
def test_state_shares_no_memory_with_the_output_or_the_state_before(name: str, backend: Any, steps: int) -> None:
    if backend == "fused":
        needs_fused_backend(name)
    layer = small(name)
    layer.backend = backend
    before = random_state(layer, 2)
    with torch.no_grad():
        output, after = layer(torch.randn(steps, 2, 3, dtype=torch.float64), before)
        kept = [value.clone() for value in (output, *as_tuple(before))]
        for part in as_tuple(after):
            part.zero_()
    close([output, *as_tuple(before)], kept)
