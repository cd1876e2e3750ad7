"""The build hook: the C++ compiles without a warning for every platform, and tables are generated from the sources."""

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
    build.generate(ROOT, tmp_path)
    zig = [sys.executable, "-m", "ziglang", "cc", "-target", target, f"-mcpu={cpu}"]
    command = [
        *zig,
        *build.FLAGS,
        "-Werror",
        "-DMISTRNN_ISA=base",
        f"-I{tmp_path}",
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


def test_generated_tables_name_every_cell_and_every_field_in_order(tmp_path: Path) -> None:
    for name in ("rnn", "two_words"):
        (tmp_path / "src/mistrnn/layers" / name).mkdir(parents=True)
        (tmp_path / "src/mistrnn/layers" / name / "cpu.h").touch()
    (tmp_path / "src/mistrnn/layers/without_kernel").mkdir()
    (tmp_path / "src/mistrnn/kernels").mkdir()
    (tmp_path / "src/mistrnn/kernels/cpu").symlink_to(ROOT / "src/mistrnn/kernels/cpu")
    hook().generate(tmp_path, tmp_path)
    assert (tmp_path / "cells.inc").read_text() == 'CELL(0, "rnn", Rnn)\nCELL(1, "two_words", TwoWords)\n'
    headers = (tmp_path / "cell_headers.inc").read_text()
    assert headers == '#include "layers/rnn/cpu.h"\n#include "layers/two_words/cpu.h"\n'
    fields = (tmp_path / "fields.inc").read_text().splitlines()
    assert fields[:3] == [f'FIELD(Call, {name}, "{name}")' for name in ("cell", "is_double", "threads")]
    assert 'FIELD(GatedUnit, sizes.team, "team")' in fields


def test_fields_of_a_struct_with_functions_pointers_and_another_struct_are_in_order(tmp_path: Path) -> None:
    header = tmp_path / "some.h"
    header.write_text(
        "struct Inner {\n  int a, b;  // not; a field\n};\n"
        "struct Outer {\n  Inner in;\n  const void *p, *q;\n  void (*f)(int, void*);\n  Inner* many;\n};\n"
    )
    assert list(hook().fields_of(header, "Outer")) == ["in.a", "in.b", "p", "q", "f", "many"]
    with pytest.raises(ValueError, match="expected a declaration of struct Other, got none"):
        list(hook().fields_of(header, "Other"))


def test_library_is_newer_than_its_sources() -> None:
    """The tests run the library that was compiled last; `make test` compiles again after a change."""
    build = hook()
    library = next((ROOT / build.SOURCES).glob("libmistrnn.*"))
    sources = [*(ROOT / build.SOURCES).glob("*.[hc]*"), *(ROOT / "src/mistrnn/layers").glob("*/cpu.h")]
    assert library.stat().st_mtime >= max(path.stat().st_mtime for path in sources)
