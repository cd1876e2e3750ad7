"""The GPU kernels' own source, run on a CPU by the emulator: every layer, every option, parts and clusters, odd sizes.

What only a GPU can show (speed, the machine's own arithmetic) is in test_cuda.py; what the kernels compute is shown here, on
any machine. All memory that the kernels are to write is poisoned first, and so is shared memory.
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

from mistrnn.kernels import _run, cuda
from mistrnn.kernels._variant import Launch
from mistrnn.kernels.contract import CELLS, INPUTS, Settings
from mistrnn.layers import LAYERS, MIST, RecurrentLayer
from tests.kernels.emulator import emulate, on_linux
from tests.kernels.test_cpu import measure, tame
from tests.layers.cases import REGULARISERS, every_fused_layer, seeded, small
from tests.tolerance import relative_error

pytestmark = on_linux

ROUNDINGS = {0: 1e-12, 1: 3e-2, 2: 3e-5, 3: 2e-6}
"""How far from float64 a run of these sizes may be, by parts (0: float64 itself)."""


@pytest.fixture(autouse=True)
def poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    new = _run.Run.new

    def poison(run: Any, *arguments: Any) -> Tensor:
        return new(run, *arguments).fill_(float("nan"))

    monkeypatch.setattr(_run.Run, "new", poison)


def errors(
    layer: RecurrentLayer,
    parts: int,
    steps: int,
    batch: int,
    launch: Launch | None = None,
    capability: int = 90,
    **call: Any,
) -> dict[str, float]:
    """What is further from the plain form in float64 than the parts allow."""
    call.setdefault("probed", parts != 2)  # kernels of both kinds
    exact = measure(layer, "plain", torch.float64, steps, batch, **call)
    with pytest.MonkeyPatch.context() as patch:
        emulate(patch, parts or None, launch, capability)
        found = measure(layer, "fused", torch.float32 if parts else torch.float64, steps, batch, **call)
    assert found.keys() == exact.keys()
    far = {name: relative_error(found[name], exact[name]) for name in exact}
    return {name: error for name, error in far.items() if not error <= ROUNDINGS[parts]}


def sized(name: str, hidden: int, input_size: int = 1, **options: Any) -> RecurrentLayer:
    with seeded(1):
        return tame(small(name, input_size=input_size, hidden_size=hidden, **options))


@pytest.mark.parametrize(("name", "parts"), [("mist", 2), ("lstm", 3), ("clockwork", 0)])
def test_a_sample_of_what_the_slow_tests_check(name: str, parts: int) -> None:
    assert errors(sized(name, 21), parts, 6, 9, Launch(cluster=2)) == {}


@pytest.mark.slow
@every_fused_layer
@pytest.mark.parametrize("training", [True, False])
def test_options_lengths_resets_and_directions(name: str, training: bool) -> None:
    with seeded(2):
        layer = tame(small(name, hidden_size=18, num_layers=2, bidirectional=True, **REGULARISERS["all"]))
        reset = torch.rand(15, 4) < 0.15
    layer.train(training)
    assert errors(layer, 0, 15, 4, lengths=[9, 15, 0, 12], reset=reset) == {}


@pytest.mark.slow
@every_fused_layer
def test_numbers_in_two_parts(name: str) -> None:
    assert errors(sized(name, 39), 2, 9, 11) == {}


@pytest.mark.slow
def test_one_part() -> None:
    assert errors(sized("mist", 20), 1, 6, 3) == {}


@pytest.mark.slow
@every_fused_layer
def test_blocks_that_share_the_units(name: str) -> None:
    assert errors(sized(name, 51), 2, 7, 9, Launch(cluster=2)) == {}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "launch"),
    [
        ("mist", Launch(ranges=2, cluster=2)),
        ("mist", Launch(cluster=3)),
        ("lstm", Launch(cluster=3)),
        ("lstm", Launch(ranges=3)),
        ("narx", Launch(ranges=2)),
        ("mist", Launch(stack=2)),
        ("rnn", Launch(stack=3)),
        ("mist", Launch(rows=16)),
        ("gru", Launch(rows=16, stack=2)),
        ("clockwork", Launch(spare=250)),
    ],
)
def test_every_way_to_share_the_work(name: str, launch: Launch) -> None:
    assert errors(sized(name, 51), 2, 6, 19, launch) == {}


@pytest.mark.parametrize("name", ["mist", "lstm"])
def test_a_sequence_alone_sample_of_what_the_slow_tests_check(name: str) -> None:
    assert errors(sized(name, 21), 3, 6, 2, Launch(rows=1, cluster=2)) == {}


@pytest.mark.slow
@every_fused_layer
@pytest.mark.parametrize(
    "launch", [Launch(rows=1), Launch(rows=1, cluster=3), Launch(rows=1, ranges=2), Launch(rows=1, spare=250)]
)
def test_a_sequence_alone_equals_plain_and_leaves_records_for_the_run_backwards(name: str, launch: Launch) -> None:
    assert errors(sized(name, 51), 3, 7, 9, launch) == {}


@pytest.mark.slow
@every_fused_layer
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("cluster", [1, 2])
def test_a_sequence_alone_with_options_lengths_and_resets_equals_plain(name: str, training: bool, cluster: int) -> None:
    with seeded(2):
        layer = tame(small(name, hidden_size=18, num_layers=2, bidirectional=True, **REGULARISERS["all"]))
        reset = torch.rand(15, 4) < 0.15
    layer.train(training)
    launch = Launch(rows=1, cluster=cluster)
    assert errors(layer, 3, 15, 4, launch, lengths=[9, 15, 0, 12], reset=reset) == {}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mist", "narx"])
def test_a_sequence_alone_with_as_many_delays_as_can_be_equals_plain(name: str) -> None:
    assert errors(sized(name, 5, delays=list(range(1, 17))), 3, 20, 2, Launch(rows=1)) == {}


@pytest.mark.slow
@every_fused_layer
def test_layer_norm_over_a_cluster(name: str) -> None:
    assert errors(sized(name, 36, layer_norm=True), 0, 5, 3, Launch(cluster=2), lengths=[5, 2, 4]) == {}


@pytest.mark.slow
@every_fused_layer
def test_odd_sizes_in_three_parts(name: str) -> None:
    hidden = 21 if name == "clockwork" else 7
    assert errors(sized(name, hidden, input_size=2), 3, 2, 4) == {}


def test_one_unit_one_sequence_one_step() -> None:
    assert errors(sized("mist", 1), 3, 1, 1) == {}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mist", "narx"])
def test_delays_longer_than_the_run_and_as_many_as_can_be(name: str) -> None:
    assert errors(sized(name, 5, delays=[1, 40, 7]), 0, 6, 2) == {}
    assert errors(sized(name, 5, delays=list(range(1, 17))), 0, 20, 2) == {}


@pytest.mark.slow
def test_weights_that_do_not_fit_are_streamed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mistrnn.kernels._variant.block_memory", lambda capability: 20_000)
    monkeypatch.setattr("mistrnn.kernels._variant.MOST_REGISTERS", 90)
    assert errors(sized("lstm", 40), 2, 4, 3, Launch()) == {}


@pytest.mark.slow
@pytest.mark.parametrize("launch", [Launch(cluster=2), Launch(cluster=2, ranges=2)])
def test_a_cluster_with_room_for_one_buffer(launch: Launch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mistrnn.kernels._variant.block_memory", lambda capability: 9_000)
    monkeypatch.setattr("mistrnn.kernels._variant.MOST_REGISTERS", 90)
    assert errors(sized("mist", 70), 2, 4, 3, launch) == {}


def break_one_of_three_trials(name: str, hidden: int) -> None:
    """Check that the others are what they are alone, and the same each time."""
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
@every_fused_layer
def test_trials_are_an_axis_and_a_broken_one_disturbs_nobody(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    emulate(monkeypatch, 2, Launch())  # else a few sequences alone would have blocks of their own, and other roundings
    break_one_of_three_trials(name, 9)


def test_jacobians_are_trials_that_share_what_was_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = small("rnn", input_size=1, hidden_size=5, dtype=torch.float32)
    x = torch.randn(4, 1, 1)
    layer.form = "plain"
    exact = torch.func.jacrev(lambda v: layer(v)[0])(x)
    emulate(monkeypatch, 3)
    layer.form = "fused"
    assert relative_error(torch.func.jacrev(lambda v: layer(v)[0])(x), exact) < 1e-5


def test_a_run_backwards_takes_the_cluster_that_left_the_records(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = small("rnn", input_size=1, hidden_size=70, dtype=torch.float32)
    x = torch.randn(2, 1, 1)
    layer.form = "plain"
    exact = torch.func.jacrev(lambda v: layer(v)[0][-1, 0, :4])(x)
    emulate(monkeypatch, 3)
    layer.form = "fused"
    chosen, choose = [], _run.choose

    def watch(*arguments: Any) -> Any:
        chosen.append(choose(*arguments))
        return chosen[-1]

    monkeypatch.setattr(_run, "choose", watch)
    assert relative_error(torch.func.jacrev(lambda v: layer(v)[0][-1, 0, :4])(x), exact) < 1e-5
    assert [variant.launch.cluster for variant in chosen] == [2, 2]  # though four trials alone would get one block each


@pytest.mark.parametrize("kind", ["transposed", "expanded"])
def test_states_in_any_layout(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    layer = small("rnn", input_size=1, hidden_size=5, dtype=torch.float32)
    start = torch.randn(5, 3).T if kind == "transposed" else torch.full((1, 1), 0.5).expand(3, 5)
    x, found = torch.randn(4, 3, 1), []
    for form in ("plain", "fused"):
        if form == "fused":
            emulate(monkeypatch, 3)
        layer.form = form  # type: ignore[assignment]
        loss = layer(x, start.unsqueeze(0))[0].square().sum()
        found.append(torch.autograd.grad(loss, layer.weight_hh_l0)[0])
    assert relative_error(found[1], found[0]) < 1e-5


def test_clocks_of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = small("clockwork", input_size=1, hidden_size=6, dtype=torch.float64)
    x, h = torch.randn(5, 2, 1, dtype=torch.float64), torch.randn(1, 2, 6, dtype=torch.float64)
    state = (h, torch.tensor([[2**32 + 2, -1]]))
    layer.form = "plain"
    exact = layer(x, state)[0]
    emulate(monkeypatch)
    layer.form = "fused"
    assert relative_error(layer(x, state)[0], exact) < 1e-12


def test_more_trials_than_a_launch_takes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    emulate(monkeypatch, 2)
    monkeypatch.setattr(_run, "MOST_TRIALS", 2)
    layer = small("rnn", input_size=1, hidden_size=3, dtype=torch.float32)
    with pytest.raises(ValueError, match="rnn: expected at most 2 trials at once on a GPU, got 3"):
        vmap(lambda x: layer(x)[0])(torch.randn(3, 2, 1, 1))


def test_more_steps_than_a_kernel_counts_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    emulate(monkeypatch, 2)
    monkeypatch.setattr(_run, "MOST_ROWS", 5)
    layer = small("rnn", input_size=1, hidden_size=3, dtype=torch.float32)
    with pytest.raises(ValueError, match="rnn: expected at most 5 time steps times sequences on a GPU, got 3 x 2"):
        layer(torch.randn(3, 2, 1))


def test_mixture_of_logits_as_low_as_float32_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = small("mist", input_size=1, hidden_size=3, dtype=torch.float32, delays=3)
    x = torch.randn(5, 2, 1)
    with torch.no_grad():
        layer.bias_l0[:3] = -1e35
    layer.form = "plain"
    exact = layer(x)[0]
    emulate(monkeypatch, 2)
    layer.form = "fused"
    assert relative_error(layer(x)[0], exact) < 1e-5


def test_plans_for_the_same_shapes_are_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    emulate(monkeypatch, 2)
    layer = small("rnn", input_size=1, hidden_size=3, dtype=torch.float32)

    def train(*shape: int) -> None:
        layer(torch.randn(*shape, 1))[0].sum().backward()

    train(2, 1)
    first = dict(_run.plans)
    assert [plan.problem.backward for plan in first.values()] == [False, True]
    train(2, 1)
    assert list(_run.plans.values()) == list(first.values())
    train(3, 1)
    assert len(_run.plans) == 4


def test_plans_for_ever_new_lengths_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    emulate(monkeypatch, 2)
    monkeypatch.setattr(_run, "MOST_PLANS", 2)
    layer = small("rnn", input_size=1, hidden_size=3, dtype=torch.float32)
    for steps in (1, 2, 3):
        layer(torch.randn(steps, 1, 1))
        assert 1 <= len(_run.plans) <= 2


def test_too_little_memory_is_told_with_the_trials_that_would_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    emulate(monkeypatch, 2)

    def refuse(*_: Any) -> Tensor:
        raise torch.OutOfMemoryError("nothing is left")

    layer = small("rnn", input_size=1, hidden_size=3, dtype=torch.float32)
    monkeypatch.setattr(Tensor, "new_empty", refuse)
    for name, value in {"memory_reserved": 0, "memory_allocated": 0, "mem_get_info": (4 * 1600, 0)}.items():
        monkeypatch.setattr(torch.cuda, name, lambda device, value=value: value)
    # Each takes 2 steps of 2 * 3 states and 4 gradients, its records (2 steps of one warp with 4 numbers a thread) and a
    # tile of weights in two parts: 1,104 + 1,024 bytes.
    expected = (
        r"rnn: expected memory for 1 trials of 1 sequences of 2 steps with 3 units, .* about 3 would fit. \(nothing"
    )
    with pytest.raises(torch.OutOfMemoryError, match=expected):
        layer(torch.randn(2, 1, 1))


def test_backwards_what_the_run_forwards_has_left_counts_as_room(monkeypatch: pytest.MonkeyPatch) -> None:
    emulate(monkeypatch, 2)
    layer = small("rnn", input_size=1, hidden_size=3, dtype=torch.float32)
    output = layer(torch.randn(2, 1, 1))[0].sum()
    made: list[weakref.ref[Tensor]] = []
    new = _run.Run.new

    def refuse_later(run: _run.Run, name: str, *shape: int) -> Tensor:
        if name == "sums":  # after dz
            raise torch.OutOfMemoryError("nothing is left")
        tensor = new(run, name, *shape)
        made.append(weakref.ref(tensor))
        return tensor

    def free(device: torch.device) -> tuple[int, int]:
        assert [tensor() for tensor in made] == [None]  # what the run has made is given back before it is counted
        return 2 * 2128, 0

    monkeypatch.setattr(_run.Run, "new", refuse_later)
    monkeypatch.setattr(torch.cuda, "mem_get_info", free)
    for name in ("memory_reserved", "memory_allocated"):
        monkeypatch.setattr(torch.cuda, name, lambda device: 0)
    # Free are 2,128 bytes for each of two trials, and the run forwards has left 24 bytes of states and 1,040 of records.
    with pytest.raises(torch.OutOfMemoryError, match=r"about 2 would fit. \(nothing"):
        output.backward()
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (3 * 2128 - 1064, 0))
    with pytest.raises(torch.OutOfMemoryError, match=r"about 3 would fit. \(nothing"):
        layer(torch.randn(2, 1, 1))[0].sum().backward()


def test_tensors_that_do_not_fit_after_a_plan_was_made_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    emulate(monkeypatch, 2)
    layer = small("rnn", input_size=1, hidden_size=3, dtype=torch.float32)
    x = torch.randn(2, 1, 1)
    layer(x)
    wrong = {**dict(layer.named_parameters()), "bias_l0": torch.zeros(4)}
    with pytest.raises(ValueError, match=r"rnn: expected bias \[1, 3\] in torch.float32 on the CPU"):
        functional_call(layer, wrong, (x,))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mist", "narx", "lstm"])
def test_nothing_beyond_a_tensor_is_read_or_written(name: str) -> None:
    command = [sys.executable, "-m", "tests.kernels.guarded_run", name, "2"]
    found = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert found.returncode == 0, found.stderr
    assert found.stdout == "nothing was touched beyond any tensor\n"


def test_half_precision_is_computed_wider(monkeypatch: pytest.MonkeyPatch) -> None:
    emulate(monkeypatch, 1)
    layer = MIST(1, 9, delays=3)
    inputs = {"x": torch.randn(1, 5, 2, 1), "initial_h": torch.zeros(1, 4, 2, 9)}
    inputs |= {name.removesuffix("_l0"): value.detach().unsqueeze(0) for name, value in layer.named_parameters()}
    given = dict.fromkeys(INPUTS) | inputs
    half = {name: None if value is None else value.bfloat16() for name, value in given.items()}
    settings = Settings([1, 2, 4], 0.0, reverse=False, save=True, parts=1)
    exact, found = (cuda.forward("mist", tensors, settings, device="cpu") for tensors in (given, half))
    assert [value.dtype for value in found if value is not None] == [torch.bfloat16] * 2 + [torch.float32]
    assert relative_error(found[0], exact[0]) < 0.02


def test_every_cell_has_a_kernel() -> None:
    assert [name for name, kind in LAYERS.items() if kind.fused_name] == list(CELLS)
    for name in CELLS:
        assert LAYERS[name].fused_name == name
        assert (cuda._nvrtc.headers.__globals__["ROOT"] / f"layers/{name}/cuda.cuh").exists()
