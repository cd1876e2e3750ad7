"""Weights that forward pre-hooks compute: torch's pruning, and its older weight norm and spectral norm.

Between two calls the attribute holds the weight of the last call, which may be stale.
"""

import torch
from torch import Tensor, nn
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from mistrnn._torch_compat import forward_pre_hooks, pruned_parameter


def recompute_hooked_weights(module: nn.Module) -> None:
    """Recompute these weights from the current parameters."""
    for hook in forward_pre_hooks(module).values():
        if isinstance(hook, SpectralNorm):  # as in evaluation: reading must not update the power iteration
            setattr(module, hook.name, hook.compute_weight(module, do_power_iteration=False))
        elif isinstance(hook, BasePruningMethod | WeightNorm):
            hook(module, ())


def hooked_weight_names(module: nn.Module) -> list[str]:
    """Return the names of these weights in the module and its descendants."""
    return [
        f"{prefix}.{hook.name if isinstance(hook, SpectralNorm | WeightNorm) else pruned_parameter(hook)}".lstrip(".")
        for prefix, own in module.named_modules()
        for hook in forward_pre_hooks(own).values()
        if isinstance(hook, SpectralNorm | WeightNorm | BasePruningMethod)
    ]


@torch.no_grad()
def assign_hooked_weight(module: nn.Module, name: str, value: Tensor) -> bool:
    """Set such a weight to a value, to which its mask or norm applies; return whether a hook computes this weight."""
    if hasattr(module, f"{name}_orig"):
        getattr(module, f"{name}_orig").copy_(value)
    elif hasattr(module, f"{name}_g") and hasattr(module, f"{name}_v"):
        hook = next(
            hook for hook in forward_pre_hooks(module).values() if isinstance(hook, WeightNorm) and hook.name == name
        )
        getattr(module, f"{name}_g").copy_(torch.norm_except_dim(value, 2, hook.dim))
        getattr(module, f"{name}_v").copy_(value)
    else:
        return False
    recompute_hooked_weights(module)
    return True
