"""Build hook: compile the CPU kernels into the package.

The compiler is Zig's clang, which pip fetches for the build (see pyproject.toml): neither the machine that builds nor the one
that installs the wheel needs a compiler. The library depends on the C library alone, so one wheel serves every Python and
every version of torch.

The table of cells and the table of struct fields are generated: a layer with a `cpu.h` is compiled in by its folder's name.
"""

import os
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCES, LAYERS = Path("src/mistrnn/kernels/cpu"), Path("src/mistrnn/layers")

MIRRORED = {
    "call.h": ("Call",),
    "blocks.h": ("DepthwiseConv", "BatchNorm", "GatedUnit", "PositiveCounts", "ConvolutionStep"),
    "network_stream.h": ("NetworkBlock", "Network"),
}
"""Structs that kernels/cpu/library.py mirrors."""

PER_INSTRUCTION_SET = ("run", "blocks", "convolutions", "network_stream")
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
    # Results may differ only by fused multiply-adds: no fast-math, NaN stays NaN.
    *("-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast"),
]


class CompiledCode(BuildHookInterface):
    """Compile before a wheel or an editable installation is built."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Put the library next to its sources and name the wheel after the platform."""
        here = (platform.system(), platform.machine())
        if self.target_name != "wheel":
            return
        if here not in TARGETS:  # layers run their reference and warn
            for left in (Path(self.root) / SOURCES).glob("libmistrnn.*"):
                left.unlink()  # of another platform
            return
        _, wheel_platform, _ = TARGETS[here]
        compile_library(Path(self.root), here)
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{wheel_platform}"


def generate(root: Path, folder: Path) -> None:
    """Write the generated parts of the C++ code into a folder."""
    names = sorted(path.parent.name for path in (root / LAYERS).glob("*/cpu.h"))
    headers = [f'#include "layers/{name}/cpu.h"' for name in names]
    cells = [
        f'CELL({index}, "{name}", {"".join(word.title() for word in name.split("_"))})'
        for index, name in enumerate(names)
    ]
    fields = []
    for header, structs in MIRRORED.items():
        declared = {name: list(fields_of(root / SOURCES / header, name)) for name in structs}
        fields += [f'FIELD({name}, {path}, "{path.split(".")[-1]}")' for name in structs for path in declared[name]]
    for file, lines in (("cell_headers.inc", headers), ("cells.inc", cells), ("fields.inc", fields)):
        (folder / file).write_text("\n".join(lines) + "\n")


def fields_of(header: Path, struct: str) -> Iterator[str]:
    """Iterate over the fields of a C struct; those of a struct inside it are `name.field`."""
    text = re.sub(r"//.*", "", header.read_text())
    body = re.search(rf"struct {struct} {{(.*?)\n}};", text, re.DOTALL)
    if body is None:
        raise ValueError(f"{header}: expected a declaration of struct {struct}, got none.")
    for declaration in filter(None, map(str.strip, body[1].split(";"))):
        if function := re.search(r"\(\*(\w+)\)", declaration):
            yield function[1]
            continue
        kind, *_ = declaration.split()
        nested = f"struct {kind} {{" in text
        for name in re.findall(r"(\w+)\s*(?:,|$)", declaration):
            if nested:
                yield from (f"{name}.{field}" for field in fields_of(header, kind))
            else:
                yield name


def compile_library(root: Path, system: tuple[str, str]) -> Path:
    """Compile for every instruction set at once and link; return the library."""
    target, _, instruction_sets = TARGETS[system]
    library = root / SOURCES / ("libmistrnn.dylib" if system[0] == "Darwin" else "libmistrnn.so")
    with tempfile.TemporaryDirectory() as folder:
        zig = [sys.executable, "-m", "ziglang", "cc", "-target", target]
        caches = {"ZIG_GLOBAL_CACHE_DIR": f"{folder}/global", "ZIG_LOCAL_CACHE_DIR": f"{folder}/local"}
        environment = {**os.environ, **caches}
        generate(root, Path(folder))
        commands = [
            [
                *zig,
                *FLAGS,
                f"-I{folder}",
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
        commands.append([*zig, *FLAGS, f"-I{folder}", "-c", str(SOURCES / "library.cpp"), "-o", f"{folder}/library.o"])
        running = [subprocess.Popen(command, cwd=root, env=environment) for command in commands]
        codes = [process.wait() for process in running]
        if any(codes):
            raise RuntimeError("the CPU kernels do not compile; see the compiler's messages above")
        objects = [command[-1] for command in commands]
        # Link under another name first: a process that has the old library open keeps it.
        fresh = library.with_suffix(".new")
        subprocess.run([*zig, "-shared", "-s", "-o", str(fresh), *objects], cwd=root, env=environment, check=True)
        fresh.replace(library)
    return library
