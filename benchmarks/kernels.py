"""Times of the kernels of a training step on a GPU, by torch's profiler; they break down the times of benchmarks/gpu.py.

    python benchmarks/kernels.py [--layers mist,lstm] [--trials 1,50] [--inputs 1] [--precision high] [--define NAME=VALUE ...]

Batch 100, 784 steps, the loss at the last step, the sizes of table 1. `--define` passes a constant to the compiler of the
kernels, to compare variants in one run.
"""

import argparse
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from gpu import BATCH, STEPS, last_step
from torch import Tensor
from torch.func import functional_call, grad, vmap
from torch.profiler import ProfilerActivity, profile

from mistrnn.kernels.cuda import jit
from mistrnn.layers import LAYERS, RecurrentLayer

SIZES = {"mist": 139, "lstm": 100, "rnn": 198, "clockwork": 256, "narx": 64, "gru": 100}
REPEATS = 4


def training_step(layer: RecurrentLayer, trials: int) -> Callable[[], Any]:
    """Return a function that computes all gradients of several trials at once."""

    def loss(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        return last_step(functional_call(layer, parameters, (x,))).square().sum()

    own = {name: parameter.detach() for name, parameter in layer.named_parameters()}
    x = torch.randn(trials, STEPS, BATCH, layer.input_size, device="cuda")
    if trials == 1:
        return lambda: grad(loss)(own, x[0])
    stacked = {name: parameter.expand(trials, *parameter.shape).clone() for name, parameter in own.items()}
    return lambda: vmap(grad(loss))(stacked, x)


def kernel_times(step: Callable[[], Any]) -> dict[str, list[float]]:
    """Return the milliseconds of every kernel and its runs within a training step: the best of a few steps.

    A kernel whose number of runs differs between steps gets the mean over steps.
    """
    step(), step()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as watched:
        for _ in range(REPEATS):
            step()
        torch.cuda.synchronize()
    found = defaultdict(list)
    for event in sorted(watched.events() or (), key=lambda event: event.time_range.start):
        if event.device_time > 0:
            found[event.name].append(event.device_time / 1e3)
    best = {}
    for name, times in found.items():
        runs, left = divmod(len(times), REPEATS)
        best[name] = [sum(times) / REPEATS] if left else [min(times[k::runs]) for k in range(runs)]
    return best


def main() -> None:
    """Print a line for each layer, number of trials and kernel that takes 10 microseconds or more."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", default=",".join(SIZES))
    parser.add_argument("--trials", default="1,50")
    parser.add_argument("--inputs", type=int, default=1)
    parser.add_argument("--precision", default="high", heuristics=["high", "highest"])
    parser.add_argument("--define", action="append", default=[])
    given = parser.parse_args()
    torch.set_float32_matmul_precision(given.precision)
    jit.OPTIONS = (*jit.OPTIONS, *(f"-D{constant}" for constant in given.define))
    for name in given.layers.split(","):
        layer = LAYERS[name](given.inputs, SIZES[name], device="cuda")
        for trials in map(int, given.trials.split(",")):
            for kernel, times in kernel_times(training_step(layer, trials)).items():
                if sum(times) >= 0.01:
                    shown = " + ".join(f"{time:.3f}" for time in times)
                    print(f"{name} {SIZES[name]}, {trials} trials, {kernel[:50]}: {shown} ms", flush=True)


if __name__ == "__main__":
    main()
