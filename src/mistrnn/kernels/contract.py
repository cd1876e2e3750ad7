"""Arguments and results of a fused run, the same for every backend.

E trials, T time, B batch, I input, H hidden, G rows of the parameters, M memory, D delays, S saved values per step.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from mistrnn._torch_compat import is_zero_tensor
from mistrnn.kernels.cell import Cell, Lags
from mistrnn.kernels.cell import cell as cell_of

Inputs = Mapping[str, Tensor | None]
"""The tensors of a run by the names in INPUTS."""

PROBES = ("probe_h", "probe_c")
"""Zeros beside the h (and c) of every step, for their gradients: the full derivatives with respect to that state.

Their values are not read, so that one zero may be expanded to their shape.
"""

PARAMETERS = ("weight_ih", "weight_hh", "weight_ch", "bias", "bias_hn", "gain")
"""The parameters that a cell can have; see `Cell` for their shapes."""

DIFFERENTIABLE = ("x", *PARAMETERS, "initial_h", "initial_c", *PROBES)
"""The inputs that have gradients."""

WANTED = {"x": 0, "initial_h": 2, "initial_c": 2, "probe_h": 3, "probe_c": 3}
"""The flag for each input's gradient, of four: x, the parameters (1), the initial state, the probes."""

INPUTS = (*DIFFERENTIABLE, "clock", "lengths", "reset", "keep_h", "keep_c", "dropout")
"""The tensors of a run, in order, each with a trial axis in front; see kernels/cpu/call.h for their shapes."""


class Settings(NamedTuple):
    """The arguments of a run that are not tensors."""

    lags: Sequence[int]
    """The D delays or periods of the cell; empty if it has none."""
    zoneout: float
    """The probability in evaluation; 0 with masks or without zoneout."""
    reverse: bool
    """Whether each sequence is read from its end."""
    save: bool
    """Whether a backward pass may follow."""
    splits: int = 0
    """The bfloat16 terms into which a GPU splits an operand of its matrix products; 0 for products in the operand's dtype."""


class SavedLayout(NamedTuple):
    """How saved values lie in memory; the backward run needs the same kernels as the forward run. Only GPUs have a choice."""

    stepwise: bool = False
    """Whether the step-wise kernels wrote them."""
    cluster: int = 1
    """The thread blocks of a cluster of the persistent kernel that wrote them."""


class ForwardResult(NamedTuple):
    """The results of a forward run of a backend."""

    output: Tensor
    """[E, T, B, H]"""
    final_h: Tensor
    """[E, M, B, H]"""
    final_c: Tensor | None
    """[E, M, B, H], of cells with a second state component."""
    saved: Tensor | None
    """Values for the backward run, in a shape of the backend's own, or None if none were asked for."""
    layout: SavedLayout = SavedLayout()


def saved_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which a kernel computes and saves values: float32 for half precision."""
    return torch.float32 if dtype.itemsize == 2 else dtype


def check(name: str, inputs: Inputs, settings: Settings, device: str, dtypes: Sequence[torch.dtype]) -> None:
    """Raise unless all tensors fit together: compiled code would access memory out of bounds."""
    cell, x, initial = cell_of(name), there(inputs, "x"), there(inputs, "initial_h")
    if x.dim() != 4 or initial.dim() != 4:
        raise ValueError(
            f"{name}: expected x [E, T, B, I] and initial_h [E, M, B, H], got {x.dim()} and {initial.dim()} axes."
        )
    (trials, steps, batch, features), (memory, hidden) = x.shape, (initial.size(1), initial.size(3))
    count = len(settings.lags)
    rows = cell.rows(hidden, count)
    shapes: dict[str, tuple[int, ...]] = {
        "x": (trials, steps, batch, features),
        "weight_ih": (trials, rows, features),
        "weight_hh": (trials, rows, cell.recurrent_columns(hidden, count)),
        "weight_ch": (trials, len(cell.diagonal_weights), hidden),
        **dict.fromkeys(("bias", "gain"), (trials, rows)),
        "bias_hn": (trials, hidden),
        **dict.fromkeys(("initial_h", "initial_c"), (trials, memory, batch, hidden)),
        **dict.fromkeys(("clock", "lengths"), (trials, batch)),
        "reset": (trials, steps, batch),
        **dict.fromkeys(("keep_h", "keep_c", *PROBES), (trials, steps, batch, hidden)),
        "dropout": (trials, batch, hidden),
    }
    integers, booleans = ("clock", "lengths"), ("reset", "keep_h", "keep_c")
    for key, shape in shapes.items():
        tensor = inputs[key]
        if tensor is None:
            continue
        dtype = torch.int64 if key in integers else torch.bool if key in booleans else x.dtype
        if tensor.shape != shape or tensor.dtype != dtype or tensor.device.type != device or tensor.device != x.device:
            raise ValueError(
                f"{name}: expected {key} {list(shape)} in {dtype} on the {device.upper()} where x is, with the trial axis in "
                f"front, got {list(tensor.shape)} in {tensor.dtype} on {tensor.device}."
            )
    if x.dtype not in dtypes:
        known = " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
        raise ValueError(f"{name}: expected tensors in {known}, got {x.dtype}.")
    missing = [key for key in cell.required_inputs if inputs[key] is None]
    if missing:
        raise ValueError(f"{name}: expected {missing[0]}, because a step of this cell reads it, got None.")
    _check_lags(cell, settings.lags, hidden, memory)


def _check_lags(cell: Cell, lags: Sequence[int], hidden: int, memory: int) -> None:
    positive = bool(lags) and min(lags) >= 1
    if cell.lags is Lags.DELAYS and not (positive and max(lags) <= memory):
        raise ValueError(
            f"{cell.name}: expected delays from 1 to {memory}, because initial_h has {memory} states, got {list(lags)}."
        )
    if cell.lags is Lags.PERIODS and not (positive and hidden % len(lags) == 0):
        raise ValueError(
            f"{cell.name}: expected periods >= 1 whose number divides {hidden} units, because each has a group of its own, "
            f"got {list(lags)}."
        )


def wanted_flags(needed: Sequence[bool]) -> list[bool]:
    """Return the four flags, from which inputs of DIFFERENTIABLE need a gradient."""
    flags = [False] * 4
    for name, need in zip(DIFFERENTIABLE, needed, strict=True):
        flags[WANTED.get(name, 1)] |= need
    return flags


def is_wanted(name: str, wanted: Sequence[bool]) -> bool:
    """Whether the gradient of this input is wanted."""
    return wanted[WANTED.get(name, 1)]


def check_lengths(cell: str, lengths: Tensor | None, steps: int) -> None:
    """Raise unless all lengths are possible: compiled code would access memory out of bounds."""
    if lengths is not None and lengths.numel() and not 0 <= lengths.min() <= lengths.max() <= steps:
        raise ValueError(f"{cell}: expected lengths from 0 to {steps}, the number of steps, got {lengths.tolist()}.")


def there(inputs: Inputs, name: str) -> Tensor:
    """Return a required tensor."""
    tensor = inputs[name]
    assert tensor is not None, name
    return tensor


def is_lazy(tensor: Tensor) -> bool:
    """Whether torch has put off a negation or a fill with zeros, so that the tensor's memory holds other values."""
    return tensor.is_neg() or is_zero_tensor(tensor)
