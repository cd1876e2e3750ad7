"""The one tolerance rule: an error against float64 may be at most twice that of plain PyTorch in the same dtype.

A floor of a few roundings is added, because plain PyTorch may be exact by luck. The rule holds for outputs, states and
all gradients alike, and no setting changes it.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

FLOOR_IN_ROUNDINGS = 4


def relative_error(value: Tensor, exact: Tensor) -> float:
    """Return ‖value - exact‖ / ‖exact‖ in float64; absolute where exact is zero."""
    exact = exact.double()
    scale = exact.norm().item()
    return (value.double() - exact).norm().item() / (scale if scale > 0 else 1.0)


def violations(
    candidate: Mapping[str, Tensor], plain: Mapping[str, Tensor], exact: Mapping[str, Tensor]
) -> dict[str, tuple[float, float]]:
    """Return {name: (error, allowed)} of everything in the candidate that breaks the rule; NaN always does."""
    assert candidate.keys() == plain.keys() == exact.keys()
    broken = {}
    for name, value in candidate.items():
        assert value.dtype == plain[name].dtype, name
        floor = FLOOR_IN_ROUNDINGS * torch.finfo(value.dtype).eps
        error, allowed = relative_error(value, exact[name]), 2 * relative_error(plain[name], exact[name]) + floor
        if not error <= allowed:
            broken[name] = (error, allowed)
    return broken
