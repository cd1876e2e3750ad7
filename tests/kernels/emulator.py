"""The GPU kernels on a CPU: compiled as C++ with `emulator.h` in the place of the machine, and launched the same way."""

import ctypes
import hashlib
import os
import platform
import subprocess
import sys
import tempfile
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch

from mistrnn.kernels import _run, _variant, choices, cuda, ops, outer, wide
from mistrnn.kernels._outer import OuterVariant
from mistrnn.kernels._variant import Launch, Problem, Variant
from mistrnn.kernels._wide import WideVariant

on_linux = pytest.mark.skipif(
    platform.system() != "Linux" or platform.machine() not in ("x86_64", "aarch64"),
    reason="the emulator switches between threads as Linux does",
)

MAIN = """
static Arguments given;
extern "C" int emulate(const Arguments* args, int is_run, int x, int y, int z, int threads, int cluster, long shared) {
  static_assert(sizeof(Arguments) == ARGUMENTS_SIZE, "Python and C++ agree");
  given = *args;
  emulator::grid_size = {(unsigned)x, (unsigned)y, (unsigned)z};
  for (int c = 0; c < z; c++)
    for (int b = 0; b < y; b++)
      for (int a = 0; a < x; a += cluster)
        emulator::run(is_run ? +[]() { run(given); } : +[]() { pack(given); }, cluster, threads, shared,
                      {(unsigned)a, (unsigned)b, (unsigned)c});
  return 0;
}
"""


OUTER_MAIN = MAIN.replace("is_run ? +[]() { run(given); } : +[]() { pack(given); }", "+[]() { outer(given); }")


class EmulatedOuterKernel:
    """As `_nvrtc.OuterKernel`."""

    def __init__(self, variant: OuterVariant) -> None:
        self.variant = variant
        size = ctypes.sizeof(outer.OuterArguments)
        self._emulate = _compiled(f"#define ARGUMENTS_SIZE {size}\n{variant.source}{OUTER_MAIN}").emulate

    def run(self, arguments: ctypes.Structure, grid: tuple[int, int, int], stream: int) -> None:
        shared = ctypes.c_long(self.variant.shared_memory)
        self._emulate(ctypes.byref(arguments), 1, *grid, self.variant.threads, 1, shared)


class EmulatedKernels:
    """As `_nvrtc.Kernels`."""

    def __init__(self, variant: Variant) -> None:
        self.variant = variant
        self._emulate = _compiled(
            f"#define ARGUMENTS_SIZE {ctypes.sizeof(_run.Arguments)}\n{variant.source}{MAIN}"
        ).emulate

    def pack(self, arguments: ctypes.Structure, trials: int, stream: int) -> None:
        blocks = -(-self.variant.tiles // 8)
        self._run(arguments, 0, (blocks, self.variant.launch.cluster, trials), 256, 1, 0)

    def run(self, arguments: ctypes.Structure, trials: int, batch: int, stream: int) -> None:
        launch = self.variant.launch
        grid = (self.variant.blocks(batch) * launch.cluster, trials, 1)
        self._run(arguments, 1, grid, self.variant.threads, launch.cluster, self.variant.shared_memory)

    def _run(self, arguments: Any, is_run: int, grid: Any, threads: int, cluster: int, shared: int) -> None:
        self._emulate(ctypes.byref(arguments), is_run, *grid, threads, cluster, ctypes.c_long(shared))


WIDE_MAIN = MAIN.replace("static Arguments given", "static Call given").replace(
    "const Arguments* args", "const Call* args"
)


class EmulatedWideKernels:
    """As `_nvrtc.WideKernels`."""

    def __init__(self, variant: WideVariant) -> None:
        self.variant = variant
        phases = range(variant.problem.phases)
        names = ["pack", *(f"{kind}_{n}" for n in phases for kind in ("multiply", "phase"))]
        names += [] if variant.problem.backward else ["begin"]
        listed = ", ".join(f"+[]() {{ {name}(given); }}" for name in names)
        main = (
            WIDE_MAIN.replace("is_run ? +[]() { run(given); } : +[]() { pack(given); }", "all[is_run]")
            .replace("  given = *args;", f"  static void (*all[])() = {{{listed}}};\n  given = *args;")
            .replace("sizeof(Arguments)", "sizeof(Call)")
        )
        self._names = names
        self._emulate = _compiled(f"#define ARGUMENTS_SIZE {ctypes.sizeof(wide.Call)}\n{variant.source}{main}").emulate

    def pack(self, call: ctypes.Structure, trials: int, stream: int) -> None:
        self._run("pack", call, (-(-self.variant.packed_tiles // 8), trials, 1), 256, 0)

    def begin(self, call: ctypes.Structure, trials: int, batch: int, stream: int) -> None:
        self._run("begin", call, (self.variant.blocks(batch), trials, 1), self.variant.step_threads, 0)

    def multiply(self, product: int, call: ctypes.Structure, trials: int, batch: int, stream: int) -> None:
        grid = self.variant.product_grid(product, trials, batch)
        self._run(f"multiply_{product}", call, grid, self.variant.threads, self.variant.shared_memory)

    def phase(self, phase: int, call: ctypes.Structure, trials: int, batch: int, stream: int) -> None:
        grid = (self.variant.blocks(batch), trials, 1)
        self._run(f"phase_{phase}", call, grid, self.variant.step_threads, self.variant.step_memory)

    def _run(self, name: str, call: Any, grid: Any, threads: int, shared: int) -> None:
        self._emulate(ctypes.byref(call), self._names.index(name), *grid, threads, 1, ctypes.c_long(shared))


@cache
def _compiled(source: str) -> ctypes.CDLL:
    headers = "".join(path.read_text() for path in sorted(_variant.ROOT.rglob("*.cuh")))
    own = (Path(__file__).parent / "emulator.h").read_text()
    name = hashlib.sha256((source + headers + own).encode()).hexdigest()[:24]
    folder = Path(tempfile.gettempdir()) / "mistrnn-emulated"
    library = folder / f"{name}.so"
    if not library.exists():
        folder.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            (Path(scratch) / "kernel.cpp").write_text(source)
            command = [
                sys.executable,
                "-m",
                "ziglang",
                "c++",
                "-target",
                f"{platform.machine()}-linux-gnu",
                "-DMISTRNN_EMULATED",
                "-std=c++17",
                "-O1",
                "-shared",
                "-fPIC",
                "-w",
            ]
            command += [
                "-fno-sanitize=all",
                f"-I{_variant.ROOT}",
                f"-I{Path(__file__).parent}",
                f"{scratch}/kernel.cpp",
                "-o",
                f"{scratch}/kernel.so",
            ]
            subprocess.run(command, check=True)
            os.replace(f"{scratch}/kernel.so", library)
    return ctypes.CDLL(str(library))


def emulate(
    patch: pytest.MonkeyPatch, parts: int | None = None, launch: Launch | None = None, capability: int = 90
) -> None:
    """Let the operators on CPU tensors run the GPU kernels; with `parts`, float32 products in so many."""

    def with_parts(function: Any) -> Any:
        def run(cell: str, *arguments: Any) -> Any:
            position = next(k for k, value in enumerate(arguments) if type(value).__name__ == "Settings")
            settings = arguments[position]
            inputs = arguments[position - 1] if position == 1 else arguments[1]
            chosen = 0 if parts is None or inputs["x"].dtype == torch.float64 else parts
            replaced = list(arguments)
            replaced[position] = settings._replace(parts=chosen)
            return function(cell, *replaced)

        return run

    if launch:
        # Backwards and in float64 a block always has eight sequences, whichever way the records came about.
        other = replace(launch, rows=max(8, launch.rows))

        def chosen(problem: Problem, *_: Any) -> Variant:
            return Variant(problem, other if problem.backward or not problem.parts else launch, capability)

        patch.setattr(_run, "choose", chosen)
    patch.setattr(_run, "plans", {})  # choices are made anew
    patch.setattr(_run, "load", cache(lambda variant, device: EmulatedKernels(variant)))
    patch.setattr(outer, "load", cache(lambda variant, device: EmulatedOuterKernel(variant)))
    patch.setattr(wide, "load", cache(lambda variant, device: EmulatedWideKernels(variant)))
    for module in (_run, outer):
        patch.setattr(module, "current_stream", lambda device: 0)
    patch.setattr(choices, "capability_of", lambda device: capability)
    for module in (cuda, outer):
        patch.setattr(module, "capability_of", lambda device: capability)
    patch.setattr(choices, "multiprocessors", lambda device: 3)
    patch.setattr(ops.cpu, "forward", with_parts(partial(cuda.forward, device="cpu")))
    patch.setattr(ops.cpu, "backward", with_parts(partial(cuda.backward, device="cpu")))
