"""The operations of network blocks under torch's transformations, and planted mistakes that the rule must catch."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.func import grad, hessian, jvp, vmap

from mistrnn.kernels.cpu import blocks
from tests.kernels.test_blocks import (
    COMPOSED,
    EPSILON,
    FUSED,
    Op,
    broken,
    every_op,
    exact_conv,
    exact_norm,
    inputs_of,
    is_real,
)
from tests.layers.cases import close, seeded

E = 3
LENGTHS = {"norm": [[6, 2, 0, 5], [1, 6, 6, 3], [0, 0, 2, 4]]}


def first_output(op: Op) -> Callable[..., Tensor]:
    def one(*arguments: Any) -> Tensor:
        found = op(*arguments)
        return found[0] if isinstance(found, tuple) else found

    return one


def trials(name: str, with_lengths: bool = False) -> list[dict[str, Any]]:
    """The arguments of each of E trials."""
    lengths = LENGTHS.get(name) if with_lengths else None
    return [inputs_of(name, 6, 4, 5, lengths=None if lengths is None else lengths[e], seed=e) for e in range(E)]


def stacked(each: list[dict[str, Any]]) -> list[Any]:
    columns = zip(*(one.values() for one in each), strict=True)
    return [torch.stack(column) if isinstance(column[0], Tensor) else column[0] for column in columns]


def dims(arguments: list[Any]) -> tuple[int | None, ...]:
    return tuple(0 if isinstance(one, Tensor) else None for one in arguments)


CASES = [(name, with_lengths) for name in FUSED for with_lengths in ((False, True) if name == "norm" else (False,))]
every_case = pytest.mark.parametrize(("name", "with_lengths"), CASES)


@every_case
def test_vmap_equals_each_trial_alone(name: str, with_lengths: bool) -> None:
    each = trials(name, with_lengths)
    arguments = stacked(each)
    found = vmap(FUSED[name], in_dims=dims(arguments))(*arguments)
    alone = [FUSED[name](*one.values()) for one in each]
    if isinstance(found, tuple):
        for part, parts in zip(found, zip(*alone, strict=True), strict=True):
            assert torch.equal(part, torch.stack(parts))
    else:
        assert torch.equal(found, torch.stack(alone))


@every_case
def test_vmap_of_grad_and_grad_of_vmap_equal_each_trial_alone(name: str, with_lengths: bool) -> None:
    each = trials(name, with_lengths)
    arguments = stacked(each)
    op = first_output(FUSED[name])
    numbers = tuple(k for k, one in enumerate(arguments) if is_real(one))

    def loss(*given: Any) -> Tensor:
        return op(*given).square().sum()

    expected = [grad(loss, argnums=numbers)(*one.values()) for one in each]
    inside = vmap(grad(loss, argnums=numbers), in_dims=dims(arguments))(*arguments)
    outside = grad(lambda *given: vmap(loss, in_dims=dims(arguments))(*given).sum(), argnums=numbers)(*arguments)
    composed = [
        grad(lambda *given: first_output(COMPOSED[name])(*given).square().sum(), argnums=numbers)(*one.values())
        for one in each
    ]
    for k in range(len(numbers)):
        wanted = torch.stack([one[k] for one in expected])
        for found in (inside[k], outside[k]):
            close(found, wanted, 1e-12)
        close(wanted, torch.stack([one[k] for one in composed]), 1e-11)


@every_case
def test_two_levels_of_vmap_equal_each_trial_alone(name: str, with_lengths: bool) -> None:
    rows = [trials(name, with_lengths), trials(name, with_lengths)[::-1]]
    arguments = [
        torch.stack([a, b]) if isinstance(a, Tensor) else a
        for a, b in zip(stacked(rows[0]), stacked(rows[1]), strict=True)
    ]
    op = first_output(FUSED[name])
    numbers = tuple(k for k, one in enumerate(arguments) if is_real(one))

    def loss(*given: Any) -> Tensor:
        return op(*given).square().sum()

    inner = vmap(grad(loss, argnums=numbers), in_dims=dims(arguments))
    found = vmap(inner, in_dims=dims(arguments))(*arguments)
    for r, row in enumerate(rows):
        for e, one in enumerate(row):
            close(tuple(part[r, e] for part in found), grad(loss, argnums=numbers)(*one.values()), 1e-12)


@pytest.mark.parametrize("mapped", ["x", "weight", "bias", "x+bias", "weight+bias"])
@pytest.mark.parametrize("name", ["conv", "norm"])
def test_vmap_over_some_arguments_and_any_axis_equals_each_trial_alone(name: str, mapped: str) -> None:
    each = trials(name)
    shared = each[0]
    arguments, in_dims = [], []
    for key, value in shared.items():
        if key in mapped.split("+"):
            axis = {"x": 1, "weight": -1, "bias": 1}[key]
            arguments.append(torch.stack([one[key] for one in each], axis))
            in_dims.append(axis)
        else:
            arguments.append(value)
            in_dims.append(None)
    op = first_output(FUSED[name])

    def loss(*given: Any) -> Tensor:
        return op(*given).square().sum()

    numbers = (0, 1, 2)
    found = vmap(grad(loss, argnums=numbers), in_dims=tuple(in_dims))(*arguments)
    outer = vmap(op, in_dims=tuple(in_dims), out_dims=2)(*arguments)
    for e, one in enumerate(each):
        own = {key: one[key] if key in mapped.split("+") else value for key, value in shared.items()}
        close(tuple(part[e] for part in found), grad(loss, argnums=numbers)(*own.values()), 1e-12)
        close(outer[:, :, e], op(*own.values()), 1e-13)


def test_vmap_over_lengths_alone_equals_each_trial_alone() -> None:
    each = trials("norm", with_lengths=True)
    x, weight, bias, _, epsilon = each[0].values()
    lengths = torch.stack([one["lengths"] for one in each])
    found = vmap(blocks.batch_norm, in_dims=(None, None, None, 0, None))(x, weight, bias, lengths, epsilon)
    for e in range(E):
        close(tuple(part[e] for part in found), blocks.batch_norm(x, weight, bias, lengths[e], epsilon), 1e-13)


@every_case
def test_trial_full_of_nan_leaves_the_others_bit_identical(name: str, with_lengths: bool) -> None:
    arguments = stacked(trials(name, with_lengths))
    numbers = tuple(k for k, one in enumerate(arguments) if is_real(one))
    op = first_output(FUSED[name])
    gradients = vmap(grad(lambda *given: op(*given).square().sum(), argnums=numbers), in_dims=dims(arguments))
    expected = gradients(*arguments)
    arguments[0] = arguments[0].clone()
    arguments[0][1] = float("nan")
    found = gradients(*arguments)
    for before, after in zip(expected, found, strict=True):
        assert torch.equal(before[[0, 2]], after[[0, 2]])
    assert found[0][1].isnan().any()


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("conv", {"taps": 3, "ahead": 0}),
        ("conv", {"taps": 6, "ahead": 2}),
        ("norm", {}),
        ("norm", {"lengths": [4, 0, 2]}),
        ("gate", {}),
    ],
)
def test_first_and_second_derivatives_equal_finite_differences(name: str, sizes: dict[str, Any]) -> None:
    inputs = {k: v.requires_grad_() if is_real(v) else v for k, v in inputs_of(name, 4, 3, 2, **sizes).items()}
    op = first_output(FUSED[name])
    assert torch.autograd.gradcheck(op, tuple(inputs.values()))
    assert torch.autograd.gradgradcheck(op, tuple(inputs.values()))


@every_case
def test_second_derivatives_of_stacked_trials_equal_each_trial_alone(name: str, with_lengths: bool) -> None:
    each = trials(name, with_lengths)
    arguments = [v.requires_grad_() if is_real(v) else v for v in stacked(each)]
    op = first_output(FUSED[name])

    def squared_gradient(forward: Callable[..., Tensor], given: list[Any]) -> tuple[Tensor, ...]:
        leaves = [one for one in given if is_real(one)]
        first = torch.autograd.grad(forward(*given).pow(3).sum(), leaves, create_graph=True)
        return torch.autograd.grad(sum(one.square().sum() for one in first), leaves)

    found = squared_gradient(vmap(op, in_dims=dims(arguments)), arguments)
    for e, one in enumerate(each):
        own = [v.requires_grad_() if is_real(v) else v for v in one.values()]
        close(tuple(part[e] for part in found), squared_gradient(op, own), 1e-10)
        close(tuple(part[e] for part in found), squared_gradient(first_output(COMPOSED[name]), own), 1e-10)


@every_op
def test_hessian_equals_that_of_the_composed_form(name: str) -> None:
    inputs = inputs_of(name, 3, 2, 2)
    rest = list(inputs.values())[1:]
    found, expected = (
        hessian(lambda x, op=op: first_output(op)(x, *rest).pow(3).sum())(inputs["x"])
        for op in (FUSED[name], COMPOSED[name])
    )
    close(found, expected, 1e-10)


@every_op
def test_forward_mode_takes_the_composed_form_and_agrees_with_backward_mode(name: str) -> None:
    inputs = inputs_of(name, 5, 2, 3)
    x, *rest = inputs.values()
    op = first_output(FUSED[name])
    along = torch.randn_like(x)
    value, slope = jvp(lambda given: op(given, *rest), (x,), (along,))
    close(value, op(x, *rest), 1e-12)
    back = torch.randn_like(value)
    leaf = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(op(leaf, *rest), leaf, back)
    close((slope * back).sum(), (gradient * along).sum(), 1e-11)
    with forward_ad.dual_level():
        dual = op(forward_ad.make_dual(x, along), *rest)
        close(forward_ad.unpack_dual(dual).tangent, slope, 1e-12)


@every_op
def test_backward_without_a_need_for_some_gradients(name: str) -> None:
    inputs = inputs_of(name, 5, 2, 3)
    keys = [key for key, value in inputs.items() if is_real(value)]
    op = first_output(FUSED[name])
    along = torch.randn_like(op(*inputs.values()))
    leaves = {key: value.clone().requires_grad_() if is_real(value) else value for key, value in inputs.items()}
    whole = torch.autograd.grad(op(*leaves.values()), [leaves[key] for key in keys], along)
    for key, expected in zip(keys, whole, strict=True):
        one = {**inputs, key: inputs[key].clone().requires_grad_()}
        assert torch.equal(torch.autograd.grad(op(*one.values()), one[key], along)[0], expected)


# Planted mistakes: (operation, sizes that make it matter, the mistaken form).


def tap_off_by_one(x: Tensor, weight: Tensor, bias: Tensor, ahead: int) -> Tensor:
    return exact_conv(x, weight.roll(1, 0), bias, ahead)


def taps_in_the_reverse_order(x: Tensor, weight: Tensor, bias: Tensor, ahead: int) -> Tensor:
    return exact_conv(x, weight.flip(0), bias, ahead)


def future_step_read(x: Tensor, weight: Tensor, bias: Tensor, ahead: int) -> Tensor:
    return exact_conv(x, weight, bias, ahead + 1)


def dropped_bias(x: Tensor, weight: Tensor, bias: Tensor, ahead: int) -> Tensor:
    return exact_conv(x, weight, bias - bias.detach(), ahead)


def bias_without_a_gradient(x: Tensor, weight: Tensor, bias: Tensor, ahead: int) -> Tensor:
    return exact_conv(x, weight, bias.detach() + 0 * bias, ahead)


def unbiased_variance(x: Tensor, weight: Tensor, bias: Tensor, lengths: Any, epsilon: float) -> Any:
    y, mean, variance = exact_norm(x, weight, bias, lengths, epsilon)
    count = x.size(0) * x.size(1) if lengths is None else int(lengths.sum())
    scale = (count / (count - 1)) ** -0.5
    return (y - bias) * scale + bias, mean, variance * count / (count - 1)


def mask_ignored(x: Tensor, weight: Tensor, bias: Tensor, lengths: Any, epsilon: float) -> Any:
    return exact_norm(x, weight, bias, None, epsilon)


def mask_ignored_in_the_statistics(x: Tensor, weight: Tensor, bias: Tensor, lengths: Any, epsilon: float) -> Any:
    y, mean, variance = exact_norm(x, weight, bias, None, epsilon)
    valid = torch.arange(x.size(0)).unsqueeze(1) < lengths
    return y * valid.unsqueeze(-1), mean, variance


def mask_one_step_late(x: Tensor, weight: Tensor, bias: Tensor, lengths: Any, epsilon: float) -> Any:
    return exact_norm(x, weight, bias, (lengths + 1).clamp_max(x.size(0)), epsilon)


def statistics_without_a_gradient(x: Tensor, weight: Tensor, bias: Tensor, lengths: Any, epsilon: float) -> Any:
    _, mean, variance = exact_norm(x.detach(), weight, bias, lengths, epsilon)
    valid = (torch.arange(x.size(0)).unsqueeze(1) < lengths).unsqueeze(-1)
    return ((x - mean) * (variance + epsilon) ** -0.5 * weight + bias) * valid, mean, variance


def wrong_epsilon(x: Tensor, weight: Tensor, bias: Tensor, lengths: Any, epsilon: float) -> Any:
    return exact_norm(x, weight, bias, lengths, 10 * EPSILON)


def halves_exchanged(x: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return a * torch.sigmoid(b) * b


def sigmoid_for_silu(x: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return torch.sigmoid(a) * b


SIZES: dict[str, dict[str, Any]] = {
    "conv": {"steps": 9, "batch": 3, "channels": 5, "taps": 4},
    "norm": {"steps": 9, "batch": 3, "channels": 5, "lengths": [9, 4, 6]},
    "gate": {"steps": 9, "batch": 3, "channels": 5},
}
MUTANTS: list[tuple[str, Op]] = [
    ("conv", tap_off_by_one),
    ("conv", taps_in_the_reverse_order),
    ("conv", future_step_read),
    ("conv", dropped_bias),
    ("conv", bias_without_a_gradient),
    ("norm", unbiased_variance),
    ("norm", mask_ignored),
    ("norm", mask_ignored_in_the_statistics),
    ("norm", mask_one_step_late),
    ("norm", statistics_without_a_gradient),
    ("norm", wrong_epsilon),
    ("gate", halves_exchanged),
    ("gate", sigmoid_for_silu),
]


@every_op
def test_right_forms_pass_the_rule_where_mistakes_are_planted(name: str) -> None:
    assert broken(name, **SIZES[name]) == {}
    assert broken(name, COMPOSED[name], **SIZES[name]) == {}


@pytest.mark.parametrize(("name", "mistake"), MUTANTS, ids=[mistake.__name__ for _, mistake in MUTANTS])
def test_mistake_is_caught_by_the_rule(name: str, mistake: Op) -> None:
    with seeded(0):
        assert broken(name, mistake, **SIZES[name])
