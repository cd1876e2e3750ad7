"""Run every kernel once, with small sizes, under compute-sanitizer.

    PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool memcheck --report-api-errors no python benchmarks/sanitize.py
    compute-sanitizer --tool racecheck python benchmarks/sanitize.py

Without torch's caching allocator, memcheck detects reads and writes beyond a tensor. `--report-api-errors no` ignores driver
functions that the bindings look up and that may not exist. The kernels differ from those of users in one constant: see
ARRIVING_LANES in device.cuh.
"""

from collections.abc import Callable
from typing import Any

import torch

from mistrnn.kernels.cell import cells
from mistrnn.kernels.cuda import heuristics, jit, launch
from mistrnn.kernels.cuda.persistent.variant import Launch, Variant
from mistrnn.kernels.cuda.problem import Problem
from mistrnn.layers import LAYERS

STEPS, LENGTHS = 7, [7, 3, 0, 7, 5, 1, 2, 7, 4]
choose = heuristics.choose
jit.OPTIONS = (*jit.OPTIONS, "-DARRIVING_LANES=32")


def watch(title: str, chosen: Callable[..., Any], names: list[str], hidden: int, inputs: int = 1, **call: Any) -> None:
    """Train one step of these layers with kernels of one kind."""
    launch.choose, launch.plans = chosen, {}  # type: ignore[assignment]
    for name in names:
        layer = LAYERS[name](inputs, hidden, device="cuda")
        x = torch.randn(STEPS, len(LENGTHS), inputs, device="cuda", requires_grad=True)
        layer(x, **call)[0].square().sum().backward()
        torch.cuda.synchronize()
        print(name, title, "done", flush=True)


def launched(**configuration: int) -> Callable[..., Variant]:
    """Return a heuristic with this launch configuration forward; backward, a block has eight sequences."""

    def chosen(problem: Problem, *_: Any) -> Variant:
        return Variant(problem, Launch(**{**configuration, "sequences": 8} if problem.backward else configuration), 90)

    return chosen


torch.set_float32_matmul_precision("high")
everyone = list(LAYERS)
reset = torch.rand(STEPS, len(LENGTHS), device="cuda") < 0.1
watch("with lengths and resets", launched(), everyone, 40, lengths=LENGTHS, reset=reset)
watch("with several inputs", launched(), everyone, 40, inputs=3, lengths=LENGTHS, reset=reset)
watch("in clusters of 2", launched(cluster=2), everyone, 40)
watch("with several inputs, in clusters of 2", launched(cluster=2), everyone, 40, inputs=3)
watch("alone in clusters of 2", launched(cluster=2, sequences=1), everyone, 40)
heuristics.prefers_stepwise = lambda *_: True
together = [cell.name for cell in cells() if cell.stepwise]
watch("with all trials together", choose, together, 128)
watch("with several inputs, all trials together", choose, together, 128, inputs=3)
