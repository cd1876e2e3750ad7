"""Argument checks of layers. Errors name the class, the argument, the expected value with its reason, and the value given."""

import numbers
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from mistrnn._torch_compat import FakeTensor, is_transformed


class ShapeError(ValueError, RuntimeError):
    """A tensor of the wrong shape; torch.nn raises one or the other."""


class DtypeError(TypeError, ValueError):
    """A tensor of the wrong dtype; torch.nn raises ValueError."""


def positive_int(name: str, argument: str, value: Any) -> int:
    """Return value as an int >= 1."""
    if not _is_int(value):
        raise TypeError(f"{name}: expected {argument} to be an int, got {value!r}.")
    if value < 1:
        raise ValueError(f"{name}: expected {argument} >= 1, got {value}.")
    return operator.index(value)


def projection_size(name: str, value: Any, hidden_size: Any) -> int:
    """Return the size of a projection: 0 for none, or less than the hidden size."""
    if not _is_int(value) or value < 0:
        raise ValueError(f"{name}: expected proj_size to be an int >= 0, got {value!r}.")
    if _is_int(hidden_size) and value >= hidden_size > 0:
        raise ValueError(f"{name}: expected proj_size < hidden_size={hidden_size}, got {value}.")
    return operator.index(value)


def probability(name: str, argument: str, value: Any, *, below_one: bool = True) -> float:
    """Return value as a float in [0, 1), or in [0, 1]."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name}: expected {argument} to be a probability, got {value!r}.")
    number = float(value)
    if not (0 <= number < 1 or (number == 1 and not below_one)):
        limits = "[0, 1)" if below_one else "[0, 1]"
        raise ValueError(f"{name}: expected {argument} in {limits}, because it is a probability, got {value}.")
    return number


def boolean(name: str, argument: str, value: Any) -> bool:
    """Return value as a bool; NumPy has its own."""
    if not isinstance(value, bool) and not (str(getattr(value, "dtype", "")) == "bool" and value.ndim == 0):
        raise TypeError(f"{name}: expected {argument} to be a bool, got {value!r}.")
    return bool(value)


def distinct_ints(
    name: str, argument: str, value: int | Sequence[int], expand: Callable[[int], Sequence[int]]
) -> tuple[int, ...]:
    """Return delays or periods as a tuple: an int n means expand(n), a list of distinct positive ints itself."""
    if not isinstance(value, Sequence | Tensor) and not _is_int(value) and hasattr(value, "tolist"):
        value = value.tolist()  # a NumPy array
    if _is_int(value):
        count = positive_int(name, argument, value)
        values = list(expand(min(count, MAX_COUNT)))
        if count > MAX_COUNT:
            raise ValueError(
                f"{name}: expected {argument} <= {MAX_COUNT} as a count, because {count} of them would grow beyond "
                f"{values[-1]}; give a list to choose them, got {count}."
            )
        return tuple(values)
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise TypeError(f"{name}: expected {argument} to be an int or a list of ints, got {value!r}.")
    values = list(value)
    if not values:
        raise ValueError(f"{name}: expected at least one of {argument}, got an empty list.")
    for item in values:
        if not _is_int(item):
            raise TypeError(f"{name}: expected {argument} to be ints, got {item!r} in {values}.")
        if item < 1:
            raise ValueError(f"{name}: expected {argument} >= 1, because they count steps, got {item} in {values}.")
    if len(set(values)) < len(values):
        repeated = next(item for item in values if values.count(item) > 1)
        raise ValueError(f"{name}: expected distinct {argument}, got {repeated} more than once in {values}.")
    return tuple(operator.index(item) for item in values)


def powers_of_two(count: int) -> list[int]:
    """Return 1, 2, 4, ... 2^(count - 1), the paper's delays and periods."""
    return [2**i for i in range(count)]


MAX_COUNT = 20
"""The largest count of delays or periods: 20 exponential delays span half a million steps."""


def check_input(name: str, input: Tensor, input_size: int, batch_first: bool, like: Tensor) -> None:
    """Raise unless input is [T, B, I] (or [B, T, I], or unbatched [T, I]) in the dtype and on the device of `like`."""
    if not isinstance(input, Tensor):
        raise TypeError(f"{name}: expected input to be a Tensor or a PackedSequence, got {type(input).__name__}.")
    if input.is_nested:
        raise TypeError(f"{name}: expected a padded input with its lengths, or a PackedSequence, got a nested tensor.")
    if input.dim() not in (2, 3) or input.size(-1) != input_size:
        axes = "B, T" if batch_first else "T, B"
        if input.dim() == 2:
            expected = f"unbatched input [T, {input_size}], because input_size={input_size}"
        else:
            expected = f"input [{axes}, {input_size}], because input_size={input_size} and batch_first={batch_first}"
        raise ShapeError(f"{name}: expected {expected}, got {list(input.shape)}.")
    _check_device(name, "input", input, like)
    if input.dtype != like.dtype and not _is_autocast(input):
        raise DtypeError(f"{name}: expected input of {like.dtype}, the dtype of the parameters, got {input.dtype}.")


def check_packed(name: str, data: Tensor, input_size: int, like: Tensor) -> None:
    """Raise unless the rows of a PackedSequence are [I] each, in the dtype and on the device of `like`."""
    if data.dim() != 2 or data.size(-1) != input_size:
        raise ShapeError(
            f"{name}: expected packed sequences [T, {input_size}] each, because input_size={input_size}, "
            f"got [T{''.join(f', {size}' for size in data.shape[1:])}]."
        )
    check_input(name, data, input_size, False, like)


def check_state(name: str, part: str, value: Any, shape: Sequence[int], why: str, like: Tensor) -> None:
    """Raise unless one part of a state has its shape, dtype and device."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{name}: expected {part} to be a Tensor, got {type(value).__name__}.")
    if list(value.shape) != list(shape):
        raise ShapeError(f"{name}: expected {part} {list(shape)}, because {why}, got {list(value.shape)}.")
    _check_device(name, part, value, like)
    if value.dtype != like.dtype and not (like.is_floating_point() and _is_autocast(value)):
        raise DtypeError(f"{name}: expected {part} of {like.dtype}, got {value.dtype}.")


def check_lengths(name: str, lengths: Tensor | Sequence[int], batch: int, steps: int, device: torch.device) -> Tensor:
    """Return lengths as int64 [B] on the device, each between 0 and T."""
    if not isinstance(lengths, Tensor):
        try:
            lengths = torch.tensor(lengths, dtype=None if len(lengths) else torch.int64, device=device)
        except (TypeError, ValueError, RuntimeError) as error:
            raise TypeError(f"{name}: expected lengths to be a Tensor or a list of ints, got {lengths!r}.") from error
    if lengths.is_floating_point() or lengths.is_complex() or lengths.dtype == torch.bool:
        raise TypeError(f"{name}: expected lengths to be ints, because they count steps, got {_show(lengths)}.")
    if lengths.dim() != 1 or lengths.size(0) != batch:
        raise ValueError(
            f"{name}: expected lengths [{batch}], because the input has {batch} sequences, got {list(lengths.shape)}."
        )
    if _readable(lengths):
        for row, length in enumerate(lengths.tolist()):
            if not 0 <= length <= steps:
                raise ValueError(
                    f"{name}: expected lengths between 0 and {steps}, because the input has {steps} steps, "
                    f"got {length} for sequence {row}."
                )
    return lengths.to(device=device, dtype=torch.int64)


def check_reset(name: str, reset: Tensor, shape: Sequence[int], axes: str, like: Tensor) -> None:
    """Raise unless reset is a bool tensor of the given shape on the device of `like`."""
    if not isinstance(reset, Tensor) or reset.dtype != torch.bool:
        got = reset.dtype if isinstance(reset, Tensor) else type(reset).__name__
        raise TypeError(f"{name}: expected reset to be a bool Tensor {axes}, true where a sequence begins, got {got}.")
    if list(reset.shape) != list(shape):
        raise ValueError(f"{name}: expected reset {axes} = {list(shape)} as the input, got {list(reset.shape)}.")
    _check_device(name, "reset", reset, like)


def check_parameters(name: str, parameters: Mapping[str, Tensor], like: Tensor) -> None:
    """Raise unless all parameters of one layer and direction have the dtype and the device of `like`."""
    for parameter, value in parameters.items():
        if value.dtype != like.dtype:
            raise TypeError(
                f"{name}: expected all parameters in one dtype, got weight_hh in {like.dtype} and {parameter} in {value.dtype}."
            )
        if value.device != like.device:
            raise ValueError(
                f"{name}: expected all parameters on one device, got weight_hh on {like.device} and {parameter} on "
                f"{value.device}."
            )


def _is_autocast(value: Tensor) -> bool:
    """Whether autocast may have produced this tensor: low-precision activations with float32 parameters."""
    return value.is_floating_point() and torch.is_autocast_enabled(value.device.type)


def _check_device(name: str, argument: str, value: Tensor, like: Tensor) -> None:
    if value.device != like.device:
        raise ValueError(
            f"{name}: expected {argument} on {like.device}, because the parameters are there, got {value.device}."
        )


def _is_int(value: Any) -> bool:
    """Whether value counts as an int (NumPy's do, bools and tensors do not)."""
    if isinstance(value, bool | Tensor):
        return False
    try:
        operator.index(value)
    except TypeError:
        return False
    return True


def _readable(values: Tensor) -> bool:
    """Whether the values can be read: not under tracing, vmap or CUDA graph capture."""
    return not (
        torch.compiler.is_compiling()
        or values.is_meta
        or isinstance(values, FakeTensor)
        or is_transformed(values)
        or (values.is_cuda and torch.cuda.is_current_stream_capturing())
    )


def _show(values: Tensor) -> str:
    return str(values.tolist()) if _readable(values) and values.numel() <= 8 else f"a tensor of {values.dtype}"
