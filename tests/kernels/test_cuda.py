"""The fused GPU backend on a GPU: the tolerance rule at every precision and odd sizes, operators, graphs, sweeps, refusals."""

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import functional_call, grad, stack_module_state, vmap

from mistrnn.kernels import dispatch as ops
from mistrnn.kernels.cell import cells
from mistrnn.kernels.contract import INPUTS, Settings
from mistrnn.kernels.cuda import backend as cuda
from mistrnn.kernels.cuda import heuristics, jit, launch
from mistrnn.kernels.cuda.wgrad import launch as wgrad
from mistrnn.layers import LAYERS, LSTM, MIST, RNN, RecurrentLayer, backends
from mistrnn.training.capture import Captured
from mistrnn.training.group import Group
from mistrnn.training.study import Study
from mistrnn.training.sweep import run_study, study_task
from tests.kernels.test_cpu import sized
from tests.layers.cases import REGULARISERS, as_tuple, every_cuda_layer, probing, random_state, seeded, small
from tests.tolerance import relative_error, violations

pytestmark = pytest.mark.gpu
STEPWISE_CELLS = [cell.name for cell in cells() if cell.stepwise]


@pytest.fixture(autouse=True)
def _precision() -> Any:
    before = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before)


def poison() -> None:
    """Fill memory that torch will hand out again with NaN."""
    for size in (2**28, 2**22, 2**16, 2**10):
        blocks = [torch.full((size,), float("nan"), device="cuda") for _ in range(4)]
        del blocks


def measure(
    layer: RecurrentLayer, backend: Any, dtype: torch.dtype, steps: int, batch: int, probed: bool = False, **call: Any
) -> dict[str, Tensor]:
    """Outputs, states and all gradients of a layer on the GPU, from the same numbers and masks."""
    layer = layer.to("cuda", dtype)
    layer.backend = backend
    layer.zero_grad()
    with seeded(5):
        state = as_tuple(random_state(layer.double().cpu(), batch))
        layer.to("cuda", dtype)
        input = torch.randn(steps, batch, layer.input_size, dtype=torch.float64)
        weights = torch.randn(steps, batch, layer.output_size, dtype=torch.float64)
        input = input.to("cuda", dtype).requires_grad_()
        state = tuple(
            part.to("cuda", dtype).requires_grad_() if part.is_floating_point() else part.cuda() for part in state
        )
        poison()
        torch.cuda.manual_seed(3)
        with probing(layer, probed) as probes:
            output, final = layer(input, state if len(state) > 1 else state[0], **call)
    found = {"output": output} | {f"final {k}": p for k, p in enumerate(as_tuple(final)) if p.is_floating_point()}
    loss = (output * weights.to("cuda", dtype)).sum() + sum((part * 0.1).sum() for part in found.values())
    poison()
    loss.backward()
    found["input.grad"] = input.grad
    found |= {f"initial {k}.grad": part.grad for k, part in enumerate(state) if part.is_floating_point()}
    found |= {f"{key}.grad": parameter.grad for key, parameter in layer.named_parameters()}
    found |= {f"{key}.grad": probe.grad for key, probe in probes.items()}
    return {key: value.detach().clone() for key, value in found.items() if value is not None}


def broken(layer: RecurrentLayer, steps: int, batch: int, **call: Any) -> dict[str, tuple[float, float]]:
    """What the tolerance rule says about the fused backend in float32, at the precision that is set."""
    backends = (("fused", torch.float32), ("reference", torch.float32), ("reference", torch.float64))
    return violations(*(measure(layer, backend, dtype, steps, batch, **call) for backend, dtype in backends))


SIZES = [(1, 1, 1), (7, 3, 2), (100, 1, 129), (139, 100, 40), (198, 3, 129), (256, 3, 30), (512, 3, 20), (1000, 3, 5)]


@every_cuda_layer
@pytest.mark.parametrize("precision", ["highest", "high"])
@pytest.mark.parametrize(("hidden", "batch", "steps"), SIZES)
def test_odd_sizes(name: str, precision: str, hidden: int, batch: int, steps: int) -> None:
    torch.set_float32_matmul_precision(precision)
    options: dict[str, Any] = {"mist": {"delays": 6}, "narx": {"delays": 3}}.get(name, {})
    assert broken(sized(name, hidden, input_size=1 + hidden % 2, **options), steps, batch) == {}


@every_cuda_layer
@pytest.mark.parametrize("precision", ["highest", "high"])
def test_few_sequences_in_one_block_keep_the_tolerance(
    name: str, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.set_float32_matmul_precision(precision)
    monkeypatch.setattr(
        heuristics, "serves_single_sequences", lambda variant: False
    )  # else each has a block of its own
    for hidden, batch, steps in ((7, 3, 2), (100, 1, 129), (256, 3, 30)):
        assert broken(sized(name, hidden, input_size=1 + hidden % 2), steps, batch) == {}


@every_cuda_layer
def test_few_inputs_are_multiplied_with_all_bits_at_high(name: str) -> None:
    torch.set_float32_matmul_precision("high")
    layer = sized(name, 40, input_size=13)
    torch.nn.init.zeros_(layer.weight_hh_l0)  # the kernel's own product has 16 bits
    found, exact = (
        measure(layer, backend, dtype, 1, 100)["output"]
        for backend, dtype in (("fused", torch.float32), ("reference", torch.float64))
    )
    assert relative_error(found, exact) < 1e-6


@pytest.mark.parametrize("name", STEPWISE_CELLS)
@pytest.mark.parametrize("precision", ["highest", "high", "medium"])
@pytest.mark.parametrize(("hidden", "batch", "steps"), [(128, 3, 2), (512, 100, 20), (256, 130, 9)])
def test_large_layers_whose_trials_advance_together(
    name: str, precision: str, hidden: int, batch: int, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.set_float32_matmul_precision(precision)
    monkeypatch.setattr(heuristics, "prefers_stepwise", lambda *_: True)
    monkeypatch.setattr(launch, "plans", {})
    assert broken(sized(name, hidden, input_size=1 + hidden % 3 // 2), steps, batch) == {}


@pytest.mark.parametrize("name", STEPWISE_CELLS)
@pytest.mark.parametrize(("precision", "tolerance"), [("highest", 1e-5), ("high", 1e-4)])
def test_many_trials_of_a_large_layer_are_those_of_blocks_that_keep_their_weights(
    name: str, precision: str, tolerance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.set_float32_matmul_precision(precision)
    layers = [sized(name, 512, input_size=1).float().cuda() for _ in range(9)]
    stacked, _ = stack_module_state(layers)
    x = torch.randn(9, 30, 100, 1, device="cuda")

    def loss(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        return functional_call(layers[0], parameters, (x,))[0].square().mean()

    found = []
    for together in (True, True, False):
        monkeypatch.setattr(heuristics, "prefers_stepwise", lambda *_, together=together: together)
        monkeypatch.setattr(launch, "plans", {})
        poison()
        found.append(vmap(grad(loss))(stacked, x))
    for key, value in found[0].items():
        assert torch.equal(value, found[1][key])
        assert relative_error(value, found[2][key]) < tolerance


@every_cuda_layer
@pytest.mark.parametrize("precision", ["highest", "high", "medium"])
def test_784_steps(name: str, precision: str) -> None:
    torch.set_float32_matmul_precision(precision)
    assert broken(sized(name, 100, 1), 784, 3) == {}


@every_cuda_layer
@pytest.mark.parametrize("regulariser", ["plain", "all"])
@pytest.mark.parametrize("training", [True, False])
def test_options_lengths_resets_and_directions(name: str, regulariser: str, training: bool) -> None:
    layer = sized(name, 21, 3, num_layers=2, bidirectional=True, **REGULARISERS[regulariser])
    layer.train(training)
    reset = torch.rand(15, 4) < 0.15
    assert broken(layer, 15, 4, probed=True, lengths=[9, 15, 0, 12], reset=reset.cuda()) == {}


@every_cuda_layer
def test_float64(name: str) -> None:
    layer = sized(name, 30, 2)
    fused, plain = (measure(layer, backend, torch.float64, 20, 5, probed=True) for backend in ("fused", "reference"))
    assert {
        key: relative_error(fused[key], plain[key]) for key in plain if relative_error(fused[key], plain[key]) > 1e-12
    } == {}


@pytest.mark.parametrize("name", ["mist", "narx"])
def test_many_and_long_delays(name: str) -> None:
    assert broken(sized(name, 5, 1, delays=[1, 700, 4096]), 300, 2) == {}
    assert broken(sized(name, 20, 1, delays=list(range(1, 17))), 40, 2) == {}


@every_cuda_layer
def test_autocast_and_bfloat16(name: str) -> None:
    layer = sized(name, 40, 1).float().cuda()
    x = torch.randn(30, 4, 1, device="cuda")
    layer.backend = "reference"
    exact = layer.double()(x.double())[0]
    layer.float()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        plain = layer(x)[0]
        layer.backend = "fused"
        fused = layer(x)[0]
    assert fused.dtype == plain.dtype
    assert relative_error(fused, exact) <= 2 * relative_error(plain, exact) + 4 * torch.finfo(torch.bfloat16).eps
    half = layer.bfloat16()(x.bfloat16())[0]
    assert half.dtype == torch.bfloat16
    assert relative_error(half, exact) < 0.03


@every_cuda_layer
def test_the_same_call_gives_the_same_bits_and_a_broken_trial_disturbs_nobody(name: str) -> None:
    torch.set_float32_matmul_precision("high")
    layers = [small(name, input_size=1, hidden_size=48, dtype=torch.float32).cuda() for _ in range(4)]
    x = torch.randn(4, 50, 9, 1, device="cuda")

    def loss(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        return functional_call(layers[0], parameters, (x,))[0].square().sum()

    stacked, _ = stack_module_state(layers)
    whole = vmap(grad(loss))(stacked, x)
    with torch.no_grad():
        stacked["weight_hh_l0"][2] = float("nan")
    partly, again = (vmap(grad(loss))(stacked, x) for _ in range(2))
    for key, value in partly.items():
        assert torch.equal(value[[0, 1, 3]], whole[key][[0, 1, 3]])
        assert torch.equal(value[[0, 1, 3]], again[key][[0, 1, 3]])
        assert value[2].isnan().any()


@every_cuda_layer
@pytest.mark.parametrize("everything", [False, True])
def test_opcheck(name: str, everything: bool) -> None:
    options = {"layer_norm": True} if everything else {}
    layer = small(name, input_size=2, hidden_size=6, dtype=torch.float32, **options).cuda()
    trials, steps, batch, memory = 2, 5, 3, layer.memory
    given: dict[str, Any] = dict.fromkeys(INPUTS)
    given |= {key.removesuffix("_l0"): torch.stack([p.detach()] * trials) for key, p in layer.named_parameters()}
    given["x"] = torch.randn(trials, steps, batch, 2, device="cuda")
    given["initial_h"] = torch.randn(trials, memory, batch, 6, device="cuda")
    if name == "lstm":
        given["initial_c"] = torch.randn(trials, 1, batch, 6, device="cuda")
    if name == "clockwork":
        given["clock"] = torch.zeros(trials, batch, dtype=torch.int64, device="cuda")
    if everything:
        given["reset"] = torch.rand(trials, steps, batch, device="cuda") < 0.2
        given["lengths"] = torch.tensor([[5, 2, 0]] * trials, device="cuda")
    for key in ops.DIFFERENTIABLE:
        if given[key] is not None:
            given[key].requires_grad_()
    settings = Settings(list(layer.lags), 0.0, reverse=everything, save=True, splits=3)
    operator = getattr(torch.ops.mistrnn, name)
    torch.library.opcheck(operator.default, (*given.values(), *settings), test_utils=("test_schema", "test_faketensor"))


@every_cuda_layer
def test_torch_compile_takes_a_layer_whole_and_its_batch_of_any_size(name: str) -> None:
    torch.compiler.reset()  # all layers share one forward method, and torch limits how often it is compiled
    with seeded(0):
        layer = sized(name, 40).float().cuda()
        inputs = [torch.randn(5, batch, layer.input_size, device="cuda") for batch in (3, 8, 360)]
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    for x in inputs:
        output, found = layer(x)[0], compiled(x)[0]
        assert torch.equal(found, output)
        weights = torch.randn_like(output)
        for a, b in zip(
            *(torch.autograd.grad(o, list(layer.parameters()), weights) for o in (found, output)), strict=True
        ):
            assert torch.equal(a, b)


def test_a_training_step_is_one_graph() -> None:
    layer = MIST(1, 30, delays=4, device="cuda")
    x = torch.randn(20, 5, 1, device="cuda")

    def step(x: Tensor) -> list[Tensor]:
        loss = layer(x)[0].square().sum()
        return list(torch.autograd.grad(loss, list(layer.parameters())))

    captured = Captured(step, x)
    other = torch.randn_like(x)
    for found, expected in zip(captured(other), step(other), strict=True):
        assert torch.equal(found, expected)


@pytest.mark.parametrize("layer", [cell.name for cell in cells()])
@pytest.mark.parametrize("precision", ["high", "fp32"])
def test_a_sweep_on_the_gpu_equals_the_same_sweep_on_the_cpu_after_20_steps(layer: str, precision: str) -> None:
    def study(precision: str) -> Study:
        options: dict[str, Any] = {"task_settings": {"delay": 10}, "batch_size": 10, "learning_rate": 0.05}
        return Study("copy", layer, 32, trials=3, steps=20, precision=precision, **options)

    found = {}
    for place, chosen in (("cpu", study(precision)), ("cuda", study(precision)), ("exact", study("fp64"))):
        device = torch.device("cuda" if place == "cuda" else "cpu")
        group = Group(chosen, study_task(chosen).to(device), [0, 1, 2], device)
        for _ in range(20):
            group.advance()
        found[place] = {name: value.cpu() for name, value in group.parameters.items()}
    for name, exact in found["exact"].items():
        allowed = 2 * relative_error(found["cpu"][name], exact) + (1e-3 if precision == "high" else 1e-6)
        assert relative_error(found["cuda"][name], exact) <= allowed, name


def test_a_sweep_takes_the_fused_form_and_records_its_precision(tmp_path: Path) -> None:
    study = Study("copy", "mist", 16, trials=2, steps=3, batch_size=5, task_settings={"delay": 10})
    assert study.as_dict()["precision"] == "high"
    rows = run_study(study, tmp_path / "study", device="cuda")
    assert [row["status"] for row in rows] == ["ok", "ok"]
    assert '"precision": "high"' in (tmp_path / "study/study.json").read_text()


@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        (lambda: RNN(1, 1100, device="cuda"), "serves up to 1024 units, and there are 1100"),
        (lambda: MIST(1, 8, delays=[1, 5000], device="cuda"), "up to 16 delays of up to 4096 steps"),
        (lambda: MIST(1, 8, delays=list(range(1, 19)), device="cuda"), "up to 16 delays of up to 4096 steps"),
    ],
)
def test_what_no_kernel_serves_is_refused_by_name_and_told_once_otherwise(
    layer: Any, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backends, "_warned", set())
    made, x = layer(), torch.randn(2, 2, 1, device="cuda")
    with pytest.warns(UserWarning, match=f"runs in its reference backend, which is slower: .*{reason}"):
        made(x)
    made(x)
    made.backend = "fused"
    with pytest.raises(RuntimeError, match=reason):
        made(x)


def test_an_old_gpu_and_missing_bindings_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, x = LSTM(1, 4, device="cuda"), torch.randn(2, 2, 1, device="cuda")
    layer.backend = "fused"
    monkeypatch.setattr(cuda, "_obstacle", lambda capability: "it needs the package cuda-bindings")
    with pytest.raises(RuntimeError, match="cuda-bindings"):
        layer(x)
    monkeypatch.setattr(cuda, "capability_of", lambda device: 75)
    with pytest.raises(RuntimeError, match=r"compute capability 8.0 or newer, and this one has 7.5"):
        layer(x)


def test_a_thread_that_never_used_the_gpu_runs_kernels() -> None:
    layer, x, found = LSTM(1, 4, device="cuda"), torch.randn(3, 2, 1, device="cuda"), []
    with torch.no_grad():
        expected = layer(x)[0]
    thread = threading.Thread(target=lambda: found.append(layer(x)[0]))
    thread.start()
    thread.join()
    assert torch.equal(found[0], expected)


def test_streams_equal_whole_runs() -> None:
    for name in LAYERS:
        layer = small(name, dtype=torch.float32).cuda().eval()
        x = torch.randn(9, 2, 3, device="cuda")
        stream = layer.stream(2)
        torch.testing.assert_close(torch.stack([stream(step) for step in x]), layer(x)[0], rtol=1e-4, atol=1e-4)


def test_kernels_are_ready_in_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    monkeypatch.setenv("MISTRNN_CACHE", str(tmp_path))
    layer, x = MIST(1, 139, device="cuda"), torch.randn(10, 100, 1, device="cuda")
    times = []
    for _ in range(2):
        launch.plans.clear(), launch.load.cache_clear(), wgrad.load.cache_clear()
        began = time.perf_counter()
        layer(x)[0].sum().backward()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    assert times[0] < 10
    assert times[1] < 0.5
    assert jit.obstacle(heuristics.capability_of(torch.device("cuda", 0))) is None
