"""RNN, LSTM and GRU equal torch.nn's: outputs, states, gradients, parameters, training, attributes, checkpoints."""

import copy
import pickle
from abc import ABC, abstractmethod
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
KINDS: list[Any] = [
    (RNN, nn.RNN, {}),
    (RNN, nn.RNN, {"nonlinearity": "relu"}),
    (LSTM, nn.LSTM, {}),
    (LSTM, nn.LSTM, {"proj_size": 2}),
    (GRU, nn.GRU, {}),
]
every_kind = pytest.mark.parametrize(("ours", "theirs", "own"), KINDS, ids=["rnn", "relu", "lstm", "projection", "gru"])


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
    sizes = (module.proj_size or 5, 5)
    state = tuple(torch.randn(count, 4, size, dtype=torch.float64, device=device) for size in sizes)
    input = torch.randn(shape, dtype=torch.float64, device=device)
    return input, state if isinstance(module, nn.LSTM) else state[0]


@every_device
@every_kind
@arguments
@pytest.mark.parametrize("single_bias", [False, True])
def test_from_torch_equals_torch(
    ours: Any, theirs: Any, own: dict[str, Any], options: dict[str, Any], single_bias: bool, device: str
) -> None:
    module = theirs(3, 5, dtype=torch.float64, device=device, **options, **own).eval()
    with torch.backends.cudnn.flags(enabled=False):  # cuDNN has no backward in evaluation mode
        layer = ours.from_torch(module, single_bias=single_bias)
        input, state = draw(module, device)
        close(evaluate(layer, input, state), evaluate(module, input, state), 1e-11)
        for key, parameter in layer.named_parameters():
            if key.startswith("bias_hn"):
                expected = module.get_parameter(key.replace("bias_hn", "bias_hh")).grad[10:]
            else:  # the gradients of torch's two biases are the same
                expected = module.get_parameter(key.replace("bias_l", "bias_ih_l")).grad
            close(parameter.grad, expected, 1e-10)


@every_kind
@arguments
@pytest.mark.parametrize("single_bias", [False, True])
def test_to_torch_equals_the_layer(
    ours: Any, theirs: Any, own: dict[str, Any], options: dict[str, Any], single_bias: bool
) -> None:
    layer = randomised(ours(3, 5, dtype=torch.float64, single_bias=single_bias, **options, **own)).eval()
    module = layer.to_torch()
    assert type(module) is theirs
    assert not module.training
    input, state = draw(module, "cpu")
    close(evaluate(layer, input, state), evaluate(module, input, state))


@every_kind
@arguments
@pytest.mark.parametrize("single_bias", [False, True])
def test_round_trip_restores_every_bit(
    ours: Any, theirs: Any, own: dict[str, Any], options: dict[str, Any], single_bias: bool
) -> None:
    layer = randomised(ours(3, 5, single_bias=single_bias, **options, **own))
    back = ours.from_torch(layer.to_torch(), single_bias=single_bias)
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


@every_twin
def test_two_biases_are_frozen_one_by_one(ours: Any, theirs: Any) -> None:
    for names in ({"bias_ih_l0"}, {"bias_hh_l0"}, {"bias_ih_l0", "bias_hh_l0"}):
        module = theirs(3, 5)
        for name in names:
            module.get_parameter(name).requires_grad_(False)
        layer = ours.from_torch(module)
        assert frozen(layer) == names
        assert frozen(layer.to_torch()) == names


@pytest.mark.parametrize(("ours", "theirs"), TWINS[:2], ids=["rnn", "lstm"])
def test_single_bias_is_frozen_if_both_of_torch_are(ours: Any, theirs: Any) -> None:
    for names, expected in (
        ({"bias_ih_l0"}, set()),
        ({"bias_hh_l0"}, set()),
        ({"bias_ih_l0", "bias_hh_l0"}, {"bias_l0"}),
    ):
        module = theirs(3, 5)
        for name in names:
            module.get_parameter(name).requires_grad_(False)
        layer = ours.from_torch(module, single_bias=True)
        assert frozen(layer) == expected
        assert frozen(layer.to_torch()) == (names if expected else set())


def test_single_biases_of_a_gru_are_frozen_as_far_as_they_correspond() -> None:
    expected: list[tuple[set[str], set[str]]] = [
        ({"bias_ih_l0"}, set()),
        ({"bias_hh_l0"}, {"bias_hn_l0"}),
        ({"bias_ih_l0", "bias_hh_l0"}, {"bias_l0", "bias_hn_l0"}),
    ]
    for theirs, ours in expected:
        module = nn.GRU(3, 5)
        for name in theirs:
            module.get_parameter(name).requires_grad_(False)
        layer = GRU.from_torch(module, single_bias=True)
        assert frozen(layer) == ours
        assert frozen(layer.to_torch()) == (theirs if ours else set())
    layer = GRU(3, 5, single_bias=True)
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

    with pytest.raises(
        TypeError, match=r"OnDevice.from_torch: expected OnDevice to create only .* got scale there, too"
    ):
        OnDevice.from_torch(nn.LSTM(3, 5))


def test_to_torch_refuses_a_layer_with_a_forward_of_its_own() -> None:
    with pytest.raises(TypeError, match=r"Scaled.to_torch: expected a layer with the forward of mistrnn"):
        Scaled(3, 5).to_torch()


OPTIMIZERS: dict[str, Any] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.005),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.001, momentum=0.9, nesterov=True),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=1e-2),
}


@every_kind
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_training_for_200_steps_equals_torch(ours: Any, theirs: Any, own: dict[str, Any], optimizer: str) -> None:
    torch.manual_seed(0)
    module = theirs(3, 5, num_layers=2, dtype=torch.float64, **own)
    layer, start = ours.from_torch(module), module.weight_hh_l0.detach().clone()
    data = torch.randn(20, 6, 4, 3, dtype=torch.float64)
    losses = []
    for trained in (module, layer):
        update = OPTIMIZERS[optimizer](trained.parameters())
        losses.append([])
        for step in range(200):
            update.zero_grad()
            output, _ = trained(data[step % 20])
            loss = (output - data[step % 20].sum(-1, keepdim=True).tanh()).square().sum()
            loss.backward()
            update.step()
            losses[-1].append(loss.item())
    assert (module.weight_hh_l0 - start).abs().max() > 1e-3
    torch.testing.assert_close(losses[1], losses[0], rtol=1e-9, atol=1e-12)
    for key, parameter in module.named_parameters():
        torch.testing.assert_close(layer.get_parameter(key), parameter, rtol=1e-7, atol=1e-9)


@every_kind
def test_attributes_are_those_of_torch(ours: Any, theirs: Any, own: dict[str, Any]) -> None:
    options = {"num_layers": 2, "bidirectional": True, "dropout": 0.25, "batch_first": True}
    layer, module = ours(3, 5, **options, **own), theirs(3, 5, **options, **own)
    for name in ("mode", "input_size", "hidden_size", "num_layers", "bias", "batch_first", "dropout", "bidirectional"):
        assert getattr(layer, name) == getattr(module, name)
    assert layer.proj_size == module.proj_size
    assert layer._all_weights == module._all_weights
    assert layer._flat_weights_names == module._flat_weights_names
    shapes = [[tuple(weight.shape) for weight in weights] for weights in module.all_weights]
    assert [[tuple(weight.shape) for weight in weights] for weights in layer.all_weights] == shapes
    assert [weight.shape for weight in layer._flat_weights] == [weight.shape for weight in module._flat_weights]
    assert list(layer.state_dict()) == list(module.state_dict())
    assert isinstance(layer, nn.RNNBase)
    assert layer.flatten_parameters() is None


@every_kind
def test_positional_arguments_are_those_of_torch(ours: Any, theirs: Any, own: dict[str, Any]) -> None:
    arguments: list[Any] = [3, 5, 2, True, True, 0.0, True]
    if ours is RNN:
        arguments.insert(3, own.get("nonlinearity", "tanh"))
    if ours is LSTM:
        arguments += [own.get("proj_size", 0), "cpu", torch.float64]
    layer, module = ours(*arguments), theirs(*arguments)
    assert layer.state_dict().keys() == module.state_dict().keys()
    assert layer.weight_hh_l0.dtype == module.weight_hh_l0.dtype


@every_kind
@pytest.mark.parametrize("bias", [True, False])
def test_checkpoints_load_in_all_directions(ours: Any, theirs: Any, own: dict[str, Any], bias: bool) -> None:
    torch.manual_seed(0)
    options = {"num_layers": 2, "bidirectional": True, "bias": bias, "dtype": torch.float64, **own}
    module, two, one = theirs(3, 5, **options), ours(3, 5, **options), ours(3, 5, single_bias=True, **options)
    input = torch.randn(6, 2, 3, dtype=torch.float64)
    two.load_state_dict(module.state_dict())  # torch's
    close(two(input)[0], module(input)[0])
    one.load_state_dict(module.state_dict())
    close(one(input)[0], module(input)[0])
    fresh = nn.ModuleDict({"rnn": ours(3, 5, **options)})
    fresh.load_state_dict({f"rnn.{key}": value for key, value in one.state_dict().items()})  # version 0.1's
    close(fresh["rnn"](input)[0], module(input)[0])
    back = theirs(3, 5, **options)
    back.load_state_dict(fresh["rnn"].state_dict())
    close(back(input)[0], module(input)[0])
    before = one.state_dict()
    two.load_state_dict(before)
    assert before.keys() == one.state_dict().keys()  # the caller's own is left as it is


def test_checkpoint_with_a_missing_bias_is_an_error() -> None:
    state = nn.LSTM(3, 5).state_dict()
    del state["bias_hh_l0"]
    with pytest.raises(RuntimeError, match="bias_hh_l0"):
        LSTM(3, 5).load_state_dict(state)
    with pytest.raises(RuntimeError, match="bias_l0"):
        LSTM(3, 5, single_bias=True).load_state_dict(state)


@every_twin
def test_layer_survives_copies_pickles_and_moves(ours: Any, theirs: Any) -> None:
    layer, input = ours(3, 5, num_layers=2), torch.randn(4, 2, 3)
    expected = layer(input)[0]
    for copied in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer)), layer.double().float()):
        assert torch.equal(copied(input)[0], expected)
    replica = layer._replicate_for_data_parallel()
    assert replica.num_layers == 2


def test_class_with_another_metaclass_can_be_derived() -> None:
    class Registered(type):
        pass

    class Own(LSTM, metaclass=Registered):
        pass

    class Base(ABC, nn.RNNBase):
        @abstractmethod
        def initial(self) -> None: ...

        def forward(self, x: Tensor, hx: Any = None) -> Any:
            return super().forward(x, hx=hx)

    class Forecasting(Base, LSTM):
        def initial(self) -> None: ...

    for kind in (Own, Forecasting):
        assert kind(3, 5)(torch.zeros(2, 1, 3))[0].shape == (2, 1, 5)


def test_unknown_nonlinearity_raises() -> None:
    with pytest.raises(ValueError, match="RNN: expected nonlinearity to be one of tanh, relu, got 'gelu'"):
        RNN(3, 5, nonlinearity="gelu")
    with pytest.raises(ValueError, match="RNN: expected nonlinearity to be one of tanh, relu, got True"):
        RNN(3, 5, 1, True)  # type: ignore[arg-type]


def test_projection_not_smaller_than_the_hidden_size_raises() -> None:
    with pytest.raises(ValueError, match="LSTM: expected proj_size < hidden_size=5, got 5"):
        LSTM(3, 5, proj_size=5)
    with pytest.raises(ValueError, match="LSTM: expected proj_size to be an int >= 0, got -1"):
        LSTM(3, 5, proj_size=-1)


@pytest.mark.parametrize("ours", [RNN, LSTM, GRU])
def test_parameter_count_leaves_out_the_redundant_bias(ours: Any) -> None:
    assert ours(3, 5, 2).parameter_count() == ours(3, 5, 2, single_bias=True).parameter_count()
    assert ours(3, 5, 2, bias=False).parameter_count() == sum(p.numel() for p in ours(3, 5, 2, bias=False).parameters())


@every_twin
def test_hx_is_the_state_by_torchs_name(ours: Any, theirs: Any) -> None:
    layer, input = ours(3, 5), torch.randn(4, 2, 3)
    _, state = layer(input, hx=None)
    assert torch.equal(layer(input, hx=state)[0], layer(input, state)[0])
    with pytest.raises(TypeError, match="expected one of state and hx, which mean the same, got both"):
        layer(input, state, hx=state)
