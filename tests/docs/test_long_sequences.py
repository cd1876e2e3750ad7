"""The training loop of the page on long sequences: exact gradients in little memory."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from mistrnn import LSTM, MIST
from tests.docs.pages import names_after
from tests.tolerance import relative_error


def recipe_for_long_sequences() -> dict[str, Any]:
    return names_after("docs/how-to/long-sequences.md")


@pytest.mark.parametrize("backend", ["fused", "reference"])
@pytest.mark.parametrize("kind", [MIST, LSTM])
def test_recipe_for_long_sequences_gives_the_gradients_of_the_whole_run(kind: Any, backend: Any) -> None:
    recipe = recipe_for_long_sequences()
    recipe["layer"] = layer = kind(3, 16, num_layers=2, dtype=torch.float64)
    layer.backend = backend
    readout = recipe["readout"].double()
    inputs = torch.randn(50, 2, 3, dtype=torch.float64, requires_grad=True)
    targets = torch.randint(5, (50, 2))
    wanted = [inputs, *layer.parameters(), *readout.parameters()]
    whole, in_chunks = recipe["loss_of_chunk"](inputs, targets, None)[0], recipe["loss_of_all"](inputs, targets, 7)
    assert relative_error(in_chunks, whole) < 1e-12
    for found, expected in zip(torch.autograd.grad(in_chunks, wanted), torch.autograd.grad(whole, wanted), strict=True):
        assert relative_error(found, expected) < 1e-12


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="measured through Linux's /proc")
def test_recipe_for_long_sequences_saves_memory() -> None:
    """Measured in a process of its own as the growth of the peak resident size."""
    script = """
import torch
from tests.docs.test_long_sequences import recipe_for_long_sequences
torch.set_num_threads(1)
recipe = recipe_for_long_sequences()
inputs, targets = torch.randn(50_000, 16, 3), torch.randint(5, (50_000, 16))

def size(name):
    return int(next(line for line in open("/proc/self/status") if line.startswith(name)).split()[1])

def growth(length):
    open("/proc/self/clear_refs", "w").write("5")  # forget earlier peaks
    before = size("VmRSS")
    recipe["loss_of_all"](inputs, targets, length).backward()
    return size("VmHWM") - before

in_chunks = growth(500)
print(growth(50_000) / in_chunks)
"""
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", script], cwd=root, capture_output=True, text=True, check=True)
    assert float(done.stdout) > 3
