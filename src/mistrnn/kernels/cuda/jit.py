"""Just-in-time compilation of kernels by NVRTC, their cache on disk, loading and launching.

NVRTC and `cuda.bindings`, NVIDIA's Python bindings, come with PyTorch's CUDA builds: neither nvcc nor a host compiler is
needed.
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

from mistrnn.kernels.cuda.persistent.variant import Variant
from mistrnn.kernels.cuda.program import ROOT, Program, headers
from mistrnn.kernels.cuda.stepwise.variant import StepwiseVariant
from mistrnn.kernels.cuda.wgrad.variant import WgradVariant

OPTIONS: tuple[str, ...] = (
    "--std=c++17",
    "--restrict",
    "--extra-device-vectorization",
    "--diag-suppress=177",
    "--diag-suppress=550",
)


class CompileError(RuntimeError):
    """A kernel does not compile: a bug in this package. The text is the compiler's log."""


@cache
def bindings() -> tuple[Any, Any]:
    """Return NVIDIA's bindings of the driver and of NVRTC. Raise ImportError where they are not installed."""
    from cuda.bindings import driver, nvrtc  # type: ignore[import-untyped,unused-ignore]

    return driver, nvrtc


def obstacle(capability: int) -> str | None:
    """Return why kernels cannot be compiled for a GPU of this compute capability, times ten, or None if they can."""
    try:
        _, nvrtc = bindings()
        _, major, minor = nvrtc.nvrtcVersion()
        status, known = nvrtc.nvrtcGetSupportedArchs()
    except ImportError:
        return "it needs the package cuda-bindings (pip install 'mistrnn[cuda]')"
    except Exception as error:  # the bindings load the library at the first call
        return f"NVIDIA's run-time compiler (NVRTC) cannot be loaded ({error})"
    if status == nvrtc.nvrtcResult.NVRTC_SUCCESS and capability not in known:
        return f"NVIDIA's run-time compiler (NVRTC {major}.{minor}) does not know GPUs of compute capability {capability / 10}"
    return None


def folder() -> Path:
    """Return the folder of compiled kernels: $MISTRNN_CACHE, or the user's cache folder."""
    if own := os.environ.get("MISTRNN_CACHE"):
        return Path(own)
    if users := os.environ.get("XDG_CACHE_HOME"):
        return Path(users) / "mistrnn/kernels"
    return Path.home() / ".cache/mistrnn/kernels"


AnyProgram = TypeVar("AnyProgram", bound=Program)

SPILLS = re.compile(r"(\d+) bytes spill")


def compiled(variant: AnyProgram) -> tuple[AnyProgram, bytes]:
    """Return the variant without register spills and its machine code, from the cache if it is there."""
    name = f"{key(variant)}.cubin"
    if found := _read(name):
        return _with_spare(variant, int.from_bytes(found[:2], "little")), found[2:]
    spare, code, _ = _compile_without_spills(variant)
    with contextlib.suppress(OSError, RuntimeError):  # read-only or full disk, no home: no cache
        _write(name, spare.to_bytes(2, "little") + code)
    return _with_spare(variant, spare), code


def _read(name: str) -> bytes | None:
    """Return the content of a cache entry, or None if it is missing or damaged."""
    try:
        stored = (folder() / name).read_bytes()
    except (OSError, RuntimeError):
        return None
    digest, found = stored[:32], stored[32:]
    return found if hashlib.sha256(found).digest() == digest else None


def _write(name: str, found: bytes) -> None:
    """Write a cache entry. Processes may race: each writes a file of its own and renames it."""
    folder().mkdir(parents=True, exist_ok=True)
    handle, path = tempfile.mkstemp(dir=folder(), prefix=name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(hashlib.sha256(found).digest() + found)
        os.chmod(path, 0o644)  # users may share the folder
        os.replace(path, folder() / name)
    except BaseException:
        os.unlink(path)
        raise


def _compile_without_spills(variant: AnyProgram) -> tuple[int, bytes, str]:
    """Move weights out of registers until the compiler spills none.

    Return the spare registers per thread, the machine code and the compiler's log.
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
    return replace(variant, launch=replace(variant.launch, spare_registers=variant.launch.spare_registers + spare))


def key(variant: Program) -> str:
    """Return the cache key of a variant: a hash of its source, the architecture and the compiler's version."""
    _, nvrtc = bindings()
    _, major, minor = nvrtc.nvrtcVersion()
    text = [variant.source, *(part for pair in headers(variant) for part in pair), *OPTIONS]
    # It decides which weights stay in registers once there are spare ones.
    text.append((ROOT / "kernels/cuda/persistent/variant.py").read_text(encoding="utf-8"))
    text.append(f"{variant.architecture} nvrtc {major}.{minor}")
    return hashlib.sha256("\0".join(text).encode()).hexdigest()[:32]


def compile_now(variant: Program, *options: str) -> tuple[bytes, str]:
    """Compile a variant; return its machine code and the compiler's log."""
    _, nvrtc = bindings()
    files = list(headers(variant))
    texts, names = [text.encode() for _, text in files], [name.encode() for name, _ in files]
    status, program = nvrtc.nvrtcCreateProgram(variant.source.encode(), b"mistrnn.cu", len(files), texts, names)
    _expect(nvrtc, status)
    try:
        given = [option.encode() for option in (*OPTIONS, f"--gpu-architecture={variant.architecture}", *options)]
        (status,) = nvrtc.nvrtcCompileProgram(program, len(given), given)
        _, size = nvrtc.nvrtcGetProgramLogSize(program)
        log = _buffer(size)
        nvrtc.nvrtcGetProgramLog(program, log)
        words = log.decode(errors="replace").strip("\0 \n")
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise CompileError(f"mistrnn: expected {variant} to compile, got {status.name}:\n{words}")
        _, size = nvrtc.nvrtcGetCUBINSize(program)
        code = _buffer(size)
        _expect(nvrtc, *nvrtc.nvrtcGetCUBIN(program, code))
        return code[:size], words
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _buffer(size: int) -> bytes:
    """Return bytes for NVRTC to write into: at least two, because Python shares its single-byte objects."""
    return bytes(max(2, size))


def _expect(nvrtc: Any, status: Any) -> None:
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise CompileError(f"mistrnn: expected NVRTC to work, got {status.name}.")


class Module:
    """Machine code on one GPU, in torch's context, which must be current."""

    def __init__(self, code: bytes) -> None:
        driver, _ = bindings()
        self._module = _checked(driver.cuModuleLoadData(code))
        self._device = _checked(driver.cuCtxGetDevice())

    def function(self, name: str, memory: int = 0, large_cluster: bool = False) -> "Function":
        """Return a kernel by name, with so many bytes of dynamic shared memory."""
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
        self._config = lru_cache(maxsize=64)(self._new_config)  # slower than the launch itself

    def launch(
        self, grid: tuple[int, int, int], threads: int, arguments: ctypes.Structure, stream: int, cluster: int = 1
    ) -> None:
        """Launch it on a stream."""
        driver, _ = bindings()
        if not hasattr(_thread, "has_context"):  # new to the GPU
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
    """The persistent kernel on one GPU: `pack` lays out the weights, `run` runs all steps."""

    def __init__(self, variant: Variant) -> None:
        self.variant, code = compiled(variant)
        module = Module(code)
        self._pack = module.function("pack")
        self._run = module.function("run", self.variant.shared_memory, variant.launch.cluster > 8)
        # Properties of a variant are not cached.
        self._tiles, self._threads = self.variant.tiles, self.variant.threads

    def pack(self, arguments: ctypes.Structure, trials: int, stream: int) -> None:
        """Lay out the weights."""
        self._pack.launch((-(-self._tiles // 8), self.variant.launch.cluster, trials), 256, arguments, stream)

    def run(self, arguments: ctypes.Structure, trials: int, batch: int, stream: int) -> None:
        """Run all steps."""
        cluster = self.variant.launch.cluster
        grid = (self.variant.blocks(batch) * cluster, trials, 1)
        self._run.launch(grid, self._threads, arguments, stream, cluster)


class WgradKernel:
    """The weight-gradient kernel on one GPU."""

    def __init__(self, variant: WgradVariant) -> None:
        self.variant, code = compiled(variant)
        self._wgrad = Module(code).function("wgrad", variant.shared_memory)
        self._threads = variant.threads

    def run(self, arguments: ctypes.Structure, grid: tuple[int, int, int], stream: int) -> None:
        """Compute all trials and split-K ranges."""
        self._wgrad.launch(grid, self._threads, arguments, stream)


class StepwiseKernels:
    """The step-wise kernels on one GPU."""

    def __init__(self, variant: StepwiseVariant) -> None:
        self.variant, code = compiled(variant)
        module, phases = Module(code), range(variant.problem.phases)
        self._pack = module.function("pack")
        self._gemm = [module.function(f"gemm_{n}", variant.shared_memory) for n in phases]
        self._pointwise = [module.function(f"pointwise_{n}", variant.pointwise_memory) for n in phases]
        self._begin = None if variant.problem.backward else module.function("begin")

    def pack(self, arguments: ctypes.Structure, trials: int, stream: int) -> None:
        """Lay out the weights."""
        self._pack.launch((-(-self.variant.packed_tiles // 8), trials, 1), 256, arguments, stream)

    def begin(self, arguments: ctypes.Structure, trials: int, batch: int, stream: int) -> None:
        """Publish the initial state to the first GEMM."""
        assert self._begin is not None
        self._begin.launch((self.variant.blocks(batch), trials, 1), self.variant.pointwise_threads, arguments, stream)

    def gemm(self, n: int, arguments: ctypes.Structure, trials: int, batch: int, stream: int) -> None:
        """Multiply for all trials."""
        grid = self.variant.gemm_grid(n, trials, batch)
        self._gemm[n].launch(grid, self.variant.threads, arguments, stream)

    def pointwise(self, n: int, arguments: ctypes.Structure, trials: int, batch: int, stream: int) -> None:
        """Run the n-th pointwise kernel of a step for all trials."""
        grid = (self.variant.blocks(batch), trials, 1)
        self._pointwise[n].launch(grid, self.variant.pointwise_threads, arguments, stream)


class DriverError(RuntimeError):
    """The CUDA driver returned an error; the text has its name."""


def _checked(result: tuple[Any, ...]) -> Any:
    status, *values = result
    if status.value != 0:
        raise DriverError(f"mistrnn: expected the GPU to take a kernel, got {status.name}.")
    return values[0] if values else None
