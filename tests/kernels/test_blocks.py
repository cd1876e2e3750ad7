"""Depthwise convolution, batch normalisation and gated unit: the fused backends against float64 by the tolerance rule.

The exact values come from loops over steps and frames that share nothing with the library.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from mistrnn.kernels.cpu import blocks, library
from mistrnn.kernels.cpu.library import INSTRUCTION_SETS, Library
from tests.layers.cases import close, seeded
from tests.tolerance import violations

EPSILON = 1e-5
Inputs = dict[str, Any]
Op = Callable[..., Any]


def exact_conv(x: Tensor, weight: Tensor, bias: Tensor, ahead: int = 0) -> Tensor:
    rows = []
    for t in range(x.size(0)):
        z = bias.expand(x.shape[1:])
        for k in range(weight.size(0)):
            if 0 <= t + ahead - k < x.size(0):
                z = z + weight[k] * x[t + ahead - k]
        rows.append(z / (1 + torch.exp(-z)))
    return torch.stack(rows) if rows else x.clone()


def exact_norm(
    x: Tensor, weight: Tensor, bias: Tensor, lengths: Tensor | None, epsilon: float
) -> tuple[Tensor, Tensor, Tensor]:
    ends = [x.size(0)] * x.size(1) if lengths is None else lengths.tolist()
    frames = [x[t, b] for b, end in enumerate(ends) for t in range(end)]
    if not frames:
        return 0 * x, 0 * bias.detach(), 0 * bias.detach()
    valid = torch.stack(frames)
    mean = valid.mean(0)
    variance = ((valid - mean) ** 2).mean(0)
    y = torch.zeros_like(x)
    normalised = iter((valid - mean) / (variance + epsilon) ** 0.5 * weight + bias)
    for b, end in enumerate(ends):
        for t in range(end):
            y[t, b] = next(normalised)
    return y, mean.detach(), variance.detach()


def exact_gate(x: Tensor) -> Tensor:
    channels = x.size(-1) // 2
    a, b = x[..., :channels], x[..., channels:]
    return a / (1 + torch.exp(-a)) * b


FUSED: dict[str, Op] = {"conv": blocks.depthwise_conv, "norm": blocks.batch_norm, "gate": blocks.gated_unit}
COMPOSED: dict[str, Op] = {
    "conv": blocks._composed_conv,
    "norm": blocks._composed_norm,
    "gate": blocks._composed_gate,
}
EXACT: dict[str, Op] = {"conv": exact_conv, "norm": exact_norm, "gate": exact_gate}

every_op = pytest.mark.parametrize("name", list(FUSED))


def inputs_of(
    name: str, steps: int, batch: int, channels: int, taps: int = 3, ahead: int = 0, lengths: Any = None, seed: int = 7
) -> Inputs:
    """Random arguments of an operation in float64; the mean of the frames is far from zero."""
    with seeded(seed):
        if name == "gate":
            return {"x": 2 * torch.randn(steps, batch, 2 * channels, dtype=torch.float64)}
        x = torch.randn(steps, batch, channels, dtype=torch.float64)
        weight = torch.randn(*([taps] if name == "conv" else []), channels, dtype=torch.float64)
        bias = torch.randn(channels, dtype=torch.float64)
    if name == "conv":
        return {"x": x, "weight": weight, "bias": bias, "ahead": ahead}
    if lengths is not None:
        lengths = torch.tensor(lengths)
    return {"x": 3 * x + 2, "weight": weight, "bias": bias, "lengths": lengths, "epsilon": EPSILON}


def is_real(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def measure(op: Op, inputs: Inputs, dtype: torch.dtype) -> dict[str, Tensor]:
    """Outputs and all gradients of an operation; its arguments are rounded to float32 first, in any dtype."""
    own = {key: value.float().to(dtype).requires_grad_() if is_real(value) else value for key, value in inputs.items()}
    outputs = op(*own.values())
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    with seeded(8):
        along = torch.randn(outputs[0].shape, dtype=torch.float64).float().to(dtype)
    (outputs[0] * along).sum().backward()
    found = {f"output {k}": value.detach() for k, value in enumerate(outputs)}
    return found | {f"{key}.grad": value.grad for key, value in own.items() if is_real(value)}


def broken(name: str, op: Op | None = None, **sizes: Any) -> dict[str, tuple[float, float]]:
    """What the tolerance rule says about an operation in float32, the fused one if not told otherwise."""
    inputs = inputs_of(name, **sizes)
    candidate = measure(op or FUSED[name], inputs, torch.float32)
    return violations(
        candidate, measure(COMPOSED[name], inputs, torch.float32), measure(EXACT[name], inputs, torch.float64)
    )


def loaded() -> Library:
    assert library.loaded is not None, library.problem
    return library.loaded


def test_library_is_here_and_serves_float32_and_float64() -> None:
    loaded()
    for dtype in (torch.float32, torch.float64):
        x = torch.ones(2, 1, 2, dtype=dtype, requires_grad=True)
        assert "_Gated" in type(blocks.gated_unit(x).grad_fn).__name__


def test_other_dtypes_and_mixed_ones_take_the_composed_form() -> None:
    x = torch.randn(4, 2, 3, dtype=torch.bfloat16)
    found = blocks.depthwise_conv(x, torch.ones(2, 3, dtype=torch.bfloat16), torch.zeros(3, dtype=torch.bfloat16))
    assert found.dtype == torch.bfloat16
    assert blocks._composed(x.float(), torch.ones(2, 3, dtype=torch.float64))
    assert not blocks._composed(x.float(), torch.ones(2, 3))


@every_op
@pytest.mark.parametrize("channels", [1, 7, 16, 33])
@pytest.mark.parametrize(("steps", "batch"), [(1, 1), (4, 5), (23, 1), (130, 5)])
def test_odd_sizes_keep_the_rule(name: str, channels: int, steps: int, batch: int) -> None:
    assert broken(name, steps=steps, batch=batch, channels=channels, taps=5) == {}


@every_op
@pytest.mark.parametrize(("steps", "batch", "channels"), [(3000, 1, 1), (1200, 2, 3)])
def test_long_sequences_keep_the_rule(name: str, steps: int, batch: int, channels: int) -> None:
    assert broken(name, steps=steps, batch=batch, channels=channels, taps=9) == {}


@every_op
@pytest.mark.parametrize("channels", [1, 20])
def test_sums_over_very_many_frames_keep_the_rule(name: str, channels: int) -> None:
    """The gradients of parameters are sums over all frames, which must not lose digits with their number."""
    inputs = inputs_of(name, 40_000, 1, channels, taps=2)
    exact = measure(COMPOSED[name], inputs, torch.float64)  # the loops would take minutes
    plain = measure(COMPOSED[name], inputs, torch.float32)
    assert violations(measure(FUSED[name], inputs, torch.float32), plain, exact) == {}


@pytest.mark.parametrize("taps", [1, 2, 7, 8, 9, 16, 17, 31])
@pytest.mark.parametrize("ahead", [0, 1, 7])
def test_conv_any_number_of_taps_and_of_future_steps_keeps_the_rule(taps: int, ahead: int) -> None:
    for steps in (1, 5, 19):  # also fewer steps than taps
        assert broken("conv", steps=steps, batch=3, channels=9, taps=taps, ahead=min(ahead, taps - 1)) == {}


@pytest.mark.parametrize("lengths", [[12, 0, 5, 1], [0, 0, 0, 7], [12, 12, 12, 12]])
@pytest.mark.parametrize("channels", [1, 7, 33])
def test_norm_with_lengths_keeps_the_rule(lengths: list[int], channels: int) -> None:
    assert broken("norm", steps=12, batch=4, channels=channels, lengths=lengths) == {}


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.uint8])
def test_norm_with_lengths_of_any_whole_type_gives_the_same_bits(dtype: torch.dtype) -> None:
    inputs = inputs_of("norm", 6, 3, 4, lengths=[6, 2, 3])
    expected = blocks.batch_norm(*inputs.values())
    found = blocks.batch_norm(*{**inputs, "lengths": inputs["lengths"].to(dtype)}.values())
    assert all(map(torch.equal, found, expected))


@every_op
def test_float64_equals_the_loops(name: str) -> None:
    for sizes in ({"steps": 11, "batch": 3, "channels": 7}, {"steps": 40, "batch": 2, "channels": 17}):
        inputs = inputs_of(name, **sizes)
        exact = measure(EXACT[name], inputs, torch.float64)
        for op in (FUSED[name], COMPOSED[name]):
            close(tuple(measure(op, inputs, torch.float64).values()), tuple(exact.values()), 1e-12)


@every_op
@pytest.mark.parametrize(("steps", "batch"), [(0, 3), (4, 0), (0, 0)])
def test_empty_input_gives_empty_output_and_zero_gradients(name: str, steps: int, batch: int) -> None:
    torch.use_deterministic_algorithms(True)  # fills new memory with NaN
    try:
        found = measure(FUSED[name], inputs_of(name, steps, batch, 5), torch.float64)
    finally:
        torch.use_deterministic_algorithms(False)
    assert found["output 0"].shape == (steps, batch, 5)
    for key, value in found.items():
        assert not value.count_nonzero(), key


@pytest.mark.parametrize("op", [blocks.batch_norm, blocks._composed_norm], ids=["fused", "composed"])
def test_norm_without_a_valid_frame_gives_zeros(op: Op) -> None:
    found = measure(op, inputs_of("norm", 4, 2, 3, lengths=[0, 0]), torch.float64)
    for key, value in found.items():
        assert not value.count_nonzero(), key


@pytest.mark.parametrize("filling", [float("nan"), float("inf"), -1e30])
@pytest.mark.parametrize("op", [blocks.batch_norm, blocks._composed_norm], ids=["fused", "composed"])
def test_norm_padding_may_hold_anything(op: Op, filling: float) -> None:
    lengths = [9, 0, 4]
    inputs = inputs_of("norm", 9, 3, 7, lengths=lengths)
    expected = measure(op, inputs, torch.float64)
    spoilt = inputs["x"].clone()
    for b, length in enumerate(lengths):
        spoilt[length:, b] = filling
    found = measure(op, {**inputs, "x": spoilt}, torch.float64)
    for key, value in expected.items():
        assert torch.equal(found[key], value), key
    assert not found["x.grad"][4:, 2].any()
    assert not found["output 0"][:, 1].any()


def test_norm_gradient_in_the_padding_counts_for_nothing() -> None:
    inputs = inputs_of("norm", 6, 2, 3, lengths=[6, 2])
    x = inputs["x"].requires_grad_()
    y, *_ = blocks.batch_norm(*inputs.values())
    along = torch.randn_like(y)
    (expected,) = torch.autograd.grad(y, x, along, retain_graph=True)
    along[2:, 1] = float("nan")
    (found,) = torch.autograd.grad(y, x, along)
    assert torch.equal(found, expected)


def test_norm_statistics_have_no_gradient_in_either_form() -> None:
    inputs = inputs_of("norm", 6, 2, 3, lengths=[6, 2])
    inputs["x"].requires_grad_()
    for op in (blocks.batch_norm, blocks._composed_norm):
        y, mean, variance = op(*inputs.values())
        assert y.requires_grad
        assert not mean.requires_grad
        assert not variance.requires_grad


@every_op
def test_non_contiguous_inputs_and_gradients_give_the_same_bits(name: str) -> None:
    inputs = {key: v.requires_grad_() if is_real(v) else v for key, v in inputs_of(name, 6, 4, 5).items()}

    def strided(value: Tensor) -> Tensor:
        """The same numbers, every other element of a transposed tensor."""
        wide = torch.full((value.size(-1), *value.shape[:-1], 2), float("nan"), dtype=value.dtype)
        wide[..., 0] = value.detach().movedim(-1, 0)
        return wide[..., 0].movedim(0, -1)

    other = {key: strided(v).requires_grad_() if is_real(v) else v for key, v in inputs.items()}
    assert not other["x"].is_contiguous()
    first, second = (FUSED[name](*own.values()) for own in (inputs, other))
    first, second = (one[0] if isinstance(one, tuple) else one for one in (first, second))
    assert torch.equal(first, second)
    along = torch.randn_like(first)
    leaves = [[v for v in own.values() if is_real(v)] for own in (inputs, other)]
    expected = torch.autograd.grad(first, leaves[0], along)
    found = torch.autograd.grad(second, leaves[1], strided(along))
    assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize(
    "view", [torch._neg_view, lambda x: torch.view_as_complex(x.unflatten(-1, (-1, 2))).conj().imag]
)
def test_lazy_negation_is_resolved(view: Any) -> None:
    x = view(torch.randn(4, 3, 8))
    assert x.is_neg()
    close(blocks.gated_unit(x), blocks._composed_gate(x), 1e-6)


@pytest.mark.parametrize("shape", [(6,), (5, 6), (2, 5, 3, 6), (2, 2, 5, 3, 6)])
def test_gate_of_any_number_of_axes(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    close(blocks.gated_unit(x), exact_gate(x), 1e-13)
    assert torch.autograd.gradcheck(blocks.gated_unit, (x,))
    assert torch.autograd.gradgradcheck(blocks.gated_unit, (x,))


@every_op
def test_extreme_values_give_no_nan(name: str) -> None:
    inputs = inputs_of(name, 5, 2, 4)
    inputs["x"][0], inputs["x"][1] = 1e4, -1e4
    found = measure(FUSED[name], inputs, torch.float32)
    assert all(value.isfinite().all() for value in found.values())


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@every_op
@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("own", [False, True], ids=["torch's threads", "own threads"])
def test_any_number_of_threads_keeps_the_rule_and_repeats_its_bits(
    name: str, own: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if own:
        monkeypatch.setattr(loaded(), "_team", None)
    monkeypatch.setattr(blocks, "WORTH_A_THREAD", 1)
    sizes = {"steps": 300, "batch": 9, "channels": 33, "taps": 4}
    inputs = inputs_of(name, **sizes)
    for count in (1, 2, 3, 7):
        torch.set_num_threads(count)
        assert broken(name, **sizes) == {}
        first, second = (measure(FUSED[name], inputs, torch.float32) for _ in range(2))
        assert all(torch.equal(first[key], second[key]) for key in first)


@every_op
@pytest.mark.parametrize("level", range(len(INSTRUCTION_SETS)), ids=INSTRUCTION_SETS)
def test_every_instruction_set_keeps_the_rule(name: str, level: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if level > loaded().level:
        pytest.skip(f"this machine has no {INSTRUCTION_SETS[level]}")
    monkeypatch.setattr(loaded(), "level", level)
    for channels in (1, 7, 27):
        assert broken(name, steps=20, batch=5, channels=channels, taps=11, lengths=[20, 3, 0, 11, 8]) == {}


@every_op
def test_every_value_is_written(name: str) -> None:
    """In this mode torch fills new memory with NaN: memory that the compiled code forgets to write would show."""
    torch.use_deterministic_algorithms(True)
    try:
        found = measure(FUSED[name], inputs_of(name, 7, 3, 9, taps=12, lengths=[0, 7, 3]), torch.float64)
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(value.isfinite().all() for value in found.values())
