"""Fused GPU kernels compared with cuDNN's layers, in the same run.

    python benchmarks/gpu.py [--out FILE] [--precision high|highest]

1 input, batch 100, 784 steps, unless a row says otherwise. Times are medians of device events: of consecutive training steps,
as in a training loop, and of single forward calls. The share of the roofline is the larger of two lower bounds (bytes to move
and products to compute, at the ceilings measured in the same run) divided by the measured time.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from mistrnn.kernels.cuda import backend as cuda
from mistrnn.layers import GRU, LAYERS, LSTM, MIST, NARX, RNN, Clockwork, RecurrentLayer
from mistrnn.training.capture import Captured

STEPS, BATCH, TRIALS, IN_A_ROW = 784, 100, 50, 5
INPUTS = 13  # for the rows with several inputs: the number of speech features in table 3


def milliseconds(function: Callable[[], Any], repeats: int = 9, in_a_row: int = 1) -> float:
    """Return the median of a few runs after two warm-up runs; each is one call, or the mean of several in a row."""
    times = []
    for k in range(repeats + 2):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(in_a_row):
            function()
        end.record()
        end.synchronize()
        if k > 1:
            times.append(begin.elapsed_time(end) / in_a_row)
    return statistics.median(times)


def last_step(result: Any) -> Tensor:
    """Return h of the last step [B, H] from the result of a layer, ours or torch's; a loss at the last step reads the state."""
    _, state = result
    h: Tensor = state[0] if isinstance(state, tuple) else state  # [N, B, H]
    return h[-1]


def training(layer: RecurrentLayer | nn.RNNBase, steps: int = STEPS, batch: int = BATCH) -> float:
    """Time forward and backward with the loss at the last step."""
    x = torch.randn(steps, batch, layer.input_size, device="cuda")
    parameters = list(layer.parameters())

    def run() -> None:
        torch.autograd.grad(last_step(layer(x)).square().sum(), parameters)

    return milliseconds(run, in_a_row=IN_A_ROW)


def inference(layer: nn.Module, batch: int) -> float:
    """Time forward without gradients."""
    x = torch.randn(STEPS, batch, 1, device="cuda")
    with torch.no_grad():
        return milliseconds(lambda: layer(x))


def many(layer: RecurrentLayer, trials: int = TRIALS, steps: int = STEPS) -> tuple[float, float]:
    """Return the time of a training step of many trials as one CUDA graph, and its memory in GiB."""
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    stacked = {name: p.detach().expand(trials, *p.shape).clone() for name, p in layer.named_parameters()}
    x = torch.randn(trials, steps, BATCH, layer.input_size, device="cuda")

    def loss(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        return last_step(functional_call(layer, parameters, (x,))).square().sum()

    def step(x: Tensor) -> Tensor:
        for name, gradient in vmap(grad(loss))(stacked, x).items():
            stacked[name].sub_(gradient, alpha=1e-6)
        return x[:1, :1, :1, 0]

    captured = Captured(step, x)
    taken = torch.cuda.max_memory_allocated() / 2**30
    return milliseconds(lambda: captured(x), 5), taken


def ceilings() -> tuple[float, float]:
    """Return the bytes per second of a copy, and the operations per second of bfloat16 products."""
    a = torch.empty(2**29, device="cuda")
    b = torch.empty_like(a)
    copy = 2 * a.numel() * 4 / milliseconds(lambda: b.copy_(a)) * 1e3
    m = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    return copy, 2 * 8192**3 / milliseconds(lambda: m @ m) * 1e3


def floor(layer: RecurrentLayer, trials: int, rates: tuple[float, float], steps: int = STEPS) -> float:
    """Return the lower bound of a training step in ms: weights are multiplied three times, with the products of the splits."""
    weights = sum(p.numel() for name, p in layer.named_parameters() if name.startswith("weight"))
    terms = {1: 1, 2: 3, 3: 6}[cuda.SPLITS[torch.get_float32_matmul_precision()]]
    rows, hidden = trials * steps * BATCH, layer.hidden_size
    gates = sum(layer.norm_blocks())
    products = 3 * terms * 2 * weights * rows / rates[1]
    # Written and read once: the states, the gates, the gradients of both, and the operands of the weight gradients.
    moved = 4 * rows * (2 * hidden + 2 * gates + 2 * gates + 2 * hidden) / rates[0]
    return 1e3 * max(products, moved)


def first_use() -> tuple[float, float]:
    """Return the seconds from a layer to its first gradients in a new process, less those of torch's layer: cold and warm."""
    program = (
        "import time, torch; torch.randn(9, device='cuda').sum().item(); l = torch.nn.LSTM(1, 8, device='cuda');"
        "l(torch.randn(3, 2, 1, device='cuda'))[0].sum().backward(); import mistrnn; torch.cuda.synchronize();"
        "t = time.perf_counter(); m = mistrnn.MIST(1, 139, device='cuda');"
        "m(torch.randn(784, 100, 1, device='cuda'))[0].sum().backward(); torch.cuda.synchronize();"
        "print(time.perf_counter() - t)"
    )
    with tempfile.TemporaryDirectory() as folder:
        # CUDA's own compile cache must be empty as well.
        places = {**os.environ, "MISTRNN_CACHE": folder, "CUDA_CACHE_PATH": f"{folder}/cuda"}
        cold, warm = (
            float(subprocess.run([sys.executable, "-c", program], env=places, check=True, capture_output=True).stdout)
            for _ in range(2)
        )
    return cold, warm


def table(precision: str, rates: tuple[float, float]) -> list[str]:
    """Measure every row at one precision."""
    torch.set_float32_matmul_precision(precision)
    device: dict[str, Any] = {"device": "cuda"}
    lines = [
        f'## Precision "{precision}"',
        "",
        "| measurement | ours, ms | alternative, ms | ratio | target | of the roofline |",
        "| --- | --- | --- | --- | --- | --- |",
    ]

    def row(name: str, ours: float, other: float, wanted: str, bound: float | None = None, note: str = "") -> None:
        share = f"{100 * bound / ours:.0f}%" if bound else ""
        lines.append(f"| {name} | {ours:.2f}{note} | {other:.2f} | {other / ours:.2f}x | {wanted} | {share} |")
        print(lines[-1], flush=True)

    torch.manual_seed(0)
    cudnn = {n: training(nn.LSTM(1, n, **device)) for n in (100, 139, 512)}
    cudnn_rnn = training(nn.RNN(1, 198, **device))
    mist = MIST(1, 139, **device)
    row("MIST 139, against cuDNN LSTM 100", training(mist), cudnn[100], "2x", floor(mist, 1, rates))
    time_50, taken = many(mist)
    row(
        "50 trials of MIST 139, per trial, against cuDNN LSTM 100",
        time_50 / TRIALS,
        cudnn[100],
        "15x",
        floor(mist, TRIALS, rates) / TRIALS,
        f" ({time_50:.1f} in all, {taken:.1f} GiB)",
    )
    large = MIST(1, 512, **device)
    row("MIST 512, against cuDNN LSTM 512", training(large), cudnn[512], "3x", floor(large, 1, rates))
    time_large, taken = many(large)
    row(
        "50 trials of MIST 512, against 100 ms",
        time_large,
        100.0,
        "1x",
        floor(large, TRIALS, rates),
        f" ({taken:.1f} GiB)",
    )
    for layer, other, wanted in (
        (LSTM(1, 100, **device), cudnn[100], "1x"),
        (LSTM(1, 139, **device), cudnn[139], "3x"),
        (LSTM(1, 512, **device), cudnn[512], "1.5x"),
        (RNN(1, 198, **device), cudnn_rnn, "1x"),
    ):
        name = f"{type(layer).__name__} {layer.hidden_size}, against cuDNN's"
        row(name, training(layer), other, wanted, floor(layer, 1, rates))
    for layer, other, wanted in (
        (LSTM(1, 100, **device), cudnn[100], "10x"),
        (RNN(1, 198, **device), cudnn_rnn, "5x"),
        (Clockwork(1, 256, **device), cudnn[100], "10x"),
        (NARX(1, 64, delays=8, **device), cudnn[100], "10x"),
        (GRU(1, 100, **device), cudnn[100], ""),
    ):
        time_many, taken = many(layer)
        against = "cuDNN RNN 198" if layer.hidden_size == 198 else "cuDNN LSTM 100"
        row(
            f"50 trials of {type(layer).__name__} {layer.hidden_size}, per trial, against {against}",
            time_many / TRIALS,
            other,
            wanted,
            floor(layer, TRIALS, rates) / TRIALS,
            f" ({time_many:.1f} in all, {taken:.1f} GiB)",
        )
    cudnn_several = training(nn.LSTM(INPUTS, 100, **device))
    for layer in (MIST(INPUTS, 139, **device), LSTM(INPUTS, 100, **device)):
        name, against = f"{type(layer).__name__} {layer.hidden_size}", "against cuDNN LSTM 100"
        row(f"{name} with {INPUTS} inputs, {against}", training(layer), cudnn_several, "", floor(layer, 1, rates))
        time_many, taken = many(layer)
        row(
            f"50 trials of {name} with {INPUTS} inputs, per trial, {against}",
            time_many / TRIALS,
            cudnn_several,
            "",
            floor(layer, TRIALS, rates) / TRIALS,
            f" ({time_many:.1f} in all, {taken:.1f} GiB)",
        )
    for batch in (1, 1000):
        row(
            f"MIST 139 forward only, batch {batch}, against cuDNN LSTM 100",
            inference(mist, batch),
            inference(nn.LSTM(1, 100, **device), batch),
            "1x",
        )
    twice, _ = many(mist, steps=2 * STEPS)
    row("50 trials of MIST 139 with twice the steps, against twice the time", twice, 2 * time_50, "0.95x")
    twice, _ = many(mist, trials=2 * TRIALS)
    row("twice the trials of MIST 139, against twice the time", twice, 2 * time_50, "0.95x")
    return lines


def main() -> None:
    """Measure, print and optionally write a file."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path)
    parser.add_argument("--precision", heuristics=["high", "highest"], nargs="*", default=["high", "highest"])
    chosen = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("expected a CUDA device, got none: nothing was measured.")
    assert set(LAYERS) == {"mist", "narx", "clockwork", "rnn", "lstm", "gru"}
    rates = ceilings()
    cold, warm = first_use()
    lines = [
        "# Fused GPU kernels compared with cuDNN",
        "",
        f"`python benchmarks/gpu.py`, {time.strftime('%Y-%m-%d')}, {torch.cuda.get_device_name()}, torch {torch.__version__}.",
        "1 input, batch 100, 784 steps, float32, loss at the last step. A ratio above 1 means that ours is faster.",
        "",
        f"Ceilings in this run: copy {rates[0] / 1e12:.2f} TB/s, bfloat16 products {rates[1] / 1e12:.0f} TFLOP/s.",
        f"Time from first use of MIST 139 to first gradients: {cold:.1f} s with a cold kernel cache (target 10), "
        f"{warm:.2f} s with a warm one (target 0.5).",
        "",
    ]
    print("\n".join(lines))
    for precision in chosen.precision:
        lines += [*table(precision, rates), ""]
    if chosen.out:
        chosen.out.write_text("\n".join(lines))


if __name__ == "__main__":
    main()
