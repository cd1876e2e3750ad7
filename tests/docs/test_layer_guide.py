"""The layer of the guide "Adding a layer" keeps the laws of all layers."""

import sys
from types import ModuleType
from typing import Any

import pytest
import torch

from mistrnn import PeepholeLSTM
from mistrnn.estimators.network import layer_arguments
from tests.docs.pages import blocks


@pytest.fixture
def layer_of_the_guide(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The class MGU, from the guide's files as a package outside of mistrnn."""
    monkeypatch.setitem(sys.modules, "mgu", ModuleType("mgu"))
    code = blocks("docs/how-to/adding-a-layer.md", "python")
    for file, block in zip(("reference", "cell", "layer", "use"), code, strict=True):
        module = ModuleType(f"mgu.{file}")
        monkeypatch.setitem(sys.modules, module.__name__, module)
        exec(compile(block, "adding-a-layer.md", "exec"), vars(module))
    return vars(module)["MGU"]


def test_layer_of_the_guide_keeps_the_laws(layer_of_the_guide: Any) -> None:
    torch.manual_seed(0)
    layer = layer_of_the_guide(3, 5, 2, zoneout=0.1, layer_norm=True).double().eval()
    input, reset = torch.randn(12, 2, 3, dtype=torch.float64), torch.rand(12, 2) < 0.2
    whole, whole_state = layer(input, reset=reset)
    first, state = layer(input[:3], reset=reset[:3])
    second, state = layer(input[3:], state, reset=reset[3:])
    torch.testing.assert_close(torch.cat([first, second]), whole)
    torch.testing.assert_close(state, whole_state)
    stream = layer.stream(2)
    torch.testing.assert_close(torch.stack([stream(x, r) for x, r in zip(input, reset, strict=True)]), whole)


def test_layer_of_the_guide_is_made_as_those_of_torch(layer_of_the_guide: Any) -> None:
    by_position = layer_of_the_guide(3, 8, 2, False, True, 0.5, True, delay=2)
    assert repr(by_position) == (
        "MGU(3, 8, num_layers=2, delays=[2], bias=False, batch_first=True, dropout=0.5, bidirectional=True)"
    )
    with pytest.raises(TypeError, match="positional arguments"):
        layer_of_the_guide(3, 8, 2, False, True, 0.5, True, 0)
    with pytest.raises(ValueError, match=r"^MGU: expected delay >= 1, got 0\.$"):
        layer_of_the_guide(3, 8, delay=0)
    assert layer_arguments(by_position)["delay"] == 2
    assert layer_arguments(by_position).keys() == {*layer_arguments(PeepholeLSTM(3, 8)), "delay"}
    skipped = torch.nn.utils.skip_init(layer_of_the_guide, 3, 8)
    assert skipped(torch.zeros(2, 1, 3))[0].shape == (2, 1, 8)
