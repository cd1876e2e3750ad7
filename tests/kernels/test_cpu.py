"""The fused CPU backend against the reference, by the tolerance rule: every layer, every option, odd sizes, every instruction
set, any number of threads."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import functional_call, grad, stack_module_state, vmap

from mistrnn.kernels.cpu import library
from mistrnn.kernels.cpu.library import INSTRUCTION_SETS, Library
from mistrnn.layers import LAYERS, MIST, RNN, RecurrentLayer
from tests.layers.cases import (
    REGULARISERS,
    as_tuple,
    close,
    every_fused_layer,
    probing,
    random_state,
    randomised,
    seeded,
    small,
)
from tests.tolerance import violations


def loaded() -> Library:
    assert library.loaded is not None, library.problem
    return library.loaded


def measure(
    layer: RecurrentLayer,
    backend: Any,
    dtype: torch.dtype,
    steps: int,
    batch: int,
    loss_at: str = "every step",
    probed: bool = True,
    **call: Any,
) -> dict[str, Tensor]:
    """Outputs, states and all gradients of a layer on a backend and in a dtype, from the same numbers and masks.

    Probed, among the gradients are those with respect to all states.
    """
    layer = layer.to(dtype)
    layer.backend = backend
    layer.zero_grad()
    with seeded(5):
        input = torch.randn(steps, batch, layer.input_size, dtype=torch.float64).to(dtype).requires_grad_()
        state = tuple(
            part.to(dtype).requires_grad_() if part.is_floating_point() else part
            for part in as_tuple(random_state(layer.double(), batch))
        )
        layer.to(dtype)
        weights = torch.randn(steps, batch, layer.output_size, dtype=torch.float64).to(dtype)
        with probing(layer, probed) as probes:
            output, final = layer(input, state if len(state) > 1 else state[0], **call)
    found = {"output": output} | {f"final {k}": p for k, p in enumerate(as_tuple(final)) if p.is_floating_point()}
    if loss_at == "every step":
        loss = (output * weights).sum() + sum((part * 0.1).sum() for part in found.values())
    else:  # one step in the middle: no gradient arrives from later ones, and few reach the first
        loss = (output[steps // 2] * weights[0]).sum()
    loss.backward()
    found["input.grad"] = input.grad
    found |= {f"initial {k}.grad": part.grad for k, part in enumerate(state) if part.is_floating_point()}
    found |= {f"{key}.grad": parameter.grad for key, parameter in layer.named_parameters()}
    found |= {f"{key}.grad": probe.grad for key, probe in probes.items()}
    return {key: value.detach().clone() for key, value in found.items() if value is not None}


def broken(layer: RecurrentLayer, steps: int, batch: int, **options: Any) -> dict[str, tuple[float, float]]:
    """What the tolerance rule says about the fused backend in float32."""
    backends = (("fused", torch.float32), ("reference", torch.float32), ("reference", torch.float64))
    return violations(*(measure(layer, backend, dtype, steps, batch, **options) for backend, dtype in backends))


def tame(layer: RecurrentLayer) -> RecurrentLayer:
    """Shrink the recurrent weights until rounding is not amplified from step to step: luck would decide otherwise."""
    with torch.no_grad():
        for key, parameter in layer.named_parameters():
            if key.startswith("weight_hh"):
                parameter.mul_(0.5 / (parameter.square().mean().sqrt() * parameter.size(1) ** 0.5))
    return layer


def sized(name: str, hidden: int, input_size: int = 2, **options: Any) -> RecurrentLayer:
    if name == "clockwork":
        options.setdefault("periods", [1, 2, 4])
        hidden = max(3, hidden // 3 * 3)
    with seeded(1):
        return tame(LAYERS[name](input_size, hidden, **options, dtype=torch.float64))


@every_fused_layer
def test_auto_takes_the_fused_form_here(name: str) -> None:
    layer = LAYERS[name](1, 8)
    assert layer.backend == "auto"
    assert layer.takes_fused(layer.weight_hh_l0)
    layer.backend = "reference"
    assert not layer.takes_fused(layer.weight_hh_l0)


@every_fused_layer
@pytest.mark.parametrize("regulariser", list(REGULARISERS))
@pytest.mark.parametrize("training", [True, False])
def test_options_lengths_resets_and_directions(name: str, regulariser: str, training: bool) -> None:
    with seeded(2):
        layer = tame(small(name, hidden_size=18, num_layers=2, bidirectional=True, **REGULARISERS[regulariser]))
        reset = torch.rand(15, 4) < 0.15
    layer.train(training)
    assert broken(layer, 15, 4, lengths=[9, 15, 0, 12], reset=reset) == {}


@every_fused_layer
@pytest.mark.parametrize(("hidden", "batch", "steps"), [(1, 1, 1), (7, 3, 129), (16, 33, 4), (139, 2, 30), (198, 9, 5)])
def test_odd_sizes(name: str, hidden: int, batch: int, steps: int) -> None:
    assert broken(sized(name, hidden), steps, batch) == {}


@every_fused_layer
def test_a_thousand_units(name: str) -> None:
    options: dict[str, Any] = {"mist": {"delays": 3}, "narx": {"delays": 2}}.get(name, {})
    assert broken(sized(name, 1024, **options), 3, 2) == {}


@every_fused_layer
def test_ten_thousand_steps(name: str) -> None:
    options: dict[str, Any] = {"mist": {"delays": 3}, "narx": {"delays": 2}}.get(name, {})
    assert broken(sized(name, 6, 1, **options), 10_000, 1) == {}


@pytest.mark.parametrize("name", ["mist", "narx"])
def test_delays_of_thousands_of_steps(name: str) -> None:
    assert broken(sized(name, 5, delays=[1, 700, 4096]), 300, 2) == {}  # shorter than the delays
    if name == "mist":
        assert broken(sized(name, 5, delays=[4096, 2]), 4200, 1) == {}


@every_fused_layer
@pytest.mark.parametrize("regulariser", ["plain", "all"])
@pytest.mark.parametrize("level", range(len(INSTRUCTION_SETS)), ids=INSTRUCTION_SETS)
def test_every_instruction_set(name: str, regulariser: str, level: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if level > loaded().level:
        pytest.skip(f"this machine has no {INSTRUCTION_SETS[level]}")
    monkeypatch.setattr(loaded(), "level", level)
    with seeded(2):
        layer = tame(small(name, hidden_size=27, input_size=5, **REGULARISERS[regulariser]))
    assert broken(layer, 20, 5, lengths=[20, 3, 20, 11, 8]) == {}


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@every_fused_layer
@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("own", [False, True], ids=["torch's threads", "own threads"])
def test_any_number_of_threads(name: str, own: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if own:
        monkeypatch.setattr(loaded(), "_team", None)
    monkeypatch.setattr("mistrnn.kernels.cpu.backend.WORTH_A_THREAD", 1)
    layer = sized(name, 24)
    for count in (2, 3, 7):
        torch.set_num_threads(count)
        assert broken(layer, 12, 5, lengths=[12, 4, 9, 12, 1]) == {}
        first, second = (measure(layer, "fused", torch.float32, 12, 5) for _ in range(2))
        assert all(torch.equal(first[key], second[key]) for key in first)  # the same call, the same bits


@every_fused_layer
@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("own", [False, True], ids=["torch's threads", "own threads"])
def test_threads_that_share_the_weights(name: str, own: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if own:
        monkeypatch.setattr(loaded(), "_team", None)
    monkeypatch.setattr(loaded(), "together", 1)
    monkeypatch.setattr("mistrnn.kernels.cpu.backend.WORTH_A_THREAD", 1)
    with seeded(2):
        layer = tame(small(name, hidden_size=54, num_layers=2, bidirectional=True, **REGULARISERS["all"]))
        reset = torch.rand(6, 5) < 0.15
    for count in (2, 3):
        torch.set_num_threads(count)
        assert broken(layer, 6, 5, lengths=[6, 3, 0, 6, 1], reset=reset) == {}
    one_layer = sized(name, 24)
    assert broken(one_layer, 3, 70) == {}  # more than a block of sequences
    first, second = (measure(one_layer, "fused", torch.float32, 4, 5) for _ in range(2))
    assert all(torch.equal(first[key], second[key]) for key in first)


@every_fused_layer
@pytest.mark.usefixtures("threads")
def test_threads_that_share_the_weights_of_one_trial_after_the_other(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mistrnn.kernels.cpu.backend.WORTH_A_THREAD", 1)
    torch.set_num_threads(2)
    layer, parameters = stacked(name, 3)
    layer.backend = "fused"
    input = torch.randn(5, 4, 3, dtype=torch.float64)

    def loss(values: dict[str, Tensor]) -> Tensor:
        return functional_call(layer, values, (input,))[0].square().sum()

    apart, together = {}, {}
    for found, choice in ((apart, 0), (together, 1)):
        monkeypatch.setattr(loaded(), "together", choice)
        found |= vmap(grad(loss))(parameters)
    close(tuple(together.values()), tuple(apart.values()), 1e-12)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("name", ["mist", "lstm"])
def test_large_layers(name: str) -> None:
    torch.set_num_threads(2)
    layer = sized(name, 1024)
    assert broken(layer, 3, 4) == {}


def test_fewer_threads_than_asked_for_do_not_wait_for_the_others() -> None:
    """OpenMP may give fewer threads than it was asked for; those that share weights wait only for members that are there."""
    code = """
import torch
from mistrnn import LSTM
from mistrnn.kernels.cpu import library
from mistrnn.kernels.cpu import backend as cpu
torch.set_num_threads(4)
cpu.WORTH_A_THREAD, library.loaded.together = 1, 1
layer, input = LSTM(2, 64), torch.randn(6, 5, 2)
found = layer(input)[0]
layer.backend = "reference"
torch.testing.assert_close(found, layer(input)[0])
print("done")
"""
    environment = {**os.environ, "OMP_THREAD_LIMIT": "2"}
    ended = subprocess.run([sys.executable, "-c", code], env=environment, timeout=100, capture_output=True, text=True)
    assert ended.stdout == "done\n", ended.stderr


@every_fused_layer
def test_every_value_is_written(name: str) -> None:
    """In this mode torch fills new memory with NaN: whatever the compiled code forgets to write would show."""
    with seeded(2):
        layer = small(name, hidden_size=9, bidirectional=True, layer_norm=True)
    torch.use_deterministic_algorithms(True)
    try:
        found = measure(layer, "fused", torch.float64, 7, 3, lengths=[0, 7, 3])
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(value.isfinite().all() for value in found.values())
    close(
        tuple(found.values()),
        tuple(measure(layer, "reference", torch.float64, 7, 3, lengths=[0, 7, 3]).values()),
        1e-10,
    )


@every_fused_layer
def test_padding_may_hold_anything(name: str) -> None:
    layer = small(name, bidirectional=True)
    layer.backend = "fused"
    input = torch.randn(6, 2, 3, dtype=torch.float64)
    input[4:, 1] = float("nan")
    input.requires_grad_()
    output, _ = layer(input, lengths=[6, 4])
    output.sum().backward()
    assert output.isfinite().all()
    assert input.grad is not None
    assert not input.grad[4:, 1].any()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in layer.parameters())


@every_fused_layer
def test_steps_that_no_gradient_reaches_are_skipped_rightly(name: str) -> None:
    layer = sized(name, 16)
    assert broken(layer, 16, 3, loss_at="middle") == {}
    with torch.no_grad():
        layer.weight_hh_l0.mul_(1e-3)  # the gradient vanishes within a few steps
    fused, plain = (
        measure(layer, backend, torch.float32, 60, 3, loss_at="middle") for backend in ("fused", "reference")
    )
    for key, value in fused.items():
        torch.testing.assert_close(value, plain[key], rtol=1e-4, atol=1e-6)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("flush", [False, True])
def test_subnormals_count_as_zero_on_every_thread_and_the_mode_is_put_back(
    flush: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mistrnn.kernels.cpu.backend.WORTH_A_THREAD", 1)
    torch.set_num_threads(2)
    layer = RNN(1, 4)
    with torch.no_grad():
        layer.weight_hh_l0.copy_(torch.eye(4) * 0.5)
    small_number = torch.tensor(1e-39)
    input = torch.randn(140, 32, 1)

    def subnormals(backend: Any) -> int:
        layer.backend = backend
        x = input.clone().requires_grad_()
        layer(x)[0][-1].sum().backward()
        assert x.grad is not None
        return int(((x.grad != 0) & (x.grad.abs() < torch.finfo(torch.float32).tiny)).sum())

    torch.set_flush_denormal(flush)
    try:
        assert subnormals("fused") == 0
        assert bool(small_number * 1 != 0) is not flush  # the caller's own mode
    finally:
        torch.set_flush_denormal(False)
    assert subnormals("reference") > 100  # or there was nothing to flush


def stacked(name: str, count: int) -> tuple[RecurrentLayer, dict[str, Tensor]]:
    with seeded(3):
        layers = [small(name, hidden_size=9) for _ in range(count)]
    parameters, _ = stack_module_state(list(layers))
    return layers[0], parameters


@every_fused_layer
def test_a_trial_full_of_nan_leaves_the_others_bit_identical(name: str) -> None:
    layer, parameters = stacked(name, 3)
    input = torch.randn(3, 8, 4, 3, dtype=torch.float64)

    def loss(values: dict[str, Tensor], x: Tensor) -> Tensor:
        return functional_call(layer, values, (x,))[0].square().sum()

    gradients = vmap(grad(loss))(parameters, input)
    spoilt = {key: value.clone() for key, value in parameters.items()}
    spoilt["weight_hh_l0"][1] = float("nan")
    beside = vmap(grad(loss))(spoilt, input)
    for key, value in gradients.items():
        assert torch.equal(value[[0, 2]], beside[key][[0, 2]]), key
    assert beside["weight_hh_l0"][1].isnan().any()


@every_fused_layer
def test_trials_are_an_axis_in_any_order_of_transformations(name: str) -> None:
    layer, parameters = stacked(name, 6)
    input = torch.randn(7, 2, 3, dtype=torch.float64)

    def loss(values: dict[str, Tensor], x: Tensor) -> Tensor:
        return functional_call(layer, values, (x,))[0].square().sum()

    expected = [grad(loss)({key: value[k] for key, value in parameters.items()}, input) for k in range(6)]
    inside = vmap(grad(loss), in_dims=(0, None))(parameters, input)
    outside = grad(lambda values: vmap(loss, in_dims=(0, None))(values, input).sum())(parameters)
    pairs = {key: value.unflatten(0, (2, 3)) for key, value in parameters.items()}
    nested = vmap(vmap(grad(loss), in_dims=(0, None)), in_dims=(0, None))(pairs, input)
    for key in parameters:
        wanted = torch.stack([gradients[key] for gradients in expected])
        for found in (inside[key], outside[key], nested[key].flatten(0, 1)):
            close(found, wanted, 1e-10)


@every_fused_layer
def test_gradients_that_arrive_in_any_layout(name: str) -> None:
    """`sum` sends one number to every element, a transposed loss sends strides of its own."""
    layer = small(name, hidden_size=6, batch_first=True)
    layer.backend = "fused"
    input = torch.randn(3, 5, 3, dtype=torch.float64)
    results = []
    for loss in (
        lambda y: y.sum(),
        lambda y: (y * torch.ones_like(y)).sum(),
        lambda y: (y.permute(2, 1, 0).contiguous() * torch.ones(6, 5, 3, dtype=y.dtype)).sum(),
    ):
        layer.zero_grad()
        loss(layer(input)[0]).backward()
        results.append(tuple(p.grad.clone() for p in layer.parameters() if p.grad is not None))
    close(results[1], results[0], 1e-12)
    close(results[2], results[0], 1e-12)


@every_fused_layer
def test_second_derivatives_come_from_the_plain_form(name: str) -> None:
    layer = small(name, hidden_size=6)
    input = torch.randn(4, 2, 3, dtype=torch.float64, requires_grad=True)
    found = []
    for backend in ("fused", "reference"):
        layer.backend = backend  # type: ignore[assignment]
        (first,) = torch.autograd.grad(layer(input)[0].sin().sum(), input, create_graph=True)
        found.append(torch.autograd.grad(first.square().sum(), [input, *layer.parameters()]))
    close(found[0], found[1], 1e-10)


def test_gradients_of_only_what_is_asked_for() -> None:
    layer = randomised(MIST(2, 5, delays=3, dtype=torch.float64))
    input = torch.randn(6, 2, 2, dtype=torch.float64)
    whole = torch.autograd.grad(layer(input)[0].sum(), list(layer.parameters()))
    layer.weight_ih_l0.requires_grad_(False)
    layer.bias_l0.requires_grad_(False)
    (alone,) = torch.autograd.grad(layer(input)[0].sum(), [layer.weight_hh_l0])
    close(alone, whole[1])
    for parameter in layer.parameters():
        parameter.requires_grad_(False)
    input.requires_grad_()
    (of_input,) = torch.autograd.grad(layer(input)[0].sum(), [input])
    layer.backend = "reference"
    close(of_input, torch.autograd.grad(layer(input)[0].sum(), [input])[0])


@every_fused_layer
@pytest.mark.parametrize("regulariser", list(REGULARISERS))
def test_frozen_layers_pass_gradients_on(name: str, regulariser: str) -> None:
    layer = small(name, **REGULARISERS[regulariser]).requires_grad_(False).eval()
    input = torch.randn(6, 2, 3, dtype=torch.float64, requires_grad=True)
    found = []
    for backend in ("fused", "reference"):
        layer.backend = backend  # type: ignore[assignment]
        found.append(torch.autograd.grad(layer(input)[0].square().sum(), [input])[0])
    close(found[0], found[1], 1e-10)


@pytest.mark.parametrize("hidden", [6, 8, 16])
def test_nan_after_a_reset_stays_after_it_in_the_gradients_of_the_input(hidden: int) -> None:
    layer = small("mist", hidden_size=hidden, zoneout=0.3).eval()
    reset = torch.tensor([False, False, False, True, False, False]).unsqueeze(1)
    for backend in ("fused", "reference"):
        layer.backend = backend  # type: ignore[assignment]
        input = torch.randn(6, 1, 3, dtype=torch.float64)
        input[4] = float("nan")
        input.requires_grad_()
        layer(input, reset=reset)[0].sum().backward()
        assert input.grad is not None
        assert input.grad[:3].isfinite().all()
        assert input.grad[4].isnan().any()


def test_lengths_are_put_in_order_in_no_time() -> None:
    layer, batch = RNN(1, 2), 50_000
    lengths, input = torch.randint(0, 4, (batch,)), torch.randn(3, batch, 1)
    start = time.perf_counter()
    output, _ = layer(input, lengths=lengths)
    assert time.perf_counter() - start < 0.5
    layer.backend = "reference"
    torch.testing.assert_close(output, layer(input, lengths=lengths)[0])


def test_vmap_over_nothing_gives_nothing() -> None:
    layer = small("mist")
    assert vmap(lambda x: layer(x)[0])(torch.empty(0, 5, 2, 3, dtype=torch.float64)).shape == (0, 5, 2, 6)
