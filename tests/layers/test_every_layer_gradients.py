"""First and second derivatives of every layer with every regulariser, against finite differences."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import functional_call, jvp

from mistrnn.layers import RecurrentLayer
from tests.layers.cases import REGULARISERS, as_tuple, close, every_layer, random_state, seeded, small

pytestmark = pytest.mark.usefixtures("backend")

every_regulariser = pytest.mark.parametrize("regulariser", list(REGULARISERS))


def tiny(name: str, regulariser: str, **more: Any) -> RecurrentLayer:
    # Three of everything that is normalised together: layer norm of two values is nearly a constant.
    own: dict[str, Any] = {"mist": {"delays": [1, 2, 3]}, "narx": {"delays": [1, 3]}, "clockwork": {"periods": [1, 2]}}
    size = 6 if name == "clockwork" else 3
    return small(name, input_size=1, hidden_size=size, **own.get(name, {}), **REGULARISERS[regulariser], **more)


def as_function(layer: RecurrentLayer, *, batch: int, lengths: list[int], seed: int = 3) -> tuple[Any, list[Tensor]]:
    """The layer as a function of (input, state, parameters), and a point to differentiate at.

    The masks of dropout and zoneout are drawn anew from the same seed at every evaluation, so that it is a function.
    """
    with seeded(1):
        input = torch.randn(max(lengths), batch, layer.input_size, dtype=torch.float64)
        state = as_tuple(random_state(layer, batch))
        reset = torch.zeros(max(lengths), batch, dtype=torch.bool)
        reset[2, 0] = True
    names = [name for name, _ in layer.named_parameters()]
    movable = [part for part in state if part.is_floating_point()]
    fixed = tuple(part for part in state if not part.is_floating_point())

    def function(x: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        parts = tuple(rest[: len(movable)]) + fixed
        parameters = dict(zip(names, rest[len(movable) :], strict=True))
        with seeded(seed):
            output, final = functional_call(
                layer,
                parameters,
                (x, parts if len(parts) > 1 else parts[0]),
                {"lengths": torch.tensor(lengths), "reset": reset},
            )
        return (output, *(part for part in as_tuple(final) if part.is_floating_point()))

    point = [input, *movable, *(parameter.detach() for parameter in layer.parameters())]
    return function, [value.clone().requires_grad_() for value in point]


@every_layer
@every_regulariser
def test_gradients_of_input_state_and_parameters_match_finite_differences(name: str, regulariser: str) -> None:
    function, point = as_function(tiny(name, regulariser), batch=2, lengths=[4, 3])
    assert torch.autograd.gradcheck(function, point, check_forward_ad=True)


@every_layer
@every_regulariser
def test_second_derivatives_match_finite_differences(name: str, regulariser: str) -> None:
    function, point = as_function(tiny(name, regulariser), batch=1, lengths=[4])
    assert torch.autograd.gradgradcheck(function, point)


@every_layer
def test_gradients_of_a_bidirectional_stack_match_finite_differences(name: str) -> None:
    layer = tiny(name, "all", num_layers=2, bidirectional=True, dropout=0.3)
    function, point = as_function(layer, batch=2, lengths=[4, 2])
    assert torch.autograd.gradcheck(function, point, fast_mode=True)


@every_layer
@every_regulariser
def test_jvp_equals_the_product_with_the_jacobian(name: str, regulariser: str) -> None:
    function, point = as_function(tiny(name, regulariser).eval(), batch=1, lengths=[4])
    values = tuple(value.detach() for value in point)
    with seeded(7):
        tangents = tuple(torch.randn_like(value) for value in values)
    outputs, directional = jvp(function, values, tangents)
    jacobians = torch.autograd.functional.jacobian(function, values)
    for output, derivative, row in zip(outputs, directional, jacobians, strict=True):
        product = sum(
            (jacobian.reshape(output.numel(), -1) @ tangent.reshape(-1)).reshape(output.shape)
            for jacobian, tangent in zip(row, tangents, strict=True)
        )
        close(derivative, product, 1e-10)


@every_layer
def test_gradient_reaches_every_parameter(name: str) -> None:
    layer = small(name, num_layers=2, bidirectional=True, layer_norm=True)
    output, _ = layer(torch.randn(6, 3, 3, dtype=torch.float64))
    output.square().sum().backward()
    for key, parameter in layer.named_parameters():
        assert parameter.grad is not None, key
        assert parameter.grad.abs().sum() > 0, key
