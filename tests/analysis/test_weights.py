"""Gradients of weights by tau: against autograd, against explicit Jacobians, and by gate."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import jacrev

from mistrnn.analysis import weight_gradients
from mistrnn.layers import LAYERS, MIST, RecurrentLayer
from mistrnn.layers.backends import project
from mistrnn.layers.recurrence import StateHistory
from tests.layers.cases import REGULARISERS, every_layer, seeded, small


def inputs(steps: int = 12, batch: int = 2) -> Tensor:
    with seeded(2):
        return torch.randn(steps, batch, 3).double()


def last_loss(result: Any) -> Tensor:
    value: Tensor = result[0][-1].square().sum()
    return value


def by_autograd(model: nn.Module, given: Any, loss: Any = last_loss) -> dict[str, Tensor]:
    with seeded(7):
        value = loss(model(given))
    return dict(zip(dict(model.named_parameters()), torch.autograd.grad(value, list(model.parameters())), strict=True))


def agree(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    for name, value in found.items():
        torch.testing.assert_close(value, expected[name], rtol=1e-10, atol=1e-12)


@every_layer
@pytest.mark.parametrize("options", REGULARISERS.values(), ids=REGULARISERS)
@pytest.mark.parametrize("training", [False, True])
def test_components_add_up_to_the_gradient_of_autograd(name: str, options: dict[str, Any], training: bool) -> None:
    with seeded(1):
        layer = small(name, num_layers=2, **options).train(training)
    layer.backend = "reference"  # draws the masks in the same order
    expected = by_autograd(layer, inputs())
    with seeded(7):
        found = weight_gradients(layer, inputs(), last_loss)
    assert found.totals.keys() == expected.keys()
    agree(found.totals, expected)


@every_layer
def test_components_equal_explicit_jacobians(name: str) -> None:
    """Equation (14), factor by factor: dl/dh_t, products of the states' Jacobians, and partial h/partial theta at each step."""
    with seeded(1):
        layer = small(name)
    x, t = inputs(9, 1), 8
    expected = explicit(layer, x, t)
    found = weight_gradients(layer, x, last_loss)
    assert len(next(iter(found.parameters.values()))) == t + 1
    agree(found.parameters, expected)


def explicit(layer: RecurrentLayer, x: Tensor, t: int) -> dict[str, Tensor]:
    components, memory = len(layer.cell.state), layer.memory
    names = list(layer._short_names)
    weights = {short: value.detach() for short, value in layer.own_parameters(0, 0).items()}

    def one_step(now: int, past: list[Tensor], own: dict[str, Tensor]) -> Tensor:
        """Return the components of the new state, [components, H]."""
        given = StateHistory(past)
        given.clock = torch.tensor([now])
        weights = layer.weights_from(dict(own))
        return torch.stack(layer.step(weights)(project(x[now], weights), given))[:, 0]

    history = [torch.zeros(memory, 1, layer.hidden_size, dtype=torch.float64) for _ in range(components)]
    by_state, by_weight = [], []
    for now in range(t + 1):
        past = [values[-memory:] for values in history]
        by_state.append(jacrev(lambda past, now=now: one_step(now, past, weights))(past))
        by_weight.append(jacrev(lambda own, now=now, past=past: one_step(now, past, own))(weights))
        new = one_step(now, past, weights)
        history = [torch.cat([values, new[k].view(1, 1, -1)]) for k, values in enumerate(history)]
    full = torch.zeros(t + 1, components, layer.hidden_size, dtype=torch.float64)  # dl/dstate, from t backwards
    full[t, 0] = 2 * history[0][-1, 0]
    for now in range(t, -1, -1):
        for component in range(components):
            partial = by_state[now][component]  # [components, H, M, 1, H]
            for delay in range(1, min(memory, now) + 1):
                edge = partial[:, :, memory - delay, 0]
                full[now - delay, component] += torch.einsum("kh,khj->j", full[now], edge)
    return {
        f"{short}_l0": torch.stack(
            [torch.tensordot(full[t - tau], by_weight[t - tau][short], dims=2) for tau in range(t + 1)]
        )
        for short in names
    }


@every_layer
def test_first_direction_is_split_and_pieces_are_one_sequence(name: str) -> None:
    with seeded(1):
        layer = small(name, bidirectional=True)
    expected = by_autograd(layer, inputs())
    found = weight_gradients(layer, inputs(), last_loss)
    assert not any(name.endswith("_reverse") for name in found.parameters)
    agree(found.totals, expected)

    class Pieces(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            with seeded(1):
                self.layer = small(name)

        def forward(self, x: Tensor) -> tuple[Tensor, Any]:
            output, state = self.layer(x[:5])
            later, state = self.layer(x[5:], state)
            return torch.cat([output, later]), state

    pieces = Pieces()
    whole = weight_gradients(pieces.layer, inputs(), last_loss)
    cut = weight_gradients(pieces, inputs(), last_loss)
    agree({name: cut.parameters[f"layer.{name}"] for name in whole.parameters}, whole.parameters)


@every_layer
def test_lengths_and_resets_are_respected(name: str) -> None:
    with seeded(1):
        layer = small(name)
    reset = torch.zeros(12, 2, dtype=torch.bool)
    reset[7] = True

    def loss(result: Any) -> Tensor:
        return last_loss((result[0][:9],))

    class Reset(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x: Tensor) -> Any:
            return self.layer(x, reset=reset, lengths=[9, 11])

    expected = by_autograd(Reset(), inputs(), loss)
    found = weight_gradients(Reset(), inputs(), loss, at=8)
    agree(found.totals, expected)
    for value in found.parameters.values():
        assert value.size(0) == 9
        assert not value[2:].any()  # nothing arrives from before the reset at step 7
        assert value[0].any()


def test_norms_are_those_of_the_gates() -> None:
    layer = MIST(3, 6, delays=4, dtype=torch.float64)
    found = weight_gradients(layer, inputs(), last_loss)
    norms = found.norms()
    assert list(norms) == [f"{name}_l0 {gate}" for name in ("weight_ih", "weight_hh", "bias") for gate in "arh"]
    torch.testing.assert_close(
        norms["weight_hh_l0 r"], found.parameters["weight_hh_l0"][:, 4:10].flatten(1).norm(dim=1)
    )
    torch.testing.assert_close(norms["bias_l0 h"], found.parameters["bias_l0"][:, 10:].norm(dim=1))


@every_layer
def test_every_row_of_a_parameter_belongs_to_one_gate(name: str) -> None:
    layer = small(name)
    found = weight_gradients(layer, inputs(), last_loss)
    for parameter, value in found.parameters.items():
        rows = [row for part in found.blocks[parameter].values() for row in range(len(value[0]))[part]]
        assert rows == list(range(len(value[0])))
        squares = [norm**2 for name, norm in found.norms().items() if name.split()[0] == parameter]
        torch.testing.assert_close(torch.stack(squares).sum(0).sqrt(), value.flatten(1).norm(dim=1))


def test_layer_runs_as_before_afterwards() -> None:
    layer = LAYERS["lstm"](3, 6).double()
    before = layer(inputs())[0]
    weight_gradients(layer, inputs(), last_loss)
    assert torch.equal(layer(inputs())[0], before)
    assert "_run_one" not in vars(layer)


@pytest.mark.parametrize(
    ("model", "loss", "options", "text"),
    [
        (nn.LSTM(3, 6).double(), last_loss, {}, "expected a model with layers of mistrnn, .* got LSTM without one"),
        (MIST(3, 6).double(), lambda result: result[0][-1], {}, r"expected the loss to be a scalar Tensor, got shape \[2, 6\]"),
        (MIST(3, 6).double(), lambda result: 1.0, {}, "expected the loss to be a scalar Tensor, got float"),
        (MIST(3, 6).double(), lambda result: torch.zeros(()), {}, "expected a loss that depends on the layers' weights"),
        (MIST(3, 6).double(), last_loss, {"at": 12}, "expected `at` to be a step from 0 to 11, got 12"),
        (MIST(3, 6).double(), last_loss, {"at": 2.0}, "expected `at` to be a step from 0 to 11, got 2.0"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_refused(model: nn.Module, loss: Any, options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        weight_gradients(model, inputs(), loss, **options)
