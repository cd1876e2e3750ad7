"""The step-wise kernels: their own source on a CPU by the emulator, compile checks, and their choice."""

import re
from typing import Any

import pytest
import torch

from mistrnn.kernels.cell import cells
from mistrnn.kernels.contract import INPUTS, SavedLayout, Settings
from mistrnn.kernels.cuda import heuristics, jit, launch
from mistrnn.kernels.cuda.persistent.variant import Variant
from mistrnn.kernels.cuda.problem import Problem
from mistrnn.kernels.cuda.stepwise import launch as stepwise
from mistrnn.kernels.cuda.stepwise.variant import StepwiseVariant, stepwise_variant
from mistrnn.layers import MIST, RecurrentLayer
from tests.kernels import test_cuda_emulated as emulated
from tests.kernels.emulator import emulate, on_linux
from tests.kernels.test_variants import problem
from tests.layers.cases import as_tuple, seeded, small
from tests.tolerance import relative_error

poisoned = emulated.poisoned
CELLS = [cell.name for cell in cells() if cell.stepwise]
every_cell = pytest.mark.parametrize("name", CELLS)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[StepwiseVariant]:
    """Choose these kernels wherever they serve, and list their runs."""
    seen: list[StepwiseVariant] = []
    run = stepwise.run

    def watched(variant: StepwiseVariant, *arguments: Any) -> None:
        seen.append(variant)
        run(variant, *arguments)

    monkeypatch.setattr(heuristics, "prefers_stepwise", lambda problem, sequences, capability: sequences > 0)
    monkeypatch.setattr(stepwise, "run", watched)
    return seen


def errors(layer: RecurrentLayer, splits: int, steps: int, batch: int, capability: int = 90) -> dict[str, float]:
    return emulated.errors(layer, splits, steps, batch, capability=capability, probed=False)


@on_linux
@every_cell
@pytest.mark.parametrize(
    ("capability", "splits", "wgmma"), [(90, 1, True), (90, 2, True), (90, 3, False), (100, 2, False)]
)
def test_outputs_states_and_gradients_equal_the_reference(
    name: str, capability: int, splits: int, wgmma: bool, runs: list[Any]
) -> None:
    assert errors(emulated.sized(name, 128), splits, 5, 9, capability) == {}
    assert [(variant.problem.backward, variant.wgmma) for variant in runs] == [(False, wgmma), (True, wgmma)]


@every_cell
@pytest.mark.parametrize(("trials", "batch"), [(11, 100), (17, 100), (50, 100), (100, 100), (30, 64), (600, 40)])
def test_pointwise_blocks_are_resident_at_once(name: str, trials: int, batch: int) -> None:
    for backward in (False, True):
        variant = stepwise_variant(problem(name, backward, 512), trials, batch, 90, 132)
        assert variant.blocks(batch) * variant.sequences >= batch
        resident = 132 * 512 // variant.pointwise_threads
        assert variant.blocks(batch) * trials <= resident or variant.sequences == 25
        assert (
            variant.sequences == 1 or -(-batch // (variant.sequences - 1)) * trials > resident
        )  # no more than necessary


@on_linux
@pytest.mark.slow
@every_cell
def test_several_inputs_and_several_gemm_blocks_equal_the_reference(name: str, runs: list[Any]) -> None:
    assert errors(emulated.sized(name, 128, input_size=3), 2, 3, 131) == {}
    assert {variant.sequence_blocks(131) for variant in runs} == {2}


@on_linux
@pytest.mark.parametrize("delays", [[1, 40, 7], list(range(1, 17)), [2]])
def test_delays_at_their_limits_equal_the_reference(delays: list[int], runs: list[Any]) -> None:
    assert errors(emulated.sized("mist", 128, delays=delays), 2, 4, 3) == {}
    assert len(runs) == 2


@on_linux
@every_cell
def test_a_diverged_trial_leaves_the_bits_of_the_others(
    name: str, runs: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    emulate(monkeypatch, 2)
    emulated.check_that_a_diverged_trial_leaves_the_others(name, 128)
    assert len(runs) == 10


@on_linux
def test_an_unaligned_initial_state_gives_the_reference_output(
    runs: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with seeded(4):
        layer = small("lstm", input_size=1, hidden_size=128, dtype=torch.float32)
        x, start = torch.randn(3, 2, 1), torch.randn(2 * 2 * 128 + 1)[1:].view(2, 1, 2, 128)
    found = []
    for backend in ("reference", "fused"):
        if backend == "fused":
            emulate(monkeypatch, 3)
        layer.backend = backend  # type: ignore[assignment]
        found.append(layer(x, (start[0], start[1]))[0])
    assert relative_error(found[1], found[0]) < 1e-5
    assert len(runs) == 1


@on_linux
def test_jacobian_over_shared_saved_values_equals_the_reference(
    runs: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = emulated.sized("mist", 128).float()
    with seeded(3):
        x = torch.randn(3, 1, 1)
    layer.backend = "reference"
    exact = torch.func.jacrev(lambda v: layer(v)[0][-1, 0, :3])(x)
    emulate(monkeypatch, 3)
    layer.backend = "fused"
    assert relative_error(torch.func.jacrev(lambda v: layer(v)[0][-1, 0, :3])(x), exact) < 1e-5
    assert len(runs) == 2


@on_linux
@every_cell
def test_without_steps_the_state_stays_and_no_kernel_runs(
    name: str, runs: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    emulate(monkeypatch, 2)
    layer = small(name, input_size=1, hidden_size=128, dtype=torch.float32)
    start = layer(torch.randn(2, 3, 1))[1]
    final = layer(torch.empty(0, 3, 1), start)[1]
    assert len(runs) == 1
    for before, after in zip(as_tuple(start), as_tuple(final), strict=True):
        assert torch.equal(before, after)


@on_linux
def test_a_run_without_gradients_saves_nothing(runs: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    emulate(monkeypatch, 2)
    with torch.no_grad():
        MIST(1, 128, delays=3)(torch.randn(5, 2, 1))
    assert [variant.saved_size(5, 2) for variant in runs] == [0]


@every_cell
@pytest.mark.parametrize(("capability", "splits"), [(90, 1), (90, 2), (90, 3), (100, 2)])
def test_stepwise_variant_spills_no_registers(name: str, capability: int, splits: int) -> None:
    for backward in (False, True):
        for hidden, batch in ((512, 100), (1024, 64))[: 2 if splits == 2 else 1]:
            variant = stepwise_variant(problem(name, backward, hidden, splits=splits), 50, batch, capability, 132)
            assert variant.fits
            _, log = jit.compile_now(variant, "--ptxas-options=-v")
            assert {int(number) for number in re.findall(r"(\d+) bytes spill", log)} == {0}


@pytest.mark.parametrize(
    ("case", "is_stepwise"),
    [
        ({}, True),
        ({"hidden": 500}, False),
        ({"hidden": 256}, False),
        ({"hidden": 256, "name": "lstm"}, True),
        ({"trials": 8}, True),
        ({"trials": 7}, False),
        ({"trials": 4, "name": "lstm"}, True),
        ({"trials": 3, "name": "lstm"}, False),
        ({"trials": 15, "splits": 3}, False),  # without wgmma
        ({"trials": 16, "splits": 3}, True),
        ({"capability": 80}, False),
        ({"layout": SavedLayout(cluster=8)}, False),
        ({"name": "gru"}, False),
        ({"splits": 0, "double": True}, False),
        *(({option: True}, False) for option in ("norm", "reset", "lengths", "reverse", "dropout", "probe")),
        ({"zoneout": 2}, False),
    ],
)
def test_choose_takes_stepwise_kernels_for_many_trials_of_large_layers_without_options(
    case: dict[str, Any], is_stepwise: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = {"trials": 50, "capability": 90, "layout": None, "name": "mist", "hidden": 512} | case
    trials, capability, layout, name, hidden = (
        asked.pop(key) for key in ("trials", "capability", "layout", "name", "hidden")
    )
    monkeypatch.setattr(heuristics, "capability_of", lambda device: capability)
    monkeypatch.setattr(heuristics, "multiprocessors", lambda device: 132)
    wanted: Problem = problem(name, False, hidden, **asked)
    found = heuristics.choose(wanted, trials, 100, torch.device("cpu"), layout)
    assert isinstance(found, StepwiseVariant if is_stepwise else Variant)


def test_plan_with_a_probe_takes_the_persistent_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heuristics, "prefers_stepwise", lambda problem, sequences, capability: sequences > 0)
    monkeypatch.setattr(heuristics, "capability_of", lambda device: 90)
    monkeypatch.setattr(heuristics, "multiprocessors", lambda device: 132)
    zeros = {"x": (1, 2, 1, 1), "weight_ih": (1, 264, 1), "weight_hh": (1, 264, 128), "initial_h": (1, 128, 1, 128)}
    inputs = dict.fromkeys(INPUTS) | {name: torch.zeros(shape) for name, shape in zeros.items()}
    settings = Settings([2**k for k in range(8)], 0.0, reverse=False, save=True, splits=2)
    kinds = []
    for probe in (None, torch.zeros(1, 2, 1, 128)):
        given = inputs | {"probe_h": probe}
        plans = [launch.Plan("mist", given, settings, "cpu", backward) for backward in (False, True)]
        kinds.append([type(plan.variant) for plan in plans])
    assert kinds == [[StepwiseVariant, StepwiseVariant], [Variant, Variant]]


@on_linux
@every_cell
def test_out_of_memory_for_scratch_names_the_trials_that_fit(
    name: str, runs: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    emulate(monkeypatch, 2)
    layer, x = emulated.sized(name, 128).float(), torch.zeros(3, 2, 1)
    layer(x)
    each = runs[0].scratch(2)
    assert sum(each.values()) == runs[0].scratch_bytes(2) > 128 * 128 * 2 * 2

    def refuse(*_: Any, **__: Any) -> torch.Tensor:
        raise torch.OutOfMemoryError("nothing is left")

    monkeypatch.setattr(stepwise.torch, "empty", refuse)
    for function, value in {"memory_reserved": 0, "memory_allocated": 0, "mem_get_info": (10 * 2**20, 0)}.items():
        monkeypatch.setattr(torch.cuda, function, lambda device, value=value: value)
    expected = (
        rf"{name}: expected memory for 1 trials of 2 sequences of 3 steps with 128 units, .* would fit. \(nothing"
    )
    with pytest.raises(torch.OutOfMemoryError, match=expected):
        layer(x)


@pytest.mark.parametrize(("name", "hidden", "trials", "batch"), [("lstm", 1024, 100, 100), ("mist", 512, 160, 100)])
def test_stepwise_variant_on_a_gpu_with_little_shared_memory_fits(
    name: str, hidden: int, trials: int, batch: int
) -> None:
    for backward in (False, True):
        variant = stepwise_variant(problem(name, backward, hidden), trials, batch, 120, 170)
        assert variant.fits
        jit.compile_now(variant)
