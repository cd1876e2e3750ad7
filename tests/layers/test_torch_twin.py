"""RNN, LSTM and GRU equal torch.nn's through from_torch and to_torch: outputs, states and gradients."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mistrnn import GRU, LSTM, RNN
from tests.layers.cases import as_tuple, close, every_device, randomised

TWINS: list[Any] = [(RNN, nn.RNN), (LSTM, nn.LSTM), (GRU, nn.GRU)]
every_twin = pytest.mark.parametrize(("ours", "theirs"), TWINS, ids=["rnn", "lstm", "gru"])
arguments = pytest.mark.parametrize(
    "options",
    [
        {},
        {"bias": False},
        {"num_layers": 2, "bidirectional": True},
        {"num_layers": 3, "batch_first": True, "dropout": 0.5},
        {"bidirectional": True, "batch_first": True, "bias": False},
    ],
    ids=str,
)


def evaluate(module: nn.Module, input: Tensor, state: Any) -> tuple[Tensor, ...]:
    """Outputs, final states, and gradients with respect to input and initial state."""
    x = input.clone().requires_grad_()
    parts = tuple(part.clone().requires_grad_() for part in as_tuple(state))
    output, final = module(x, parts if len(parts) > 1 else parts[0])
    (output.square().sum() + sum(part.sin().sum() for part in as_tuple(final))).backward()
    gradients = [leaf.grad for leaf in (x, *parts)]
    assert all(gradient is not None for gradient in gradients)
    return (output, *as_tuple(final), *gradients)


def draw(module: nn.RNNBase, device: str) -> tuple[Tensor, Any]:
    shape = (4, 9, 3) if module.batch_first else (9, 4, 3)
    count = module.num_layers * (2 if module.bidirectional else 1)
    state = tuple(torch.randn(count, 4, 5, dtype=torch.float64, device=device) for _ in range(2))
    input = torch.randn(shape, dtype=torch.float64, device=device)
    return input, state if isinstance(module, nn.LSTM) else state[0]


@every_device
@every_twin
@arguments
def test_from_torch_equals_torch(ours: Any, theirs: Any, options: dict[str, Any], device: str) -> None:
    module = theirs(3, 5, dtype=torch.float64, device=device, **options).eval()
    with torch.backends.cudnn.flags(enabled=False):  # cuDNN has no backward in evaluation mode
        layer = ours.from_torch(module)
        input, state = draw(module, device)
        close(evaluate(layer, input, state), evaluate(module, input, state), 1e-11)
        # One of torch's two biases is enough to compare: their gradients are the same.
        for key, parameter in layer.named_parameters():
            if key.startswith("bias_hn"):
                expected = module.get_parameter(key.replace("bias_hn", "bias_hh")).grad[10:]
            else:
                expected = module.get_parameter(key.replace("bias_l", "bias_ih_l")).grad
            close(parameter.grad, expected, 1e-10)


@every_twin
@arguments
def test_to_torch_equals_the_layer(ours: Any, theirs: Any, options: dict[str, Any]) -> None:
    layer = randomised(ours(3, 5, dtype=torch.float64, **options)).eval()
    module = layer.to_torch()
    assert type(module) is theirs
    assert not module.training
    input, state = draw(module, "cpu")
    close(evaluate(layer, input, state), evaluate(module, input, state))


@every_twin
@arguments
def test_round_trip_restores_every_bit(ours: Any, theirs: Any, options: dict[str, Any]) -> None:
    layer = randomised(ours(3, 5, **options))
    back = ours.from_torch(layer.to_torch())
    assert repr(back) == repr(layer)
    assert back.state_dict().keys() == layer.state_dict().keys()
    for key, value in layer.state_dict().items():
        assert torch.equal(back.state_dict()[key], value)


@every_twin
def test_conversion_copies_weights(ours: Any, theirs: Any) -> None:
    module = theirs(3, 5)
    layer = ours.from_torch(module)
    before = {key: value.clone() for key, value in layer.state_dict().items()}
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()
        for parameter in layer.to_torch().parameters():
            parameter.zero_()
    assert all(torch.equal(layer.state_dict()[key], value) for key, value in before.items())


@every_twin
def test_float32_from_torch_keeps_dtype_and_mode(ours: Any, theirs: Any) -> None:
    layer = ours.from_torch(theirs(3, 5).eval())
    assert layer.weight_hh_l0.dtype == torch.float32
    assert not layer.training


def frozen(module: nn.Module) -> set[str]:
    return {key for key, parameter in module.named_parameters() if not parameter.requires_grad}


@every_twin
def test_what_is_frozen_stays_frozen_both_ways(ours: Any, theirs: Any) -> None:
    module = theirs(3, 5, 2, bidirectional=True).requires_grad_(False)
    layer = ours.from_torch(module)
    assert frozen(layer) == set(layer.state_dict())
    assert frozen(layer.to_torch()) == set(module.state_dict())
    assert not frozen(ours.from_torch(theirs(3, 5)))
    assert not frozen(ours(3, 5).to_torch())
    some = {"weight_ih_l0", "weight_hh_l1_reverse"}
    for key, parameter in module.named_parameters():
        parameter.requires_grad_(key not in some)
    layer = ours.from_torch(module)
    assert frozen(layer) == some
    assert frozen(layer.to_torch()) == some


@pytest.mark.parametrize(("ours", "theirs"), TWINS[:2], ids=["rnn", "lstm"])
def test_the_sum_of_two_biases_is_frozen_if_both_are(ours: Any, theirs: Any) -> None:
    for names, expected in (
        ({"bias_ih_l0"}, set()),
        ({"bias_hh_l0"}, set()),
        ({"bias_ih_l0", "bias_hh_l0"}, {"bias_l0"}),
    ):
        module = theirs(3, 5)
        for name in names:
            module.get_parameter(name).requires_grad_(False)
        layer = ours.from_torch(module)
        assert frozen(layer) == expected
        assert frozen(layer.to_torch()) == (names if expected else set())


def test_biases_of_a_gru_are_frozen_as_far_as_they_correspond() -> None:
    expected: list[tuple[set[str], set[str]]] = [
        ({"bias_ih_l0"}, set()),
        ({"bias_hh_l0"}, {"bias_hn_l0"}),
        ({"bias_ih_l0", "bias_hh_l0"}, {"bias_l0", "bias_hn_l0"}),
    ]
    for theirs, ours in expected:
        module = nn.GRU(3, 5)
        for name in theirs:
            module.get_parameter(name).requires_grad_(False)
        layer = GRU.from_torch(module)
        assert frozen(layer) == ours
        assert frozen(layer.to_torch()) == (theirs if ours else set())
    layer = GRU(3, 5)
    layer.bias_l0.requires_grad_(False)
    assert frozen(layer.to_torch()) == {"bias_ih_l0"}


@every_twin
def test_parametrised_weights_stay_frozen_or_free_whatever_the_grad_mode(ours: Any, theirs: Any) -> None:
    with torch.no_grad():
        for freeze in (False, True):
            module, layer = theirs(3, 5), ours(3, 5)
            for given in (module, layer):
                nn.utils.parametrizations.weight_norm(given, "weight_hh_l0")
                given.requires_grad_(not freeze)
            for made in (ours.from_torch(module), layer.to_torch()):
                assert frozen(made) == (set(made.state_dict()) if freeze else set())


class Scaled(LSTM):
    """A user's layer with tensors of its own."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.scale = nn.Parameter(torch.full((3,), 2.0))
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, input: Any, state: Any = None, **options: Any) -> Any:
        return super().forward((input - self.mean) * self.scale, state, **options)


def test_from_torch_leaves_the_tensors_of_a_subclass_as_they_are() -> None:
    theirs = nn.LSTM(3, 5, bidirectional=True)
    layer = Scaled.from_torch(theirs)
    torch.testing.assert_close(layer.scale, torch.full((3,), 2.0))
    torch.testing.assert_close(layer.mean, torch.zeros(3))
    input = torch.randn(4, 2, 3)
    torch.testing.assert_close(layer(input)[0], theirs(input * 2)[0])


def test_from_torch_refuses_a_subclass_whose_tensors_stay_on_meta() -> None:
    class OnDevice(LSTM):
        def __init__(self, *arguments: Any, device: Any = None, **options: Any) -> None:
            super().__init__(*arguments, device=device, **options)
            self.scale = nn.Parameter(torch.ones(3, device=device))

    with pytest.raises(TypeError, match=r"OnDevice.from_torch: expected OnDevice to make only .* got scale there, too"):
        OnDevice.from_torch(nn.LSTM(3, 5))


def test_to_torch_refuses_a_layer_with_a_forward_of_its_own() -> None:
    with pytest.raises(TypeError, match=r"Scaled.to_torch: expected a layer whose forward is mistrnn's own"):
        Scaled(3, 5).to_torch()
