"""Run every kernel once, small, for compute-sanitizer to watch.

    PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool memcheck --report-api-errors no python benchmarks/sanitize.py
    compute-sanitizer --tool racecheck python benchmarks/sanitize.py

Without torch's cache of memory a read or write beyond a tensor is seen. The bindings look up driver functions that there may
not be, which is no error. The kernels are those that users get but for one thing, see ARRIVING_LANES in device.cuh.
"""

from collections.abc import Callable
from typing import Any

import torch

from mistrnn.kernels import _nvrtc, _run, choices
from mistrnn.kernels._variant import Launch, Problem, Variant
from mistrnn.kernels._wide import CELLS
from mistrnn.layers import LAYERS

STEPS, LENGTHS = 7, [7, 3, 0, 7, 5, 1, 2, 7, 4]
choose = choices.choose
_nvrtc.OPTIONS = (*_nvrtc.OPTIONS, "-DARRIVING_LANES=32")


def watch(title: str, chosen: Callable[..., Any], names: list[str], hidden: int, inputs: int = 1, **call: Any) -> None:
    """Train one step of these layers with kernels of one kind."""
    _run.choose, _run.plans = chosen, {}  # type: ignore[assignment]
    for name in names:
        layer = LAYERS[name](inputs, hidden, device="cuda")
        x = torch.randn(STEPS, len(LENGTHS), inputs, device="cuda", requires_grad=True)
        layer(x, **call)[0].square().sum().backward()
        torch.cuda.synchronize()
        print(name, title, "done", flush=True)


def launched(**launch: int) -> Callable[..., Variant]:
    """Choose a launch forwards; backwards a block has eight sequences."""

    def chosen(problem: Problem, *_: Any) -> Variant:
        return Variant(problem, Launch(**{**launch, "rows": 8} if problem.backward else launch), 90)

    return chosen


torch.set_float32_matmul_precision("high")
everyone = list(LAYERS)
reset = torch.rand(STEPS, len(LENGTHS), device="cuda") < 0.1
watch("with lengths and resets", launched(), everyone, 40, lengths=LENGTHS, reset=reset)
watch("with several inputs", launched(), everyone, 40, inputs=3, lengths=LENGTHS, reset=reset)
watch("in clusters of 2", launched(cluster=2), everyone, 40)
watch("with several inputs, in clusters of 2", launched(cluster=2), everyone, 40, inputs=3)
watch("alone in clusters of 2", launched(cluster=2, rows=1), everyone, 40)
choices.MANY = dict.fromkeys(CELLS, (0, 1))
watch("with all trials together", choose, list(CELLS), 128)
watch("with several inputs, all trials together", choose, list(CELLS), 128, inputs=3)
