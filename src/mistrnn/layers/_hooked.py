"""Weights that torch's older utilities compute before each forward call: pruning, weight norm and spectral norm by hooks.

Between two calls the attribute holds what the last call computed, whatever has changed since.
"""

import torch
from torch import Tensor, nn
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm


def renew_hooked(module: nn.Module) -> None:
    """Compute such weights from their parameters as these are now."""
    for hook in module._forward_pre_hooks.values():
        if isinstance(hook, SpectralNorm):  # as in evaluation: a look changes no estimate of it
            setattr(module, hook.name, hook.compute_weight(module, do_power_iteration=False))
        elif isinstance(hook, BasePruningMethod | WeightNorm):
            hook(module, ())


def hooked_names(module: nn.Module) -> list[str]:
    """Return the names of such weights, in the module and all below it."""
    return [
        f"{prefix}.{hook.name if isinstance(hook, SpectralNorm | WeightNorm) else hook._tensor_name}".lstrip(".")
        for prefix, own in module.named_modules()
        for hook in own._forward_pre_hooks.values()
        if isinstance(hook, SpectralNorm | WeightNorm | BasePruningMethod)
    ]


@torch.no_grad()
def put_hooked(module: nn.Module, name: str, value: Tensor) -> bool:
    """Let such a weight become this value, which a mask or a norm may then change; return whether it is one."""
    if hasattr(module, f"{name}_orig"):
        getattr(module, f"{name}_orig").copy_(value)
    elif hasattr(module, f"{name}_g") and hasattr(module, f"{name}_v"):
        hook = next(
            hook for hook in module._forward_pre_hooks.values() if isinstance(hook, WeightNorm) and hook.name == name
        )
        getattr(module, f"{name}_g").copy_(torch.norm_except_dim(value, 2, hook.dim))
        getattr(module, f"{name}_v").copy_(value)
    else:
        return False
    renew_hooked(module)
    return True
