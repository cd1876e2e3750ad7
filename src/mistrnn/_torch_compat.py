"""Private names of torch that the package uses, each with the reason for it.

No other module uses a private name of torch (`tests/test_torch_compat.py`). All names were seen in torch 2.11, 2.12 and 2.13.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd import forward_ad
from torch.nn.utils.prune import BasePruningMethod
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

__all__ = [
    "FakeTensor",
    "RNNBase",
    "constant_result",
    "copy_hooks",
    "dispatch_mode_count",
    "forward_hooks",
    "forward_pre_hooks",
    "has_storage",
    "in_forward_mode",
    "in_function_transform",
    "in_jit_trace",
    "is_transformed",
    "is_zero_tensor",
    "pruned_parameter",
    "raw_stream",
    "tree_flatten",
    "tree_map",
    "tree_unflatten",
]

# FakeTensor: the values of such a tensor cannot be read; `torch.compiler` has no public check for one tensor.
# tree_flatten, tree_map, tree_unflatten: nested results of any module; torch has no public module for trees.

Function = TypeVar("Function", bound=Callable[..., Any])

has_storage: Callable[[Tensor], bool] = torch._C._has_storage
"""Whether a tensor has memory of its own; batched tensors of vmap have none. `untyped_storage()` raises for them."""

dispatch_mode_count: Callable[[], int] = torch._C._len_torch_dispatch_stack
"""The number of active `TorchDispatchMode`s, which must see every operator."""

in_function_transform: Callable[[], bool] = torch._C._are_functorch_transforms_active
"""Whether a transform of torch.func (vmap, grad, …) is active."""

is_transformed: Callable[[Tensor], bool] = torch._C._functorch.is_functorch_wrapped_tensor
"""Whether a tensor belongs to a transform of torch.func, so that its values cannot be read."""


def in_forward_mode() -> bool:
    """Return whether a level of forward-mode differentiation is open; the public interface only opens and closes levels."""
    return forward_ad._current_level >= 0


def in_jit_trace() -> bool:
    """Return whether torch.jit.trace is recording; the public `torch.jit.is_tracing` has no types."""
    return bool(torch._C._is_tracing())


def is_zero_tensor(tensor: Tensor) -> bool:
    """Return whether a tensor is a lazy zero, which has no memory; torch makes them as tangents."""
    return tensor._is_zerotensor()


def raw_stream(device_index: int) -> int:
    """Return the handle of the current CUDA stream; the public `current_stream` creates an object, which takes longer."""
    return int(torch._C._cuda_getCurrentRawStream(device_index))


def constant_result(function: Function) -> Function:
    """Let torch.compile treat a function's result as a constant.

    `torch.compiler.assume_constant_result` does the same, but its import loads all of torch's compiler.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


def forward_hooks(module: nn.Module) -> Mapping[int, Callable[..., Any]]:
    """Return the hooks that run after a module's forward; the public interface only adds and removes them."""
    return module._forward_hooks


def forward_pre_hooks(module: nn.Module) -> Mapping[int, Callable[..., Any]]:
    """Return the hooks that run before a module's forward."""
    return module._forward_pre_hooks


def copy_hooks(source: nn.Module, target: nn.Module) -> None:
    """Let a module have the forward, backward and pre-hooks of another one, with their options."""
    for name in (
        "_forward_hooks",
        "_forward_hooks_with_kwargs",
        "_forward_hooks_always_called",
        "_forward_pre_hooks",
        "_forward_pre_hooks_with_kwargs",
        "_backward_hooks",
        "_backward_pre_hooks",
    ):
        getattr(target, name).update(getattr(source, name))
    target._is_full_backward_hook = source._is_full_backward_hook


def pruned_parameter(hook: BasePruningMethod) -> str:
    """Return the name of the parameter that a pruning hook masks; the hook has no public attribute for it."""
    return hook._tensor_name


class RNNBase(nn.RNNBase):
    """A base for instances of torch.nn.RNNBase without its flat list of weights for cuDNN.

    torch.nn.RNNBase overrides these methods of nn.Module to keep that list up to date.
    """

    _apply = nn.Module._apply
    _replicate_for_data_parallel = nn.Module._replicate_for_data_parallel
    __setattr__ = nn.Module.__setattr__  # type: ignore[assignment]
    __getstate__ = object.__getstate__
    __setstate__ = nn.Module.__setstate__

    def weight_names(self) -> list[list[str]]:
        """Return the names of the parameters that torch's layer has, for each layer and direction."""
        raise NotImplementedError

    @property
    def _all_weights(self) -> list[list[str]]:  # type: ignore[override]
        return self.weight_names()

    @property
    def _flat_weights_names(self) -> list[str]:  # type: ignore[override]
        return [name for names in self.weight_names() for name in names]

    @property
    def _flat_weights(self) -> list[Tensor | None]:  # type: ignore[override]
        return [getattr(self, name) for name in self._flat_weights_names]
