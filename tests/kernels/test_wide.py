"""Large layers of many trials on the GPU (kernels/wide.py): the kernels' own source on a CPU, their programs, the choice."""

import re
from typing import Any

import pytest
import torch

from mistrnn.kernels import _nvrtc, _run, choices, wide
from mistrnn.kernels._variant import Problem, Variant
from mistrnn.kernels._wide import CELLS, WideVariant, wide_variant
from mistrnn.kernels.contract import INPUTS, Settings
from mistrnn.layers import MIST, RecurrentLayer
from tests.kernels import test_cuda_emulated as emulated
from tests.kernels.emulator import emulate, on_linux
from tests.kernels.test_variants import problem
from tests.layers.cases import as_tuple, seeded, small
from tests.tolerance import relative_error

poisoned = emulated.poisoned
every_cell = pytest.mark.parametrize("name", CELLS)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[WideVariant]:
    """Let every layer that these kernels can serve have them, and list their runs."""
    seen: list[WideVariant] = []
    run = wide.run

    def watched(variant: WideVariant, *arguments: Any) -> None:
        seen.append(variant)
        run(variant, *arguments)

    monkeypatch.setattr(choices, "MANY", dict.fromkeys(CELLS, (0, 1)))
    monkeypatch.setattr(wide, "run", watched)
    return seen


def errors(layer: RecurrentLayer, parts: int, steps: int, batch: int, capability: int = 90) -> dict[str, float]:
    return emulated.errors(layer, parts, steps, batch, capability=capability, probed=False)


@on_linux
@every_cell
@pytest.mark.parametrize(
    ("capability", "parts", "grouped"), [(90, 1, True), (90, 2, True), (90, 3, False), (100, 2, False)]
)
def test_outputs_states_and_gradients_are_those_of_the_plain_form(
    name: str, capability: int, parts: int, grouped: bool, runs: list[Any]
) -> None:
    assert errors(emulated.sized(name, 128), parts, 5, 9, capability) == {}
    assert [(variant.problem.backward, variant.grouped) for variant in runs] == [(False, grouped), (True, grouped)]


@every_cell
@pytest.mark.parametrize(("trials", "batch"), [(11, 100), (17, 100), (50, 100), (100, 100), (30, 64), (600, 40)])
def test_all_blocks_between_products_are_on_the_gpu_at_once(name: str, trials: int, batch: int) -> None:
    for backward in (False, True):
        variant = wide_variant(problem(name, backward, 512), trials, batch, 90, 132)
        assert variant.blocks(batch) * variant.sequences >= batch
        at_once = 132 * 512 // variant.step_threads
        assert variant.blocks(batch) * trials <= at_once or variant.sequences == 25
        assert (
            variant.sequences == 1 or -(-batch // (variant.sequences - 1)) * trials > at_once
        )  # and no more than need be


@on_linux
@pytest.mark.slow
@every_cell
def test_several_inputs_and_sequences_of_several_blocks(name: str, runs: list[Any]) -> None:
    assert errors(emulated.sized(name, 128, input_size=3), 2, 3, 131) == {}
    assert {variant.chunks(131) for variant in runs} == {2}


@on_linux
@pytest.mark.parametrize("delays", [[1, 40, 7], list(range(1, 17)), [2]])
def test_delays_longer_than_the_run_and_as_many_as_can_be(delays: list[int], runs: list[Any]) -> None:
    assert errors(emulated.sized("mist", 128, delays=delays), 2, 4, 3) == {}
    assert len(runs) == 2


@on_linux
@every_cell
def test_trials_are_an_axis_and_a_broken_one_disturbs_nobody(
    name: str, runs: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    emulate(monkeypatch, 2)
    emulated.break_one_of_three_trials(name, 128)
    assert len(runs) == 10


@on_linux
def test_a_state_that_begins_anywhere_in_memory(runs: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    with seeded(4):
        layer = small("lstm", input_size=1, hidden_size=128, dtype=torch.float32)
        x, start = torch.randn(3, 2, 1), torch.randn(2 * 2 * 128 + 1)[1:].view(2, 1, 2, 128)
    found = []
    for form in ("plain", "fused"):
        if form == "fused":
            emulate(monkeypatch, 3)
        layer.form = form  # type: ignore[assignment]
        found.append(layer(x, (start[0], start[1]))[0])
    assert relative_error(found[1], found[0]) < 1e-5
    assert len(runs) == 1


@on_linux
def test_jacobians_are_trials_that_share_outputs_and_what_was_saved(
    runs: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = emulated.sized("mist", 128).float()
    with seeded(3):
        x = torch.randn(3, 1, 1)
    layer.form = "plain"
    exact = torch.func.jacrev(lambda v: layer(v)[0][-1, 0, :3])(x)
    emulate(monkeypatch, 3)
    layer.form = "fused"
    assert relative_error(torch.func.jacrev(lambda v: layer(v)[0][-1, 0, :3])(x), exact) < 1e-5
    assert len(runs) == 2


@on_linux
@every_cell
def test_without_steps_the_state_stays_and_nothing_advances(
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
    assert [variant.saved_numbers(5, 2) for variant in runs] == [0]


@every_cell
@pytest.mark.parametrize(("capability", "parts"), [(90, 1), (90, 2), (90, 3), (100, 2)])
def test_no_kernel_spills_registers(name: str, capability: int, parts: int) -> None:
    for backward in (False, True):
        for hidden, batch in ((512, 100), (1024, 64))[: 2 if parts == 2 else 1]:
            variant = wide_variant(problem(name, backward, hidden, parts=parts), 50, batch, capability, 132)
            assert variant.fits
            _, log = _nvrtc.compile_now(variant, "--ptxas-options=-v")
            assert {int(number) for number in re.findall(r"(\d+) bytes spill", log)} == {0}


@pytest.mark.parametrize(
    ("case", "is_wide"),
    [
        ({}, True),
        ({"hidden": 500}, False),
        ({"hidden": 256}, False),
        ({"hidden": 256, "name": "lstm"}, True),
        ({"trials": 8}, True),
        ({"trials": 7}, False),
        ({"trials": 4, "name": "lstm"}, True),
        ({"trials": 3, "name": "lstm"}, False),
        ({"trials": 15, "parts": 3}, False),  # where warps multiply alone
        ({"trials": 16, "parts": 3}, True),
        ({"capability": 80}, False),
        ({"cluster": 8}, False),
        ({"name": "gru"}, False),
        ({"parts": 0, "double": True}, False),
        *(({option: True}, False) for option in ("norm", "reset", "lengths", "reverse", "dropout", "probe")),
        ({"zoneout": 2}, False),
    ],
)
def test_only_many_trials_of_large_layers_without_options_advance_together(
    case: dict[str, Any], is_wide: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = {"trials": 50, "capability": 90, "cluster": None, "name": "mist", "hidden": 512} | case
    trials, capability, cluster, name, hidden = (
        asked.pop(key) for key in ("trials", "capability", "cluster", "name", "hidden")
    )
    monkeypatch.setattr(choices, "capability_of", lambda device: capability)
    monkeypatch.setattr(choices, "multiprocessors", lambda device: 132)
    wanted: Problem = problem(name, False, hidden, **asked)
    found = choices.choose(wanted, trials, 100, torch.device("cpu"), cluster)
    assert isinstance(found, WideVariant if is_wide else Variant)


def test_probes_are_left_to_the_other_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choices, "MANY", dict.fromkeys(CELLS, (0, 1)))
    monkeypatch.setattr(choices, "capability_of", lambda device: 90)
    monkeypatch.setattr(choices, "multiprocessors", lambda device: 132)
    zeros = {"x": (1, 2, 1, 1), "weight_ih": (1, 264, 1), "weight_hh": (1, 264, 128), "initial_h": (1, 128, 1, 128)}
    inputs = dict.fromkeys(INPUTS) | {name: torch.zeros(shape) for name, shape in zeros.items()}
    settings = Settings([2**k for k in range(8)], 0.0, reverse=False, save=True, parts=2)
    kinds = []
    for probe in (None, torch.zeros(1, 2, 1, 128)):
        given = inputs | {"probe_h": probe}
        plans = [_run.Plan("mist", given, settings, "cpu", backward) for backward in (False, True)]
        kinds.append([type(plan.variant) for plan in plans])
    assert kinds == [[WideVariant, WideVariant], [Variant, Variant]]


@on_linux
@every_cell
def test_too_little_memory_for_what_is_under_way_is_told_too(
    name: str, runs: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    emulate(monkeypatch, 2)
    layer, x = emulated.sized(name, 128).float(), torch.zeros(3, 2, 1)
    layer(x)
    each = runs[0].working_memory(2)
    assert sum(each.values()) == runs[0].working_bytes(2) > 128 * 128 * 2 * 2

    def refuse(*_: Any, **__: Any) -> torch.Tensor:
        raise torch.OutOfMemoryError("nothing is left")

    monkeypatch.setattr(wide.torch, "empty", refuse)
    for function, value in {"memory_reserved": 0, "memory_allocated": 0, "mem_get_info": (10 * 2**20, 0)}.items():
        monkeypatch.setattr(torch.cuda, function, lambda device, value=value: value)
    expected = (
        rf"{name}: expected memory for 1 trials of 2 sequences of 3 steps with 128 units, .* would fit. \(nothing"
    )
    with pytest.raises(torch.OutOfMemoryError, match=expected):
        layer(x)


@pytest.mark.parametrize(("name", "hidden", "trials", "batch"), [("lstm", 1024, 100, 100), ("mist", 512, 160, 100)])
def test_blocks_of_products_shrink_until_shared_memory_suffices(
    name: str, hidden: int, trials: int, batch: int
) -> None:
    for backward in (False, True):
        variant = wide_variant(problem(name, backward, hidden), trials, batch, 120, 170)
        assert variant.fits
        _nvrtc.compile_now(variant)
