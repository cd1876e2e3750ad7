"""What torch.compile and torch's switches ask of the GPU forms, on a machine without a GPU: it is only said to be one."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from mistrnn.kernels import choices, cuda
from mistrnn.kernels._run import Plan
from mistrnn.kernels.contract import INPUTS, Settings
from mistrnn.kernels.products import at_precision, product

DEVICE = torch.device("cuda:0")


@pytest.fixture(autouse=True)
def hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (choices, cuda):
        monkeypatch.setattr(module, "capability_of", lambda device: 90)
    monkeypatch.setattr(choices, "multiprocessors", lambda device: 132)


@pytest.fixture
def switches() -> Iterator[None]:
    """Leave torch's switches as they were; the older one answers no more while a newer one says something else."""
    newer = torch.backends.cuda.matmul
    before = newer.fp32_precision
    yield
    newer.fp32_precision = before
    torch.set_float32_matmul_precision("highest")


def test_torch_compile_takes_the_choice_of_the_form_and_of_the_precision_for_constants() -> None:
    def shown(x: Tensor) -> Tensor:
        reason = cuda.unavailable("mist", x.dtype, DEVICE, 139, (1, 2, 4), False)
        return x + (cuda.parts_of(x) if reason is None else 100)

    compiled = torch.compile(shown, fullgraph=True, backend="eager")
    assert compiled(torch.zeros(2, 3, 1)).unique().tolist() == [3]
    assert compiled(torch.zeros(2, 1, 1)).unique().tolist() == [3]
    assert compiled(torch.zeros(2, 3, 1, dtype=torch.float64)).unique().tolist() == [0]


@pytest.mark.usefixtures("switches")
def test_a_compiled_function_follows_the_precision_switch() -> None:
    compiled = torch.compile(lambda x: x + cuda.parts_of(x), fullgraph=True, backend="eager")
    assert compiled(torch.zeros(2, 3, 1)).unique().tolist() == [3]
    torch.set_float32_matmul_precision("high")
    assert compiled(torch.zeros(2, 3, 1)).unique().tolist() == [2]


@pytest.mark.usefixtures("switches")
def test_parts_follow_torchs_newer_switches_too() -> None:
    x = torch.zeros(2, 3, 1)
    assert cuda.parts_of(x) == 3
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    with pytest.raises(RuntimeError, match="mix of the legacy and new APIs"):
        torch.get_float32_matmul_precision()
    assert cuda.parts_of(x) == 2
    assert cuda.parts_of(x[:, :1]) == 3
    with at_precision("highest"):
        assert cuda.parts_of(x) == 3
    assert torch.backends.cuda.matmul.fp32_precision == "tf32"


@pytest.mark.usefixtures("switches")
def test_the_precision_is_set_and_put_back() -> None:
    x = torch.zeros(2, 3, 1)
    for wanted, parts in (("high", 2), ("highest", 3)):
        for before in ("highest", "medium"):
            torch.set_float32_matmul_precision(before)
            with at_precision(wanted):
                assert cuda.parts_of(x) == parts
            assert torch.get_float32_matmul_precision() == before


@pytest.mark.usefixtures("switches")
def test_a_product_of_few_inputs_has_all_bits_at_any_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, bmm = [], torch.bmm
    monkeypatch.setattr(torch, "bmm", lambda a, b: asked.append(torch.get_float32_matmul_precision()) or bmm(a, b))
    torch.set_float32_matmul_precision("high")
    with FakeTensorMode():
        for depth in (16, 17):
            product(torch.empty(2, 5, depth, device=DEVICE), torch.empty(2, depth, 7, device=DEVICE))
    assert asked == ["highest", "high"]
    assert torch.get_float32_matmul_precision() == "high"


@pytest.mark.usefixtures("switches")
def test_threads_that_multiply_at_once_leave_the_precision_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    def slowly(a: Tensor, b: Tensor) -> str:
        time.sleep(0.002)
        return torch.get_float32_matmul_precision()

    monkeypatch.setattr(torch, "bmm", slowly)
    torch.set_float32_matmul_precision("high")
    with FakeTensorMode():
        a, b = torch.empty(2, 5, 3, device=DEVICE), torch.empty(2, 3, 7, device=DEVICE)
    with ThreadPoolExecutor(8) as threads:
        found = set(threads.map(lambda _: str(product(a, b)), range(40)))
    assert found == {"highest"}
    assert torch.get_float32_matmul_precision() == "high"


@pytest.mark.parametrize(("hidden", "batch"), [(139, 100), (139, 360), (139, 530), (198, 300), (512, 133), (512, 1000)])
def test_a_plan_is_made_for_a_batch_that_torch_compile_does_not_know(hidden: int, batch: int) -> None:
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
        plan = Plan("mist", given, Settings(delays, 0.0, reverse=False, save=True, parts=2), "meta", backward=False)
        assert plan.saved_shape[1] > 7 * batch * hidden


def test_what_cannot_be_compiled_for_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ("mist", torch.float32, DEVICE, 139, (1, 2), False)
    assert cuda.unavailable(*arguments) is None
    with monkeypatch.context() as patch:
        patch.setattr("sys.platform", "win32")
        assert cuda.unavailable(*arguments) == "there is none for Windows"
    monkeypatch.setattr(cuda, "capability_of", lambda device: 130)
    reason = cuda.unavailable(*arguments)
    assert reason is not None
    assert reason.endswith("does not know GPUs of compute capability 13.0")
