"""The CUDA backend under torch.compile and torch's precision switches, with a mocked GPU."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from mistrnn.kernels.contract import INPUTS, Settings
from mistrnn.kernels.cuda import backend as cuda
from mistrnn.kernels.cuda import heuristics
from mistrnn.kernels.cuda.launch import Plan
from mistrnn.kernels.cuda.matmul_precision import at_precision, matmul

DEVICE = torch.device("cuda:0")


@pytest.fixture(autouse=True)
def hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (heuristics, cuda):
        monkeypatch.setattr(module, "capability_of", lambda device: 90)
    monkeypatch.setattr(heuristics, "multiprocessors", lambda device: 132)


@pytest.fixture
def switches() -> Iterator[None]:
    """Restore torch's switches; the older one raises while the newer one differs."""
    newer = torch.backends.cuda.matmul
    before = newer.fp32_precision
    yield
    newer.fp32_precision = before
    torch.set_float32_matmul_precision("highest")


def test_torch_compile_treats_backend_and_precision_as_constants() -> None:
    def shown(x: Tensor) -> Tensor:
        reason = cuda.unavailable("mist", x.dtype, DEVICE, 139, (1, 2, 4), False)
        return x + (cuda.splits_of(x) if reason is None else 100)

    compiled = torch.compile(shown, fullgraph=True, backend="eager")
    assert compiled(torch.zeros(2, 3, 1)).unique().tolist() == [3]
    assert compiled(torch.zeros(2, 1, 1)).unique().tolist() == [3]
    assert compiled(torch.zeros(2, 3, 1, dtype=torch.float64)).unique().tolist() == [0]


@pytest.mark.usefixtures("switches")
def test_a_compiled_function_follows_the_precision_switch() -> None:
    compiled = torch.compile(lambda x: x + cuda.splits_of(x), fullgraph=True, backend="eager")
    assert compiled(torch.zeros(2, 3, 1)).unique().tolist() == [3]
    torch.set_float32_matmul_precision("high")
    assert compiled(torch.zeros(2, 3, 1)).unique().tolist() == [2]


@pytest.mark.usefixtures("switches")
def test_splits_follow_the_newer_precision_switch() -> None:
    x = torch.zeros(2, 3, 1)
    assert cuda.splits_of(x) == 3
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    with pytest.raises(RuntimeError, match="mix of the legacy and new APIs"):
        torch.get_float32_matmul_precision()
    assert cuda.splits_of(x) == 2
    assert cuda.splits_of(x[:, :1]) == 3
    with at_precision("highest"):
        assert cuda.splits_of(x) == 3
    assert torch.backends.cuda.matmul.fp32_precision == "tf32"


@pytest.mark.usefixtures("switches")
def test_at_precision_restores_the_switch() -> None:
    x = torch.zeros(2, 3, 1)
    for wanted, splits in (("high", 2), ("highest", 3)):
        for before in ("highest", "medium"):
            torch.set_float32_matmul_precision(before)
            with at_precision(wanted):
                assert cuda.splits_of(x) == splits
            assert torch.get_float32_matmul_precision() == before


@pytest.mark.usefixtures("switches")
def test_matmul_of_few_inputs_is_in_float32_at_any_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, bmm = [], torch.bmm
    monkeypatch.setattr(torch, "bmm", lambda a, b: asked.append(torch.get_float32_matmul_precision()) or bmm(a, b))
    torch.set_float32_matmul_precision("high")
    with FakeTensorMode():
        for depth in (16, 17):
            matmul(torch.empty(2, 5, depth, device=DEVICE), torch.empty(2, depth, 7, device=DEVICE))
    assert asked == ["highest", "high"]
    assert torch.get_float32_matmul_precision() == "high"


@pytest.mark.usefixtures("switches")
def test_matmul_in_several_threads_restores_the_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    def slowly(a: Tensor, b: Tensor) -> str:
        time.sleep(0.002)
        return torch.get_float32_matmul_precision()

    monkeypatch.setattr(torch, "bmm", slowly)
    torch.set_float32_matmul_precision("high")
    with FakeTensorMode():
        a, b = torch.empty(2, 5, 3, device=DEVICE), torch.empty(2, 3, 7, device=DEVICE)
    with ThreadPoolExecutor(8) as threads:
        found = set(threads.map(lambda _: str(matmul(a, b)), range(40)))
    assert found == {"highest"}
    assert torch.get_float32_matmul_precision() == "high"


@pytest.mark.parametrize(("hidden", "batch"), [(139, 100), (139, 360), (139, 530), (198, 300), (512, 133), (512, 1000)])
def test_plan_of_a_symbolic_batch_has_a_saved_shape(hidden: int, batch: int) -> None:
    delays, rows = [1, 2, 4, 8], 2 * hidden + 4
    mode = FakeTensorMode(shape_env=ShapeEnv())

    def fake(*shape: int, unknown: int | None = None) -> Tensor:
        sizes = [DimDynamic.DYNAMIC if axis == unknown else DimDynamic.STATIC for axis in range(len(shape))]
        context = StatelessSymbolicContext(dynamic_sizes=sizes)
        return mode.from_tensor(torch.empty(shape, device="meta"), symbolic_context=context)

    given: dict[str, Tensor | None] = dict.fromkeys(INPUTS)
    given |= {
        "x": fake(1, 7, batch, 1, unknown=2),
        "weight_ih": fake(1, rows, 1),
        "weight_hh": fake(1, rows, hidden),
        "bias": fake(1, rows),
        "initial_h": fake(1, 8, batch, hidden, unknown=2),
    }
    with mode:
        plan = Plan("mist", given, Settings(delays, 0.0, reverse=False, save=True, splits=2), "meta", backward=False)
        assert plan.saved_shape[1] > 7 * batch * hidden


def test_unavailable_on_an_unknown_platform_gives_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ("mist", torch.float32, DEVICE, 139, (1, 2), False)
    assert cuda.unavailable(*arguments) is None
    with monkeypatch.context() as patch:
        patch.setattr("sys.platform", "win32")
        assert cuda.unavailable(*arguments) == "there is none for Windows"
    monkeypatch.setattr(cuda, "capability_of", lambda device: 130)
    reason = cuda.unavailable(*arguments)
    assert reason is not None
    assert reason.endswith("does not know GPUs of compute capability 13.0")
