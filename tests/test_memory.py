"""Freed memory: kept for the next step in processes of our own, and given back when somebody asks how much is free."""

import os
import platform
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="what freed memory becomes is glibc's affair")

CODE = """
import torch
from mistrnn._memory import free_memory, keep_freed_memory

def resident():
    return 4096 * int(open("/proc/self/statm").read().split()[1])

keep_freed_memory()
before = resident()
kept = [torch.ones(2**20) for _ in range(40)]  # of 4 MB each
full = resident() - before
del kept
held = resident() - before
free_memory(torch.device("cpu"))
print(full // 2**20, held // 2**20, (resident() - before) // 2**20)
"""


def megabytes(**environment: str) -> list[int]:
    """With 160 MB taken, after they are freed, and after somebody asked how much is free."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    ended = subprocess.run(
        [sys.executable, "-c", CODE], env={**own, **environment}, capture_output=True, text=True, check=True
    )
    return [int(word) for word in ended.stdout.split()]


def test_freed_memory_stays_until_somebody_asks_how_much_is_free() -> None:
    full, held, asked = megabytes()
    assert full >= 155
    assert held >= 155
    assert asked < 40


@pytest.mark.parametrize(
    "choice", [{"MALLOC_TRIM_THRESHOLD_": "100000"}, {"GLIBC_TUNABLES": "glibc.malloc.trim_threshold=100000"}]
)
def test_the_environment_has_the_last_word(choice: dict[str, str]) -> None:
    full, held, _ = megabytes(**choice)
    assert full >= 155
    assert held < 40
