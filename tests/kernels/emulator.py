"""The GPU kernels on a CPU: compiled as C++ with `emulator.h` in place of `device.cuh`, and launched the same way."""

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

from mistrnn.kernels import dispatch as ops
from mistrnn.kernels.cuda import backend as cuda
from mistrnn.kernels.cuda import heuristics, launch
from mistrnn.kernels.cuda.persistent.variant import Launch, Variant
from mistrnn.kernels.cuda.problem import Problem
from mistrnn.kernels.cuda.program import ROOT
from mistrnn.kernels.cuda.stepwise import launch as stepwise
from mistrnn.kernels.cuda.stepwise.variant import StepwiseVariant
from mistrnn.kernels.cuda.wgrad import launch as wgrad
from mistrnn.kernels.cuda.wgrad.variant import WgradVariant

on_linux = pytest.mark.skipif(
    platform.system() != "Linux" or platform.machine() not in ("x86_64", "aarch64"),
    reason="the emulator switches between threads as Linux does",
)

MAIN = """
static {arguments} given;
extern "C" int emulate(const {arguments}* arguments, int entry, int x, int y, int z, int threads, int cluster, long shared) {{
  static void (*entries[])() = {{{entries}}};
  given = *arguments;
  emulator::grid_size = {{(unsigned)x, (unsigned)y, (unsigned)z}};
  for (int c = 0; c < z; c++)
    for (int b = 0; b < y; b++)
      for (int a = 0; a < x; a += cluster)
        emulator::run(entries[entry], cluster, threads, shared, {{(unsigned)a, (unsigned)b, (unsigned)c}});
  return 0;
}}
"""


def mirror_assertions(structure: type[ctypes.Structure]) -> str:
    """Return C++ assertions that a CUDA struct has the fields of its ctypes mirror, each with the same offset and size."""
    name = structure.__name__
    lines = [f'static_assert(sizeof({name}) == {ctypes.sizeof(structure)}, "{name}");']
    for field, kind, *_ in structure._fields_:
        found = getattr(structure, field)
        if isinstance(kind, type) and issubclass(kind, ctypes.Structure):
            lines.append(mirror_assertions(kind))
        same = f"offsetof({name}, {field}) == {found.offset} && sizeof({name}::{field}) == {found.size}"
        lines.append(f'static_assert({same}, "{name}.{field}");')
    return "\n".join(lines)


class _Emulated:
    """The kernels of a program, compiled for the CPU."""

    def __init__(self, source: str, structure: type[ctypes.Structure], names: list[str]) -> None:
        entries = ", ".join(f"+[]() {{ {name}(given); }}" for name in names)
        main = MAIN.format(arguments=structure.__name__, entries=entries)
        self._names = names
        self._emulate = _compiled(f"#include <stddef.h>\n{source}{mirror_assertions(structure)}\n{main}").emulate

    def _launch(
        self, name: str, arguments: ctypes.Structure, grid: Any, threads: int, cluster: int = 1, shared: int = 0
    ) -> None:
        entry = self._names.index(name)
        self._emulate(ctypes.byref(arguments), entry, *grid, threads, cluster, ctypes.c_long(shared))


class EmulatedWgradKernel(_Emulated):
    """As `jit.WgradKernel`."""

    def __init__(self, variant: WgradVariant) -> None:
        self.variant = variant
        super().__init__(variant.source, wgrad.WgradArguments, ["wgrad"])

    def run(self, arguments: ctypes.Structure, grid: tuple[int, int, int], stream: int) -> None:
        self._launch("wgrad", arguments, grid, self.variant.threads, shared=self.variant.shared_memory)


class EmulatedKernels(_Emulated):
    """As `jit.Kernels`."""

    def __init__(self, variant: Variant) -> None:
        self.variant = variant
        super().__init__(variant.source, launch.Arguments, ["pack", "run"])

    def pack(self, arguments: ctypes.Structure, trials: int, stream: int) -> None:
        self._launch("pack", arguments, (-(-self.variant.tiles // 8), self.variant.launch.cluster, trials), 256)

    def run(self, arguments: ctypes.Structure, trials: int, batch: int, stream: int) -> None:
        variant, cluster = self.variant, self.variant.launch.cluster
        grid = (variant.blocks(batch) * cluster, trials, 1)
        self._launch("run", arguments, grid, variant.threads, cluster, variant.shared_memory)


class EmulatedStepwiseKernels(_Emulated):
    """As `jit.StepwiseKernels`."""

    def __init__(self, variant: StepwiseVariant) -> None:
        self.variant = variant
        phases = range(variant.problem.phases)
        names = ["pack", *(f"{kind}_{n}" for n in phases for kind in ("gemm", "pointwise"))]
        names += [] if variant.problem.backward else ["begin"]
        super().__init__(variant.source, stepwise.StepArguments, names)

    def pack(self, arguments: ctypes.Structure, trials: int, stream: int) -> None:
        self._launch("pack", arguments, (-(-self.variant.packed_tiles // 8), trials, 1), 256)

    def begin(self, arguments: ctypes.Structure, trials: int, batch: int, stream: int) -> None:
        self._launch("begin", arguments, (self.variant.blocks(batch), trials, 1), self.variant.pointwise_threads)

    def gemm(self, n: int, arguments: ctypes.Structure, trials: int, batch: int, stream: int) -> None:
        grid = self.variant.gemm_grid(n, trials, batch)
        self._launch(f"gemm_{n}", arguments, grid, self.variant.threads, shared=self.variant.shared_memory)

    def pointwise(self, n: int, arguments: ctypes.Structure, trials: int, batch: int, stream: int) -> None:
        grid, shared = (self.variant.blocks(batch), trials, 1), self.variant.pointwise_memory
        self._launch(f"pointwise_{n}", arguments, grid, self.variant.pointwise_threads, shared=shared)


def _compiler(*options: str) -> list[str]:
    target = f"{platform.machine()}-linux-gnu"
    command = [sys.executable, "-m", "ziglang", "c++", "-target", target, "-DMISTRNN_EMULATED", "-std=c++17", "-w"]
    return [*command, f"-I{ROOT}", f"-I{Path(__file__).parent}", *options]


def check_mirror(source: str, structure: type[ctypes.Structure]) -> str:
    """Return the compiler's errors about a program in which a CUDA struct is compared with its mirror."""
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "mirror.cpp"
        path.write_text(f"#include <stddef.h>\n{source}{mirror_assertions(structure)}\n")
        command = _compiler("-O0", "-c", str(path), "-o", f"{scratch}/mirror.o")
        return subprocess.run(command, capture_output=True, text=True, check=False).stderr


@cache
def _compiled(source: str) -> ctypes.CDLL:
    headers = "".join(path.read_text() for path in sorted(ROOT.rglob("*.cuh")))
    own = (Path(__file__).parent / "emulator.h").read_text()
    name = hashlib.sha256((source + headers + own).encode()).hexdigest()[:24]
    folder = Path(tempfile.gettempdir()) / "mistrnn-emulated"
    library = folder / f"{name}.so"
    if not library.exists():
        folder.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            (Path(scratch) / "kernel.cpp").write_text(source)
            options = ("-O1", "-shared", "-fPIC", "-fno-sanitize=all")
            files = (f"{scratch}/kernel.cpp", "-o", f"{scratch}/kernel.so")
            subprocess.run(_compiler(*options, *files), check=True)
            os.replace(f"{scratch}/kernel.so", library)
    return ctypes.CDLL(str(library))


def emulate(
    patch: pytest.MonkeyPatch, splits: int | None = None, configuration: Launch | None = None, capability: int = 90
) -> None:
    """Let the operators on CPU tensors run the GPU kernels; with `splits`, float32 operands are split into so many."""

    def with_splits(function: Any) -> Any:
        def run(cell: str, *arguments: Any) -> Any:
            position = next(k for k, value in enumerate(arguments) if type(value).__name__ == "Settings")
            settings = arguments[position]
            inputs = arguments[position - 1] if position == 1 else arguments[1]
            chosen = 0 if splits is None or inputs["x"].dtype == torch.float64 else splits
            replaced = list(arguments)
            replaced[position] = settings._replace(splits=chosen)
            return function(cell, *replaced)

        return run

    if configuration:
        # Backward and in float64 a block has at least eight sequences, whatever the forward run had.
        other = replace(configuration, sequences=max(8, configuration.sequences))

        def chosen(problem: Problem, *_: Any) -> Variant:
            return Variant(problem, other if problem.backward or not problem.splits else configuration, capability)

        patch.setattr(launch, "choose", chosen)
    patch.setattr(launch, "plans", {})  # repeat the choices
    patch.setattr(launch, "load", cache(lambda variant, device: EmulatedKernels(variant)))
    patch.setattr(wgrad, "load", cache(lambda variant, device: EmulatedWgradKernel(variant)))
    patch.setattr(stepwise, "load", cache(lambda variant, device: EmulatedStepwiseKernels(variant)))
    for module in (launch, wgrad):
        patch.setattr(module, "current_stream", lambda device: 0)
    patch.setattr(heuristics, "capability_of", lambda device: capability)
    for module in (cuda, wgrad):
        patch.setattr(module, "capability_of", lambda device: capability)
    patch.setattr(heuristics, "multiprocessors", lambda device: 3)
    patch.setattr(ops.cpu, "forward", with_splits(partial(cuda.forward, device="cpu")))
    patch.setattr(ops.cpu, "backward", with_splits(partial(cuda.backward, device="cpu")))
