"""Small networks, their whole runs and their streams."""

from typing import Any

import pytest
import torch
from torch import Tensor

from mistrnn.kernels.cpu import library
from mistrnn.layers import LAYERS, RecurrentLayer
from mistrnn.models import Ensemble, SequenceNetwork
from mistrnn.models._stream import NetworkStream, _ComposedSteps, _FusedSteps

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}
every_layer = pytest.mark.parametrize("layer", list(LAYERS))


def small(layer: str | type[RecurrentLayer] = "mist", width: int = 21, **options: Any) -> SequenceNetwork:
    """A network whose parameters, statistics and standardisation all count."""
    torch.manual_seed(0)
    own = {"mist": {"delays": [1, 3, 7]}, "narx": {"delays": [1, 3, 7]}, "clockwork": {"periods": [1, 2, 3]}}
    arguments: dict[str, Any] = {"kernel_size": 4, "layer_options": own.get(layer) if isinstance(layer, str) else None}
    network = SequenceNetwork(3, 5, layer=layer, hidden_size=width, **(arguments | options)).eval()
    with torch.no_grad():
        network.mean.copy_(torch.tensor([0.5, -2.0, 100.0]))
        network.scale.copy_(torch.tensor([2.0, 0.5, 30.0]))
        for name, parameter in network.named_parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) / 4)
            if "weight_hh" in name:  # rounding must not grow from step to step
                parameter.mul_(0.5 / (parameter.square().mean() * parameter.size(1)).sqrt())
        for norm in network.norms():
            norm.running_mean.normal_(0.0, 0.3)
            norm.running_var.uniform_(0.5, 2.0)
    return network


def rows(steps: int, batch: int = 1, dtype: torch.dtype = torch.float64) -> Tensor:
    torch.manual_seed(1)
    return (torch.randn(steps, batch, 3, dtype=torch.float64) * torch.tensor([2.0, 0.5, 30.0])).to(dtype)


def whole(network: SequenceNetwork | Ensemble, x: Tensor) -> Tensor:
    with torch.no_grad():
        scores: Tensor = network(x, every_step=True)[0]
    return scores


def close(found: Tensor, expected: Tensor) -> None:
    assert found.dtype == expected.dtype
    tolerance = TOLERANCE[expected.dtype]
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


def fused(stream: Any) -> Any:
    assert isinstance(stream, NetworkStream)
    assert isinstance(stream._steps, _FusedSteps)
    return stream


def composed(stream: Any) -> Any:
    assert isinstance(stream, NetworkStream)
    assert isinstance(stream._steps, _ComposedSteps)
    return stream


def without_library(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(library, "loaded", None)
    patch.setattr(library, "problem", "there is no compiled code in this test")
    patch.setattr(RecurrentLayer, "_backend", "reference")
