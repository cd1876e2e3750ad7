"""What every fused form is given and gives, whatever computes it.

E trials, T time, B batch, I input, H hidden, G rows of the parameters, M memory, D delays, S saved values per step.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

CELLS = ("mist", "narx", "clockwork", "rnn", "lstm", "gru")
"""In the order of the compiled library's own numbers."""

Inputs = Mapping[str, Tensor | None]
"""The tensors of a run by the names in INPUTS."""

PROBES = ("probe_h", "probe_c")
"""Zeros beside the h (and c) of every step, for their gradients: the full derivatives with respect to that state.

Nobody reads their values, so that one zero may be expanded to their shape.
"""

DIFFERENTIABLE = ("x", "weight_ih", "weight_hh", "bias", "bias_hn", "gain", "initial_h", "initial_c", *PROBES)
"""The inputs that have gradients."""

WANTED = {"x": 0, "initial_h": 2, "initial_c": 2, "probe_h": 3, "probe_c": 3}
"""Which of four flags says whether an input's gradient is wanted: x, the parameters (1), the initial state, the probes."""

INPUTS = (*DIFFERENTIABLE, "clock", "lengths", "reset", "keep_h", "keep_c", "dropout")
"""The tensors of a run, in order, each with a trial axis in front; see kernels/cpp/call.h for their shapes."""


class Settings(NamedTuple):
    """What a run is told beside its tensors."""

    delays: Sequence[int]
    """The delays of MIST and NARX, the periods of Clockwork."""
    zoneout: float
    """The probability in evaluation; 0 with masks or without zoneout."""
    reverse: bool
    """Whether each sequence is read from its end."""
    save: bool
    """Whether a backward pass may follow."""
    parts: int = 0
    """On a GPU, how many bfloat16 parts of an operand its matrix products read; 0 for products without parts."""


def saved_size(cell: str, rows: int, hidden: int, settings: Settings, layer_norm: bool) -> int:
    """Return S: how many values a step keeps for the backward pass, beside its state."""
    count = len(settings.delays)
    size = {"mist": hidden + count, "lstm": 5 * hidden, "gru": 4 * hidden}.get(cell, 0)
    if settings.zoneout and cell not in ("lstm", "gru"):
        size += hidden  # the new state, which cannot be told from the mixture
    if layer_norm:
        size += rows + norm_blocks(cell, count)  # normalised pre-activations and their scales
    return size


def norm_blocks(cell: str, count: int) -> int:
    """Return how many blocks of rows layer norm treats apart."""
    return {"mist": 3, "clockwork": count, "lstm": 4, "gru": 3}.get(cell, 1)


def saved_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the type of the saved values: what a kernel computes in, which is wider than half precision."""
    return torch.float32 if dtype.itemsize == 2 else dtype


def check(cell: str, inputs: Inputs, settings: Settings, device: str, dtypes: Sequence[torch.dtype]) -> None:
    """Raise unless all tensors fit together: compiled code would read and write beyond them."""
    x, initial = there(inputs, "x"), there(inputs, "initial_h")
    if x.dim() != 4 or initial.dim() != 4:
        raise ValueError(
            f"{cell}: expected x [E, T, B, I] and initial_h [E, M, B, H], got {x.dim()} and {initial.dim()} axes."
        )
    (trials, steps, batch, features), (memory, hidden) = x.shape, (initial.size(1), initial.size(3))
    count = len(settings.delays)
    rows = {"mist": 2 * hidden + count, "lstm": 4 * hidden, "gru": 3 * hidden}.get(cell, hidden)
    columns = count * hidden if cell == "narx" else hidden
    shapes: dict[str, tuple[int, ...]] = {
        "x": (trials, steps, batch, features),
        "weight_ih": (trials, rows, features),
        "weight_hh": (trials, rows, columns),
        **dict.fromkeys(("bias", "gain"), (trials, rows)),
        "bias_hn": (trials, hidden),
        **dict.fromkeys(("initial_h", "initial_c"), (trials, memory, batch, hidden)),
        **dict.fromkeys(("clock", "lengths"), (trials, batch)),
        "reset": (trials, steps, batch),
        **dict.fromkeys(("keep_h", "keep_c", *PROBES), (trials, steps, batch, hidden)),
        "dropout": (trials, batch, hidden),
    }
    integers, booleans = ("clock", "lengths"), ("reset", "keep_h", "keep_c")
    for name, shape in shapes.items():
        tensor = inputs[name]
        if tensor is None:
            continue
        dtype = torch.int64 if name in integers else torch.bool if name in booleans else x.dtype
        if tensor.shape != shape or tensor.dtype != dtype or tensor.device.type != device or tensor.device != x.device:
            raise ValueError(
                f"{cell}: expected {name} {list(shape)} in {dtype} on the {device.upper()} where x is, with the trial axis in "
                f"front, got {list(tensor.shape)} in {tensor.dtype} on {tensor.device}."
            )
    needed = {"lstm": "initial_c", "clockwork": "clock"}.get(cell)
    if x.dtype not in dtypes or (needed and inputs[needed] is None):
        known = " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
        raise ValueError(f"{cell}: expected {known}{f' and {needed}' if needed else ''}, got {x.dtype}.")
    if cell in ("mist", "narx") and not (count and min(settings.delays) >= 1 and max(settings.delays) <= memory):
        raise ValueError(
            f"{cell}: expected delays from 1 to {memory}, the states that there are, got {list(settings.delays)}."
        )
    if cell == "clockwork" and not (count and min(settings.delays) >= 1 and hidden % count == 0):
        raise ValueError(f"{cell}: expected periods >= 1 that divide {hidden} units, got {list(settings.delays)}.")


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
    """Raise unless all lengths are possible: compiled code would read and write beyond the tensors."""
    if lengths is not None and lengths.numel() and not 0 <= lengths.min() <= lengths.max() <= steps:
        raise ValueError(f"{cell}: expected lengths from 0 to {steps}, the number of steps, got {lengths.tolist()}.")


def there(inputs: Inputs, name: str) -> Tensor:
    """Return a tensor that is never left out."""
    tensor = inputs[name]
    assert tensor is not None, name
    return tensor


def is_put_off(tensor: Tensor) -> bool:
    """Whether a tensor means something else than its memory holds: torch negates, or fills with zeros, only when it must."""
    return tensor.is_neg() or tensor._is_zerotensor()
