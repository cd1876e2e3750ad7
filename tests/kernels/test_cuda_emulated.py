"""The GPU kernels' own source, run on a CPU by the emulator: every layer, every option, splits and clusters, odd sizes.

Speed and hardware arithmetic are tested in test_cuda.py, on a GPU. Output tensors and shared memory are poisoned first.
"""

import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import functional_call, grad, stack_module_state, vmap

from mistrnn.kernels.cell import cells, is_registered
from mistrnn.kernels.contract import INPUTS, Settings
from mistrnn.kernels.cuda import backend as cuda
from mistrnn.kernels.cuda import launch
from mistrnn.kernels.cuda.persistent.variant import Launch
from mistrnn.kernels.cuda.program import ROOT
from mistrnn.layers import LAYERS, MIST, RecurrentLayer
from tests.kernels.emulator import emulate, on_linux
from tests.kernels.test_cpu import measure, tame
from tests.layers.cases import REGULARISERS, every_cuda_layer, seeded, small
from tests.tolerance import relative_error

pytestmark = on_linux

ROUNDINGS = {0: 1e-12, 1: 3e-2, 2: 3e-5, 3: 2e-6}
"""Largest relative error against float64 at these sizes, by splits (0: float64 itself)."""


@pytest.fixture(autouse=True)
def poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    new = launch.KernelCall.new

    def poison(call: Any, *arguments: Any) -> Tensor:
        return new(call, *arguments).fill_(float("nan"))

    monkeypatch.setattr(launch.KernelCall, "new", poison)


def errors(
    layer: RecurrentLayer,
    splits: int,
    steps: int,
    batch: int,
    configuration: Launch | None = None,
    capability: int = 90,
    **call: Any,
) -> dict[str, float]:
    """Return the tensors whose error against the reference in float64 is too large for the splits."""
    call.setdefault("probed", splits != 2)  # with and without probes
    exact = measure(layer, "reference", torch.float64, steps, batch, **call)
    with pytest.MonkeyPatch.context() as patch:
        emulate(patch, splits or None, configuration, capability)
        found = measure(layer, "fused", torch.float32 if splits else torch.float64, steps, batch, **call)
    assert found.keys() == exact.keys()
    far = {name: relative_error(found[name], exact[name]) for name in exact}
    return {name: error for name, error in far.items() if not error <= ROUNDINGS[splits]}


def sized(name: str, hidden: int, input_size: int = 1, **options: Any) -> RecurrentLayer:
    with seeded(1):
        return tame(small(name, input_size=input_size, hidden_size=hidden, **options))


@pytest.mark.parametrize(("name", "splits"), [("mist", 2), ("lstm", 3), ("clockwork", 0)])
def test_a_sample_of_the_slow_cases_equals_the_reference(name: str, splits: int) -> None:
    assert errors(sized(name, 21), splits, 6, 9, Launch(cluster=2)) == {}


@pytest.mark.slow
@every_cuda_layer
@pytest.mark.parametrize("training", [True, False])
def test_options_lengths_resets_and_directions_equal_the_reference(name: str, training: bool) -> None:
    with seeded(2):
        layer = tame(small(name, hidden_size=18, num_layers=2, bidirectional=True, **REGULARISERS["all"]))
        reset = torch.rand(15, 4) < 0.15
    layer.train(training)
    assert errors(layer, 0, 15, 4, lengths=[9, 15, 0, 12], reset=reset) == {}


@pytest.mark.slow
@every_cuda_layer
def test_two_splits_equal_the_reference(name: str) -> None:
    assert errors(sized(name, 39), 2, 9, 11) == {}


@pytest.mark.slow
def test_one_split_equals_the_reference() -> None:
    assert errors(sized("mist", 20), 1, 6, 3) == {}


@pytest.mark.slow
@every_cuda_layer
def test_a_cluster_of_two_equals_the_reference(name: str) -> None:
    assert errors(sized(name, 51), 2, 7, 9, Launch(cluster=2)) == {}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "configuration"),
    [
        ("mist", Launch(split_k=2, cluster=2)),
        ("mist", Launch(cluster=3)),
        ("lstm", Launch(cluster=3)),
        ("lstm", Launch(split_k=3)),
        ("narx", Launch(split_k=2)),
        ("mist", Launch(unit_tiles=2)),
        ("rnn", Launch(unit_tiles=3)),
        ("mist", Launch(sequences=16)),
        ("gru", Launch(sequences=16, unit_tiles=2)),
        ("clockwork", Launch(spare_registers=250)),
    ],
)
def test_every_launch_configuration_equals_the_reference(name: str, configuration: Launch) -> None:
    assert errors(sized(name, 51), 2, 6, 19, configuration) == {}


@pytest.mark.parametrize("name", ["mist", "lstm"])
def test_single_sequence_sample_of_the_slow_cases_equals_the_reference(name: str) -> None:
    assert errors(sized(name, 21), 3, 6, 2, Launch(sequences=1, cluster=2)) == {}


@pytest.mark.slow
@every_cuda_layer
@pytest.mark.parametrize(
    "configuration",
    [
        Launch(sequences=1),
        Launch(sequences=1, cluster=3),
        Launch(sequences=1, split_k=2),
        Launch(sequences=1, spare_registers=250),
    ],
)
def test_single_sequence_equals_the_reference_in_both_directions(name: str, configuration: Launch) -> None:
    assert errors(sized(name, 51), 3, 7, 9, configuration) == {}


@pytest.mark.slow
@every_cuda_layer
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("cluster", [1, 2])
def test_single_sequence_with_options_lengths_and_resets_equals_the_reference(
    name: str, training: bool, cluster: int
) -> None:
    with seeded(2):
        layer = tame(small(name, hidden_size=18, num_layers=2, bidirectional=True, **REGULARISERS["all"]))
        reset = torch.rand(15, 4) < 0.15
    layer.train(training)
    configuration = Launch(sequences=1, cluster=cluster)
    assert errors(layer, 3, 15, 4, configuration, lengths=[9, 15, 0, 12], reset=reset) == {}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mist", "narx"])
def test_single_sequence_with_the_most_delays_equals_the_reference(name: str) -> None:
    assert errors(sized(name, 5, delays=list(range(1, 17))), 3, 20, 2, Launch(sequences=1)) == {}


@pytest.mark.slow
@every_cuda_layer
def test_layer_norm_over_a_cluster_equals_the_reference(name: str) -> None:
    assert errors(sized(name, 36, layer_norm=True), 0, 5, 3, Launch(cluster=2), lengths=[5, 2, 4]) == {}


@pytest.mark.slow
@every_cuda_layer
def test_odd_sizes_with_three_splits_equal_the_reference(name: str) -> None:
    hidden = 21 if name == "clockwork" else 7
    assert errors(sized(name, hidden, input_size=2), 3, 2, 4) == {}


def test_one_unit_one_sequence_one_step_equals_the_reference() -> None:
    assert errors(sized("mist", 1), 3, 1, 1) == {}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mist", "narx"])
def test_delays_at_their_limits_equal_the_reference(name: str) -> None:
    assert errors(sized(name, 5, delays=[1, 40, 7]), 0, 6, 2) == {}
    assert errors(sized(name, 5, delays=list(range(1, 17))), 0, 20, 2) == {}


@pytest.mark.slow
def test_streamed_weights_equal_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mistrnn.kernels.cuda.persistent.variant.block_memory", lambda capability: 20_000)
    monkeypatch.setattr("mistrnn.kernels.cuda.persistent.variant.MAX_REGISTERS", 90)
    assert errors(sized("lstm", 40), 2, 4, 3, Launch()) == {}


@pytest.mark.slow
@pytest.mark.parametrize("configuration", [Launch(cluster=2), Launch(cluster=2, split_k=2)])
def test_a_cluster_with_one_buffer_equals_the_reference(configuration: Launch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mistrnn.kernels.cuda.persistent.variant.block_memory", lambda capability: 9_000)
    monkeypatch.setattr("mistrnn.kernels.cuda.persistent.variant.MAX_REGISTERS", 90)
    assert errors(sized("mist", 70), 2, 4, 3, configuration) == {}


def check_that_a_diverged_trial_leaves_the_others(name: str, hidden: int) -> None:
    """Check that the other trials keep their bits, and that they equal single runs."""
    layers = [small(name, input_size=1, hidden_size=hidden, dtype=torch.float32) for _ in range(3)]
    x = torch.randn(3, 5, 2, 1)

    def loss(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        return functional_call(layers[0], parameters, (x,))[0].square().sum()

    alone = [grad(loss)(dict(layer.named_parameters()), x[k]) for k, layer in enumerate(layers)]
    with torch.no_grad():
        layers[1].weight_hh_l0.fill_(float("nan"))
    stacked, _ = stack_module_state(layers)
    together = vmap(grad(loss))(stacked, x)
    again = vmap(grad(loss))(stacked, x)
    for key, value in together.items():
        assert torch.equal(value[0], alone[0][key])
        assert torch.equal(value[2], alone[2][key])
        assert value[1].isnan().any()
        assert torch.equal(value[::2], again[key][::2])


@pytest.mark.slow
@every_cuda_layer
def test_a_diverged_trial_leaves_the_bits_of_the_others(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    emulate(monkeypatch, 2, Launch())  # single-sequence blocks would round differently
    check_that_a_diverged_trial_leaves_the_others(name, 9)


def test_jacobian_over_shared_saved_values_equals_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = small("rnn", input_size=1, hidden_size=5, dtype=torch.float32)
    x = torch.randn(4, 1, 1)
    layer.backend = "reference"
    exact = torch.func.jacrev(lambda v: layer(v)[0])(x)
    emulate(monkeypatch, 3)
    layer.backend = "fused"
    assert relative_error(torch.func.jacrev(lambda v: layer(v)[0])(x), exact) < 1e-5


def test_a_backward_run_follows_the_layout_of_the_saved_values(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = small("rnn", input_size=1, hidden_size=70, dtype=torch.float32)
    x = torch.randn(2, 1, 1)
    layer.backend = "reference"
    exact = torch.func.jacrev(lambda v: layer(v)[0][-1, 0, :4])(x)
    emulate(monkeypatch, 3)
    layer.backend = "fused"
    chosen, choose = [], launch.choose

    def watch(*arguments: Any) -> Any:
        chosen.append(choose(*arguments))
        return chosen[-1]

    monkeypatch.setattr(launch, "choose", watch)
    assert relative_error(torch.func.jacrev(lambda v: layer(v)[0][-1, 0, :4])(x), exact) < 1e-5
    assert [variant.launch.cluster for variant in chosen] == [2, 2]  # though four trials alone would get one block each


@pytest.mark.parametrize("kind", ["transposed", "expanded"])
def test_states_in_any_memory_layout_equal_the_reference(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    layer = small("rnn", input_size=1, hidden_size=5, dtype=torch.float32)
    start = torch.randn(5, 3).T if kind == "transposed" else torch.full((1, 1), 0.5).expand(3, 5)
    x, found = torch.randn(4, 3, 1), []
    for backend in ("reference", "fused"):
        if backend == "fused":
            emulate(monkeypatch, 3)
        layer.backend = backend  # type: ignore[assignment]
        loss = layer(x, start.unsqueeze(0))[0].square().sum()
        found.append(torch.autograd.grad(loss, layer.weight_hh_l0)[0])
    assert relative_error(found[1], found[0]) < 1e-5


def test_clocks_of_any_size_equal_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = small("clockwork", input_size=1, hidden_size=6, dtype=torch.float64)
    x, h = torch.randn(5, 2, 1, dtype=torch.float64), torch.randn(1, 2, 6, dtype=torch.float64)
    state = (h, torch.tensor([[2**32 + 2, -1]]))
    layer.backend = "reference"
    exact = layer(x, state)[0]
    emulate(monkeypatch)
    layer.backend = "fused"
    assert relative_error(layer(x, state)[0], exact) < 1e-12


def test_plan_with_too_many_trials_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    emulate(monkeypatch, 2)
    monkeypatch.setattr(launch, "MAX_TRIALS", 2)
    layer = small("rnn", input_size=1, hidden_size=3, dtype=torch.float32)
    with pytest.raises(ValueError, match="rnn: expected at most 2 trials at once on a GPU, got 3"):
        vmap(lambda x: layer(x)[0])(torch.randn(3, 2, 1, 1))


def test_plan_with_too_many_steps_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    emulate(monkeypatch, 2)
    monkeypatch.setattr(launch, "MAX_ROWS", 5)
    layer = small("rnn", input_size=1, hidden_size=3, dtype=torch.float32)
    with pytest.raises(ValueError, match="rnn: expected at most 5 time steps times sequences on a GPU, got 3 x 2"):
        layer(torch.randn(3, 2, 1))


def test_softmax_of_the_lowest_logits_equals_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = small("mist", input_size=1, hidden_size=3, dtype=torch.float32, delays=3)
    x = torch.randn(5, 2, 1)
    with torch.no_grad():
        layer.bias_l0[:3] = -1e35
    layer.backend = "reference"
    exact = layer(x)[0]
    emulate(monkeypatch, 2)
    layer.backend = "fused"
    assert relative_error(layer(x)[0], exact) < 1e-5


def test_plan_of_the_same_shapes_is_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    emulate(monkeypatch, 2)
    layer = small("rnn", input_size=1, hidden_size=3, dtype=torch.float32)

    def train(*shape: int) -> None:
        layer(torch.randn(*shape, 1))[0].sum().backward()

    train(2, 1)
    first = dict(launch.plans)
    assert [plan.problem.backward for plan in first.values()] == [False, True]
    train(2, 1)
    assert list(launch.plans.values()) == list(first.values())
    train(3, 1)
    assert len(launch.plans) == 4


def test_plan_cache_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    emulate(monkeypatch, 2)
    monkeypatch.setattr(launch, "MAX_PLANS", 2)
    layer = small("rnn", input_size=1, hidden_size=3, dtype=torch.float32)
    for steps in (1, 2, 3):
        layer(torch.randn(steps, 1, 1))
        assert 1 <= len(launch.plans) <= 2


def test_out_of_memory_names_the_trials_that_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    emulate(monkeypatch, 2)

    def refuse(*_: Any) -> Tensor:
        raise torch.OutOfMemoryError("nothing is left")

    layer = small("rnn", input_size=1, hidden_size=3, dtype=torch.float32)
    monkeypatch.setattr(Tensor, "new_empty", refuse)
    for name, value in {"memory_reserved": 0, "memory_allocated": 0, "mem_get_info": (4 * 1600, 0)}.items():
        monkeypatch.setattr(torch.cuda, name, lambda device, value=value: value)
    # Each takes 2 steps of 2 * 3 states and 4 gradients, its saved values (2 steps of one warp with 4 numbers a thread) and a
    # tile of weights in two splits: 1,104 + 1,024 bytes.
    expected = (
        r"rnn: expected memory for 1 trials of 1 sequences of 2 steps with 3 units, .* about 3 would fit. \(nothing"
    )
    with pytest.raises(torch.OutOfMemoryError, match=expected):
        layer(torch.randn(2, 1, 1))


def test_out_of_memory_backward_counts_saved_values_as_free(monkeypatch: pytest.MonkeyPatch) -> None:
    emulate(monkeypatch, 2)
    layer = small("rnn", input_size=1, hidden_size=3, dtype=torch.float32)
    output = layer(torch.randn(2, 1, 1))[0].sum()
    made: list[weakref.ref[Tensor]] = []
    new = launch.KernelCall.new

    def refuse_later(call: launch.KernelCall, name: str, *shape: int) -> Tensor:
        if name == "sums":  # after dz
            raise torch.OutOfMemoryError("nothing is left")
        tensor = new(call, name, *shape)
        made.append(weakref.ref(tensor))
        return tensor

    def free(device: torch.device) -> tuple[int, int]:
        assert [tensor() for tensor in made] == [None]  # the call's tensors are freed first
        return 2 * 2128, 0

    monkeypatch.setattr(launch.KernelCall, "new", refuse_later)
    monkeypatch.setattr(torch.cuda, "mem_get_info", free)
    for name in ("memory_reserved", "memory_allocated"):
        monkeypatch.setattr(torch.cuda, name, lambda device: 0)
    # Free are 2,128 bytes for each of two trials, and the forward run has left 24 bytes of states and 1,024 saved ones.
    with pytest.raises(torch.OutOfMemoryError, match=r"about 2 would fit. \(nothing"):
        output.backward()
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (3 * 2128 - 1048, 0))
    with pytest.raises(torch.OutOfMemoryError, match=r"about 3 would fit. \(nothing"):
        layer(torch.randn(2, 1, 1))[0].sum().backward()


def test_a_wrong_shape_after_a_cached_plan_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    emulate(monkeypatch, 2)
    layer = small("rnn", input_size=1, hidden_size=3, single_bias=True, dtype=torch.float32)
    x = torch.randn(2, 1, 1)
    layer(x)
    wrong = {**dict(layer.named_parameters()), "bias_l0": torch.zeros(4)}
    with pytest.raises(ValueError, match=r"rnn: expected bias \[1, 3\] in torch.float32 on the CPU"):
        functional_call(layer, wrong, (x,))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mist", "narx", "lstm"])
def test_a_guarded_run_stays_within_its_tensors(name: str) -> None:
    command = [sys.executable, "-m", "tests.kernels.guarded_run", name, "2"]
    found = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert found.returncode == 0, found.stderr
    assert found.stdout == "nothing was touched beyond any tensor\n"


def test_half_precision_is_computed_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    emulate(monkeypatch, 1)
    layer = MIST(1, 9, delays=3)
    inputs = {"x": torch.randn(1, 5, 2, 1), "initial_h": torch.zeros(1, 4, 2, 9)}
    inputs |= {name.removesuffix("_l0"): value.detach().unsqueeze(0) for name, value in layer.named_parameters()}
    given = dict.fromkeys(INPUTS) | inputs
    half = {name: None if value is None else value.bfloat16() for name, value in given.items()}
    settings = Settings([1, 2, 4], 0.0, reverse=False, save=True, splits=1)
    exact, found = (cuda.forward("mist", tensors, settings, device="cpu") for tensors in (given, half))
    assert [value.dtype for value in found[:4] if value is not None] == [torch.bfloat16] * 2 + [torch.float32]
    assert relative_error(found[0], exact[0]) < 0.02


def test_every_declared_cell_has_its_sources() -> None:
    assert {name for name, kind in LAYERS.items() if is_registered(kind.cell)} == {cell.name for cell in cells()}
    for cell in cells():
        assert LAYERS[cell.name].cell is cell
        assert (ROOT / f"layers/{cell.name}/cuda.cuh").exists() == (cell.cuda is not None)
        assert (ROOT / f"layers/{cell.name}/stepwise.cuh").exists() == (cell.stepwise is not None)
