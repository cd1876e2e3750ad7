"""The build hook: the C++ compiles without a warning for every platform that it names, and the wheel is told so."""

import subprocess
import sys
from importlib import util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent


def hook() -> ModuleType:
    spec = util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def cases() -> list[tuple[str, str, str, str]]:
    build = hook()
    found = []
    for (system, machine), (target, _, instruction_sets) in build.TARGETS.items():
        name, cpu = next(iter(instruction_sets.items()))  # the tests run the others of this machine
        found += [(f"{system}-{machine}", target, cpu, file) for file in ("run.cpp", "library.cpp")]
        assert name == "base"
    return found


@pytest.mark.parametrize(("platform", "target", "cpu", "file"), cases())
def test_compiles_without_a_warning(platform: str, target: str, cpu: str, file: str, tmp_path: Path) -> None:
    build = hook()
    zig = [sys.executable, "-m", "ziglang", "cc", "-target", target, f"-mcpu={cpu}"]
    command = [
        *zig,
        *build.FLAGS,
        "-Werror",
        "-DMISTRNN_ISA=base",
        "-c",
        str(build.SOURCES / file),
        "-o",
        str(tmp_path / "o"),
    ]
    caches = {
        "ZIG_GLOBAL_CACHE_DIR": str(tmp_path / "g"),
        "ZIG_LOCAL_CACHE_DIR": str(tmp_path / "l"),
        "HOME": str(tmp_path),
    }
    result = subprocess.run(command, cwd=ROOT, env={"PATH": "/usr/bin:/bin", **caches}, capture_output=True, text=True)
    assert result.returncode == 0, f"{platform}: {result.stderr}"


def test_the_installed_library_is_that_of_these_sources() -> None:
    """What is tested is what was compiled last; `make test` compiles again after a change."""
    build = hook()
    library = next((ROOT / build.SOURCES).glob("libmistrnn.*"))
    sources = [*(ROOT / build.SOURCES).glob("*.[hc]*"), *(ROOT / "src/mistrnn/layers").glob("*/cpu.h")]
    assert library.stat().st_mtime >= max(path.stat().st_mtime for path in sources)
