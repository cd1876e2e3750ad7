"""Imports: every module without the parts of Python that only Unix has, and the command without torch."""

import subprocess
import sys

HIDE = """
import sys

class Hidden:
    names = {"fcntl", "resource", "pwd", "grp"}

    def find_spec(self, name, path=None, target=None):
        if name in self.names:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

for name in Hidden.names:
    sys.modules.pop(name, None)
sys.meta_path.insert(0, Hidden())
"""

EVERY_MODULE = """
import importlib
from pathlib import Path

import mistrnn

package = Path(mistrnn.__file__).parent
found = sorted(package.rglob("*.py"))
for path in found:
    importlib.import_module(".".join(path.relative_to(package.parent).with_suffix("").parts).removesuffix(".__init__"))
print(len(found), *sorted(Hidden.names & set(sys.modules)))
"""

WITHOUT_MALLOPT = """
import ctypes

from mistrnn._memory import keep_freed_memory

ctypes.CDLL = lambda *_: object()
keep_freed_memory()
print("kept going")
"""


def output_of(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_module_without_unix_only_modules_is_imported() -> None:
    modules, *used = output_of(HIDE + EVERY_MODULE).split()
    assert int(modules) > 150
    assert used == []


def test_memory_without_mallopt_leaves_the_allocator_alone() -> None:
    assert output_of(WITHOUT_MALLOPT) == "kept going\n"
