"""Compiling kernels when they are first needed, keeping them on disk, loading and launching them.

NVRTC, the compiler, comes with PyTorch's CUDA builds, and `cuda.bindings`, NVIDIA's own Python bindings, too: nobody needs
nvcc or a host compiler.
"""

import contextlib
import ctypes
import hashlib
import os
import re
import tempfile
import threading
from dataclasses import replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, TypeVar

from mistrnn.kernels._outer import OuterVariant
from mistrnn.kernels._variant import ROOT, Program, Variant, headers
from mistrnn.kernels._wide import WideVariant

OPTIONS: tuple[str, ...] = (
    "--std=c++17",
    "--restrict",
    "--extra-device-vectorization",
    "--diag-suppress=177",
    "--diag-suppress=550",
)


class CompileError(RuntimeError):
    """A kernel does not compile: a fault of ours, with the compiler's own words."""


@cache
def bindings() -> tuple[Any, Any]:
    """Return NVIDIA's bindings of the driver and of NVRTC; an ImportError where they are not installed."""
    from cuda.bindings import driver, nvrtc  # type: ignore[import-untyped,unused-ignore]

    return driver, nvrtc


def problem(capability: int) -> str | None:
    """Return why kernels cannot be compiled for a GPU of this compute capability, times ten, or None if they can."""
    try:
        _, nvrtc = bindings()
        _, major, minor = nvrtc.nvrtcVersion()
        status, known = nvrtc.nvrtcGetSupportedArchs()
    except ImportError:
        return "it needs the package cuda-bindings (pip install 'mistrnn[cuda]')"
    except Exception as error:  # the bindings look for the library only when it is called
        return f"NVIDIA's run-time compiler (NVRTC) cannot be loaded ({error})"
    if status == nvrtc.nvrtcResult.NVRTC_SUCCESS and capability not in known:
        return f"NVIDIA's run-time compiler (NVRTC {major}.{minor}) does not know GPUs of compute capability {capability / 10}"
    return None


def folder() -> Path:
    """Return where compiled kernels are kept: $MISTRNN_CACHE, or the user's cache folder."""
    if own := os.environ.get("MISTRNN_CACHE"):
        return Path(own)
    if users := os.environ.get("XDG_CACHE_HOME"):
        return Path(users) / "mistrnn/kernels"
    return Path.home() / ".cache/mistrnn/kernels"


AnyProgram = TypeVar("AnyProgram", bound=Program)

SPILLS = re.compile(r"(\d+) bytes spill")


def settled(variant: AnyProgram) -> tuple[AnyProgram, bytes]:
    """Return the variant with as many weights in registers as the compiler finds room for, and its machine code.

    It comes from the disk if it is there.
    """
    name = f"{key(variant)}.cubin"
    if found := _read(name):
        return _with_spare(variant, int.from_bytes(found[:2], "little")), found[2:]
    spare, code, _ = _settle(variant)
    with contextlib.suppress(OSError, RuntimeError):  # a read-only or full disk, no home: it serves this process alone
        _write(name, spare.to_bytes(2, "little") + code)
    return _with_spare(variant, spare), code


def _read(name: str) -> bytes | None:
    """Return what is kept under this name; None if there is nothing, or it was cut off or changed."""
    try:
        stored = (folder() / name).read_bytes()
    except (OSError, RuntimeError):
        return None
    digest, found = stored[:32], stored[32:]
    return found if hashlib.sha256(found).digest() == digest else None


def _write(name: str, found: bytes) -> None:
    """Keep it. Several processes may do the same at the same time: each writes a file of its own and renames it."""
    folder().mkdir(parents=True, exist_ok=True)
    handle, path = tempfile.mkstemp(dir=folder(), prefix=name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(hashlib.sha256(found).digest() + found)
        os.chmod(path, 0o644)  # others may share the folder
        os.replace(path, folder() / name)
    except BaseException:
        os.unlink(path)
        raise


def _settle(variant: AnyProgram) -> tuple[int, bytes, str]:
    """Leave the compiler more registers until it keeps none of them in memory, or there is nothing to leave it.

    Return how many more, the machine code, and what the compiler said.
    """
    spare = 0
    while True:
        tried = _with_spare(variant, spare)
        code, log = compile_now(tried, "--ptxas-options=-v")
        spilled = sum(map(int, SPILLS.findall(log)))
        if spilled == 0 or not any(shape.in_registers for shape in getattr(tried, "shapes", ())):
            return spare, code, log
        spare += 8 * max(1, min(4, spilled // 64))


def _with_spare(variant: AnyProgram, spare: int) -> AnyProgram:
    if not spare or not isinstance(variant, Variant):
        return variant
    return replace(variant, launch=replace(variant.launch, spare=variant.launch.spare + spare))


def key(variant: Program) -> str:
    """Return the name under which a variant is kept: its whole source, the architecture and the compiler's version."""
    _, nvrtc = bindings()
    _, major, minor = nvrtc.nvrtcVersion()
    text = [variant.source, *(part for pair in headers(variant) for part in pair), *OPTIONS]
    text.append((ROOT / "kernels/_variant.py").read_text(encoding="utf-8"))  # which settles what stays in registers
    text.append(f"{variant.architecture} nvrtc {major}.{minor}")
    return hashlib.sha256("\0".join(text).encode()).hexdigest()[:32]


def compile_now(variant: Program, *options: str) -> tuple[bytes, str]:
    """Compile a variant; return its machine code and what the compiler said."""
    _, nvrtc = bindings()
    files = list(headers(variant))
    texts, names = [text.encode() for _, text in files], [name.encode() for name, _ in files]
    status, program = nvrtc.nvrtcCreateProgram(variant.source.encode(), b"mistrnn.cu", len(files), texts, names)
    _expect(nvrtc, status)
    try:
        given = [option.encode() for option in (*OPTIONS, f"--gpu-architecture={variant.architecture}", *options)]
        (status,) = nvrtc.nvrtcCompileProgram(program, len(given), given)
        _, size = nvrtc.nvrtcGetProgramLogSize(program)
        log = _room_for(size)
        nvrtc.nvrtcGetProgramLog(program, log)
        words = log.decode(errors="replace").strip("\0 \n")
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise CompileError(f"mistrnn: expected {variant} to compile, got {status.name}:\n{words}")
        _, size = nvrtc.nvrtcGetCUBINSize(program)
        code = _room_for(size)
        _expect(nvrtc, *nvrtc.nvrtcGetCUBIN(program, code))
        return code[:size], words
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _room_for(size: int) -> bytes:
    """Return bytes for NVRTC to write into: never a single one, because Python has each of those once for all to share."""
    return bytes(max(2, size))


def _expect(nvrtc: Any, status: Any) -> None:
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise CompileError(f"mistrnn: expected NVRTC to work, got {status.name}.")


class Module:
    """Machine code on one GPU, in the context that is current when it is made: torch's own."""

    def __init__(self, code: bytes) -> None:
        driver, _ = bindings()
        self._module = _checked(driver.cuModuleLoadData(code))
        self._device = _checked(driver.cuCtxGetDevice())

    def function(self, name: str, memory: int = 0, large_cluster: bool = False) -> "Function":
        """Return a kernel by its name, which may take so much shared memory."""
        driver, _ = bindings()
        function = _checked(driver.cuModuleGetFunction(self._module, name.encode()))
        attributes = driver.CUfunction_attribute
        _checked(
            driver.cuFuncSetAttribute(function, attributes.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, memory)
        )
        if large_cluster:
            _checked(
                driver.cuFuncSetAttribute(function, attributes.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1)
            )
        return Function(function, memory, self._device)


_thread = threading.local()
_Pointers = ctypes.c_void_p * 1


class Function:
    """One kernel."""

    def __init__(self, function: Any, memory: int, device: Any) -> None:
        self._function, self._memory, self._device = function, memory, device
        self._config = lru_cache(maxsize=64)(self._new_config)  # it takes longer to make one than to launch

    def launch(
        self, grid: tuple[int, int, int], threads: int, arguments: ctypes.Structure, stream: int, cluster: int = 1
    ) -> None:
        """Launch it on a stream."""
        driver, _ = bindings()
        if not hasattr(_thread, "has_context"):  # it may not have used the GPU yet
            if int(_checked(driver.cuCtxGetCurrent())) == 0:
                _checked(driver.cuCtxSetCurrent(_checked(driver.cuDevicePrimaryCtxRetain(self._device))))
            _thread.has_context = True
        pointers = _Pointers(ctypes.addressof(arguments))
        config = self._config(grid, threads, stream, cluster)
        (status,) = driver.cuLaunchKernelEx(config, self._function, ctypes.addressof(pointers), 0)
        if status:
            _checked((status,))

    def _new_config(self, grid: tuple[int, int, int], threads: int, stream: int, cluster: int) -> Any:
        driver, _ = bindings()
        config = driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = grid
        config.blockDimX, config.blockDimY, config.blockDimZ = threads, 1, 1
        config.sharedMemBytes, config.hStream = self._memory, stream
        if cluster > 1:
            attribute = driver.CUlaunchAttribute()
            attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
            attribute.value.clusterDim.x, attribute.value.clusterDim.y, attribute.value.clusterDim.z = cluster, 1, 1
            config.attrs, config.numAttrs = [attribute], 1
        return config


class Kernels:
    """A variant's two kernels on one GPU: `pack`, which lays out the weights, and `run`."""

    def __init__(self, variant: Variant) -> None:
        self.variant, code = settled(variant)
        module = Module(code)
        self._pack = module.function("pack")
        self._run = module.function("run", self.variant.shared_memory, variant.launch.cluster > 8)
        # A variant works these out anew whenever it is asked.
        self._tiles, self._threads = self.variant.tiles, self.variant.threads

    def pack(self, arguments: ctypes.Structure, trials: int, stream: int) -> None:
        """Lay out the weights."""
        self._pack.launch((-(-self._tiles // 8), self.variant.launch.cluster, trials), 256, arguments, stream)

    def run(self, arguments: ctypes.Structure, trials: int, batch: int, stream: int) -> None:
        """Run all steps."""
        cluster = self.variant.launch.cluster
        grid = (self.variant.blocks(batch) * cluster, trials, 1)
        self._run.launch(grid, self._threads, arguments, stream, cluster)


class OuterKernel:
    """The kernel of a weight gradient on one GPU."""

    def __init__(self, variant: OuterVariant) -> None:
        self.variant, code = settled(variant)
        self._outer = Module(code).function("outer", variant.shared_memory)
        self._threads = variant.threads

    def run(self, arguments: ctypes.Structure, grid: tuple[int, int, int], stream: int) -> None:
        """Add up all products."""
        self._outer.launch(grid, self._threads, arguments, stream)


class WideKernels:
    """A wide variant's kernels on one GPU."""

    def __init__(self, variant: WideVariant) -> None:
        self.variant, code = settled(variant)
        module, phases = Module(code), range(variant.problem.phases)
        self._pack = module.function("pack")
        self._multiply = [module.function(f"multiply_{n}", variant.shared_memory) for n in phases]
        self._phases = [module.function(f"phase_{n}", variant.step_memory) for n in phases]
        self._begin = None if variant.problem.backward else module.function("begin")

    def pack(self, call: ctypes.Structure, trials: int, stream: int) -> None:
        """Lay out the weights."""
        self._pack.launch((-(-self.variant.packed_tiles // 8), trials, 1), 256, call, stream)

    def begin(self, call: ctypes.Structure, trials: int, batch: int, stream: int) -> None:
        """Let the first product read the state before the first step."""
        assert self._begin is not None
        self._begin.launch((self.variant.blocks(batch), trials, 1), self.variant.step_threads, call, stream)

    def multiply(self, product: int, call: ctypes.Structure, trials: int, batch: int, stream: int) -> None:
        """Multiply for all trials."""
        grid = self.variant.product_grid(product, trials, batch)
        self._multiply[product].launch(grid, self.variant.threads, call, stream)

    def phase(self, phase: int, call: ctypes.Structure, trials: int, batch: int, stream: int) -> None:
        """Do what comes before or after a product."""
        grid = (self.variant.blocks(batch), trials, 1)
        self._phases[phase].launch(grid, self.variant.step_threads, call, stream)


class DriverError(RuntimeError):
    """The GPU's driver refused: its name for the reason stands in the text."""


def _checked(result: tuple[Any, ...]) -> Any:
    status, *values = result
    if status.value != 0:
        raise DriverError(f"mistrnn: expected the GPU to take a kernel, got {status.name}.")
    return values[0] if values else None
