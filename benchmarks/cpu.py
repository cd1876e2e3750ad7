"""Fused CPU kernels compared with the usual alternative: `make bench`.

Both sides of a row are measured in turn in one run; the row is their ratio. A table is printed only if the tests of the kernels
pass. `--record FILE` also writes the table to a file.
"""

import argparse
import gc
import importlib.util
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from machine import heading
from torch import Tensor, nn
from torch.func import functional_call, grad, stack_module_state, vmap

import mistrnn
from mistrnn.kernels.cpu.library import INSTRUCTION_SETS, loaded

ROOT = Path(__file__).parent.parent
STEPS, BATCH = 784, 100
THREADS = 2

Work = Callable[[], object]
Row = tuple[str, str, str, float, str, float, bool]
"""The measurement, both sides in words, the ratio, its unit or direction, the target, whether a higher ratio is better."""


def milliseconds(*sides: Work, repeats: int = 11) -> list[float]:
    """Return the median time of each side, measured in turn so that load on the machine affects all sides alike."""
    times: list[list[float]] = [[] for _ in sides]
    for side in sides:
        side()
    for _ in range(repeats):
        for side, found in zip(sides, times, strict=True):
            gc.collect()
            start = time.perf_counter()
            side()
            found.append(1000 * (time.perf_counter() - start))
    return [statistics.median(found) for found in times]


def training(layer: nn.Module, input: Tensor, loss: str) -> Work:
    """Run forward and backward with the loss at every step or at the last one."""

    def work() -> None:
        layer.zero_grad()
        output, _ = layer(input)
        (output.sum() if loss == "every" else output[-1].sum()).backward()

    return work


def forward_only(layer: nn.Module, input: Tensor) -> Work:
    """Forward without gradients."""

    def work() -> None:
        with torch.no_grad():
            layer(input)

    return work


def products(hidden: int, delays: int) -> Work:
    """Compute the matrix products that MIST needs: two per step forward, two backward, weight gradients over all steps."""
    rows = delays + hidden
    h, gates, new = torch.randn(BATCH, hidden), torch.empty(BATCH, rows), torch.empty(BATCH, hidden)
    w_gates, w_new = torch.randn(rows, hidden), torch.randn(hidden, hidden)
    d_gates, d_new, states = (torch.randn(STEPS * BATCH, size) for size in (rows, hidden, hidden))
    back, dw_gates, dw_new = torch.empty(BATCH, hidden), torch.empty(rows, hidden), torch.empty(hidden, hidden)

    def work() -> None:
        for _ in range(STEPS):
            torch.mm(h, w_gates.t(), out=gates)
            torch.mm(h, w_new.t(), out=new)
        for _ in range(STEPS):
            torch.mm(new, w_new, out=back)
            torch.mm(gates, w_gates, out=back)
        torch.mm(d_gates.t(), states, out=dw_gates)
        torch.mm(d_new.t(), states, out=dw_new)

    return work


def flops(hidden: int, delays: int) -> float:
    """Return the floating-point operations of these products and of the input projection."""
    return 3 * 2.0 * STEPS * BATCH * (delays + 2 * hidden) * (hidden + 2)


def attainable() -> float:
    """Return the floating-point operations per second of torch's best matrix product on this machine."""
    a, b, c = (torch.randn(1536, 1536) for _ in range(3))
    (ms,) = milliseconds(lambda: torch.mm(a, b, out=c))
    return 2.0 * 1536**3 / ms * 1000


def peak_extra(steps: int, loss: str) -> float:
    """Return the peak extra megabytes of a forward + backward of MIST 139, in a fresh process."""
    code = f"""
import torch, mistrnn
def status(key):
    return int(next(l for l in open("/proc/self/status") if l.startswith(key)).split()[1]) / 1000
def work(steps):
    output, _ = layer(torch.randn(steps, {BATCH}, 1))
    (output.sum() if {loss == "every"} else output[-1].sum()).backward()
torch.set_num_threads({THREADS})
layer = mistrnn.MIST(1, 139)
work(8)
open("/proc/self/clear_refs", "w").write("5")
before = status("VmRSS")
work({steps})
print(status("VmHWM") - before)
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return float(result.stdout)


def import_seconds() -> float:
    """Return the seconds that `import mistrnn.layers` takes beyond `import torch`."""

    def once(what: str) -> float:
        code = f"import time; t = time.perf_counter(); import {what}; print(time.perf_counter() - t)"
        return float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)

    return statistics.median([once("torch, mistrnn.layers") - once("torch") for _ in range(5)])


def rows() -> Iterator[Row]:
    """Measure the rows one by one."""
    input = torch.randn(STEPS, BATCH, 1)
    mist, lstm = mistrnn.MIST(1, 139), nn.LSTM(1, 100)
    about = f"batch {BATCH}, {STEPS} steps"
    for loss, aim in (("last", 7.0), ("every", 1.4)):
        ours, theirs = milliseconds(training(mist, input, loss), training(lstm, input, loss))
        what = f"MIST 139 forward + backward, {about}, loss at {'the last' if loss == 'last' else 'every'} step"
        yield what, f"{ours:.0f} ms", f"nn.LSTM 100: {theirs:.0f} ms", theirs / ours, "x faster", aim, True
    ours, theirs = milliseconds(training(mist, input, "every"), products(139, 8))
    yield (
        "the same",
        f"{ours:.0f} ms",
        f"its matrix products alone: {theirs:.0f} ms",
        ours / theirs,
        "x as long",
        2.0,
        False,
    )
    ours, theirs = milliseconds(forward_only(mist, input), forward_only(lstm, input))
    yield (
        "the same without gradients",
        f"{ours:.0f} ms",
        f"nn.LSTM 100: {theirs:.0f} ms",
        theirs / ours,
        "x faster",
        1.1,
        True,
    )
    for name, hidden in (("LSTM", 100), ("RNN", 198), ("GRU", 116)):
        twin = getattr(nn, name)(1, hidden)
        for loss, aim in (("every", 1.5), ("last", 4.0)):
            layer = getattr(mistrnn, name).from_torch(twin)
            ours, theirs = milliseconds(training(layer, input, loss), training(twin, input, loss))
            what = f"our {name} {hidden}, loss at {'the last' if loss == 'last' else 'every'} step"
            yield what, f"{ours:.0f} ms", f"nn.{name}: {theirs:.0f} ms", theirs / ours, "x faster", aim, True
    longer = torch.randn(2 * STEPS, BATCH, 1)
    once, twice = milliseconds(training(mist, input, "every"), training(mist, longer, "every"))
    yield "MIST 139, twice the steps: time", f"{twice:.0f} ms", f"{once:.0f} ms", twice / once, "x as long", 2.1, False
    once, twice = peak_extra(STEPS, "every"), peak_extra(2 * STEPS, "every")
    yield (
        "MIST 139, twice the steps: memory",
        f"{twice:.0f} MB",
        f"{once:.0f} MB",
        twice / once,
        "x as much",
        2.1,
        False,
    )
    tensor = STEPS * BATCH * 139 * 4 / 1e6
    for loss in ("every", "last"):
        most = peak_extra(STEPS, loss)
        what = f"peak extra memory of forward + backward, loss at {'the last' if loss == 'last' else 'every'} step"
        yield what, f"{most:.0f} MB", f"one [T, B, H]: {tensor:.0f} MB", most / tensor, "tensors", 6.0, False
    yield from odd_sizes()
    yield streaming()
    for batch in (100, 10):
        yield trials(16, batch)
    seconds = import_seconds()
    yield "`import mistrnn.layers` beyond `import torch`", f"{seconds:.2f} s", "", seconds, "s", 0.3, False


def odd_sizes() -> Iterator[Row]:
    """Measure our LSTM against torch's at sizes that fit neither vectors nor caches well."""
    single, double = torch.float32, torch.float64
    for hidden, batch, steps, dtype in (
        (1, 100, 784, single),
        (7, 100, 784, single),
        (139, 1, 784, single),
        (139, 4, 10_000, single),
        (139, 100, 1, single),
        (1024, 100, 20, single),
        (1024, 32, 20, single),
        (1024, 5, 60, single),
        (1024, 1, 60, single),
        (139, 100, 784, double),
    ):
        twin, input = nn.LSTM(1, hidden, dtype=dtype), torch.randn(steps, batch, 1, dtype=dtype)
        sides = training(mistrnn.LSTM.from_torch(twin), input, "every"), training(twin, input, "every")
        ours, theirs = milliseconds(*sides, repeats=5)
        kind = ", float64" if dtype == double else ""
        what = f"our LSTM {hidden}, batch {batch}, {steps:,} steps{kind}, loss at every step"
        yield what, f"{ours:.1f} ms", f"nn.LSTM: {theirs:.1f} ms", theirs / ours, "x faster", 1.0, True


def streaming() -> Row:
    """Measure a stream, including Python's overhead per step."""
    stream, cell = mistrnn.MIST(1, 139).eval().stream(1), nn.LSTMCell(1, 100)
    inputs = list(torch.randn(3000, 1, 1))

    def ours() -> None:
        for x in inputs:
            stream(x)

    @torch.no_grad()
    def theirs() -> None:
        state = None
        for x in inputs:
            state = cell(x, state)

    a, b = (1000 * ms / len(inputs) for ms in milliseconds(ours, theirs))
    return (
        "MIST 139 stream, batch 1, a step",
        f"{a:.1f} us",
        f"nn.LSTMCell 100: {b:.1f} us",
        b / a,
        "x faster",
        1.5,
        True,
    )


def trials(count: int, batch: int) -> Row:
    """Measure many trials as one computation against the same trials one by one."""
    layers = [mistrnn.MIST(1, 64) for _ in range(count)]
    parameters, _ = stack_module_state(list(layers))
    inputs = torch.randn(count, STEPS, batch, 1)

    def loss(values: dict[str, Tensor], x: Tensor) -> Tensor:
        return functional_call(layers[0], values, (x,))[0].sum()

    def one_by_one() -> None:
        for layer, x in zip(layers, inputs, strict=True):
            training(layer, x, "every")()

    together, alone = milliseconds(lambda: vmap(grad(loss))(parameters, inputs), one_by_one, repeats=5)
    what = f"{count} trials of MIST 64, batch {batch}, {STEPS} steps, in one computation"
    return what, f"{together:.0f} ms", f"one by one: {alone:.0f} ms", alone / together, "x faster", 2.0, True


def main() -> None:
    """Run the tests, print the table and optionally write it to a file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", type=Path, help="also write the table to this file")
    arguments = parser.parse_args()
    parallel = ["-n", "2"] if importlib.util.find_spec("xdist") else []
    tests = [sys.executable, "-m", "pytest", *parallel, "tests/kernels", "tests/layers/test_forms.py"]
    if subprocess.run(tests, cwd=ROOT).returncode:
        sys.exit("the tests of the fused kernels fail: no speed is reported")
    torch.set_num_threads(THREADS)
    torch.manual_seed(0)
    assert loaded is not None
    lines = [
        "# Fused CPU kernels",
        "",
        heading(
            "python benchmarks/cpu.py",
            f"mistrnn {mistrnn.__version__}, {INSTRUCTION_SETS[loaded.level]} code; fp32, 1 input, medians of 11 runs.",
        ),
        "",
        "| measurement | ours | against | ratio | aim | |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    print("\n".join(lines), flush=True)
    for what, ours, theirs, ratio, unit, aim, more in rows():
        met = ratio >= aim if more else ratio <= aim
        bound = "at least" if more else "at most"
        word = "met" if met else "missed"
        lines.append(f"| {what} | {ours} | {theirs} | {ratio:.2f} {unit} | {bound} {aim:g} | {word} |")
        print(lines[-1], flush=True)
    rate = attainable()
    floor = 1000 * flops(139, 8) / rate
    lines += [
        "",
        f"Lower bound: torch's best matrix product runs at {rate / 1e9:.0f} GFLOP/s here (1536 x 1536). The "
        f"{flops(139, 8) / 1e9:.1f} GFLOP of MIST 139's forward + backward take {floor:.0f} ms at that rate.",
    ]
    print("\n".join(lines[-2:]))
    if arguments.record:
        arguments.record.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
