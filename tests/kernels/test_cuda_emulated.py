"""The GPU kernels' own source, run on a CPU by the emulator: every layer, every option, parts and clusters, odd sizes.

What only a GPU can show (speed, the machine's own arithmetic) is in test_cuda.py; what the kernels compute is shown here, on
any machine.
"""

import platform
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import functional_call, grad, stack_module_state, vmap

from mistrnn.kernels._variant import Launch
from mistrnn.layers import LAYERS, RecurrentLayer
from tests.kernels.emulator import emulate
from tests.kernels.test_cpu import measure, sized, tame
from tests.layers.cases import REGULARISERS, every_layer, seeded, small
from tests.tolerance import relative_error

pytestmark = pytest.mark.skipif(
    platform.system() != "Linux" or platform.machine() not in ("x86_64", "aarch64"),
    reason="the emulator switches between threads as Linux does",
)

ROUNDINGS = {0: 1e-12, 1: 3e-2, 2: 3e-5, 3: 2e-6}
"""How far from float64 a run of these sizes may be, by parts (0: float64 itself)."""


def errors(layer: RecurrentLayer, parts: int, launch: Launch | None, steps: int, batch: int, **call: Any) -> dict[str, float]:
    """What is further from the plain form in float64 than the parts allow."""
    exact = measure(layer, "plain", torch.float64, steps, batch, **call)
    with pytest.MonkeyPatch.context() as patch:
        emulate(patch, parts or None, launch)
        found = measure(layer, "fused", torch.float32 if parts else torch.float64, steps, batch, **call)
    assert found.keys() == exact.keys()
    far = {name: relative_error(found[name], exact[name]) for name in exact}
    return {name: error for name, error in far.items() if not error <= ROUNDINGS[parts]}


@every_layer
@pytest.mark.parametrize("regulariser", list(REGULARISERS))
@pytest.mark.parametrize("training", [True, False])
def test_options_lengths_resets_and_directions(name: str, regulariser: str, training: bool) -> None:
    with seeded(2):
        layer = tame(small(name, hidden_size=18, num_layers=2, bidirectional=True, **REGULARISERS[regulariser]))
        reset = torch.rand(15, 4) < 0.15
    layer.train(training)
    assert errors(layer, 0, None, 15, 4, lengths=[9, 15, 0, 12], reset=reset) == {}
