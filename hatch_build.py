"""Build hook: compile the fused CPU forms into the package, so that `pip install` brings them along.

The compiler is Zig's clang, which pip fetches for the build (see pyproject.toml): no compiler is needed on the machine that
builds, and none where the wheel is installed. The library needs the C library alone, so one wheel serves every Python
and every version of torch.
"""

import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCES = Path("src/mistrnn/kernels/cpp")

PER_INSTRUCTION_SET = ("run", "blocks", "network_stream")
"""Sources that are compiled once for each instruction set."""

TARGETS = {
    # (system, machine): Zig's target, the wheel's platform, and the code to compile: name and instruction set
    ("Linux", "x86_64"): (
        "x86_64-linux-gnu.2.17",
        "manylinux_2_17_x86_64",
        {"base": "x86_64_v2", "avx2": "x86_64_v3", "avx512": "x86_64_v4"},
    ),
    ("Linux", "aarch64"): ("aarch64-linux-gnu.2.17", "manylinux_2_17_aarch64", {"base": "generic"}),
    ("Darwin", "arm64"): ("aarch64-macos.11.0", "macosx_11_0_arm64", {"base": "apple_m1"}),
    ("Darwin", "x86_64"): (
        "x86_64-macos.10.15",
        "macosx_10_15_x86_64",
        {"base": "x86_64_v2", "avx2": "x86_64_v3", "avx512": "x86_64_v4"},
    ),
}

FLAGS = [
    *("-x", "c++", "-std=c++20", "-O3", "-fPIC", "-Wall", "-Wextra", "-Isrc/mistrnn"),
    *("-fvisibility=hidden", "-fno-exceptions", "-fno-rtti", "-fno-sanitize=undefined"),
    # Results may differ by fused multiply-adds and by nothing else: no fast-math, NaN stays NaN.
    *("-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast"),
]


class CompiledCode(BuildHookInterface):
    """Compile before a wheel or an editable installation is made."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Put the library beside its sources and name the wheel after the platform."""
        here = (platform.system(), platform.machine())
        if self.target_name != "wheel":
            return
        if here not in TARGETS:  # the plain forms serve, and layers say so
            for left in (Path(self.root) / SOURCES).glob("libmistrnn.*"):
                left.unlink()  # of another platform
            return
        _, wheel_platform, _ = TARGETS[here]
        compile_library(Path(self.root), here)
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{wheel_platform}"


def compile_library(root: Path, system: tuple[str, str]) -> Path:
    """Compile for every instruction set at once and link; return the library."""
    target, _, instruction_sets = TARGETS[system]
    library = root / SOURCES / ("libmistrnn.dylib" if system[0] == "Darwin" else "libmistrnn.so")
    with tempfile.TemporaryDirectory() as folder:
        zig = [sys.executable, "-m", "ziglang", "cc", "-target", target]
        caches = {"ZIG_GLOBAL_CACHE_DIR": f"{folder}/global", "ZIG_LOCAL_CACHE_DIR": f"{folder}/local"}
        environment = {**os.environ, **caches}
        commands = [
            [
                *zig,
                *FLAGS,
                f"-mcpu={cpu}",
                f"-DMISTRNN_ISA={name}",
                "-c",
                str(SOURCES / f"{source}.cpp"),
                "-o",
                f"{folder}/{source}-{name}.o",
            ]
            for source in PER_INSTRUCTION_SET
            for name, cpu in instruction_sets.items()
        ]
        commands.append([*zig, *FLAGS, "-c", str(SOURCES / "library.cpp"), "-o", f"{folder}/library.o"])
        running = [subprocess.Popen(command, cwd=root, env=environment) for command in commands]
        codes = [process.wait() for process in running]
        if any(codes):
            raise RuntimeError("the fused CPU forms do not compile; see the compiler's messages above")
        objects = [command[-1] for command in commands]
        # Under a new name first: a process that has the old library open keeps it.
        fresh = library.with_suffix(".new")
        subprocess.run([*zig, "-shared", "-s", "-o", str(fresh), *objects], cwd=root, env=environment, check=True)
        fresh.replace(library)
    return library
