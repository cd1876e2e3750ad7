"""The fused CPU backend of every cell: tensors in, tensors out.

E trials, T time, B batch, I input, H hidden, G rows of the parameters, M memory, D delays, S saved values per step.
"""

from collections.abc import Callable, Sequence
from ctypes import addressof, c_int64
from typing import Any

import torch
from torch import Tensor

from mistrnn.kernels.cell import Cell
from mistrnn.kernels.cell import cell as cell_of
from mistrnn.kernels.contract import (
    DIFFERENTIABLE,
    INPUTS,
    PROBES,
    ForwardResult,
    Inputs,
    SavedLayout,
    Settings,
    check,
    check_lengths,
    is_wanted,
    saved_dtype,
    there,
)
from mistrnn.kernels.cpu import library
from mistrnn.kernels.cpu.library import Call, Library

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
"""Supported dtypes of the tensors. Half precision is computed in float32 and rounded at the end."""

WORTH_A_THREAD = 2_000_000
"""Multiplications that take longer than starting a thread."""


def saved_size(cell: Cell, hidden: int, inputs: Inputs, settings: Settings) -> int:
    """Return S."""
    layer_norm = inputs["gain"] is not None
    return cell.saved_size(hidden, len(settings.lags), zoneout=settings.zoneout > 0, layer_norm=layer_norm)


def unavailable(cell: str, dtype: torch.dtype) -> str | None:
    """Return why the fused backend does not support a cell, or None if it does."""
    if library.loaded is not None and cell not in library.loaded.cells:
        return f"there is none for {cell}"
    if dtype not in DTYPES:
        return f"it computes in float32, float64 and half precision, and the parameters are {str(dtype).removeprefix('torch.')}"
    return library.problem


def forward(cell: str, inputs: Inputs, settings: Settings) -> ForwardResult:
    """Run forward."""
    call, alive = _call(cell, inputs, settings)
    like = there(inputs, "initial_h")
    dtype, real = like.dtype, saved_dtype(like.dtype)
    has_c = len(cell_of(cell).state) > 1
    output = like.new_empty(call.E, call.T, call.B, call.H, dtype=real)
    final_h = like.new_empty(call.E, call.M, call.B, call.H, dtype=real)
    final_c = like.new_empty(call.E, call.M, call.B, call.H, dtype=real) if has_c else None
    saved = like.new_empty(call.E, call.T, call.B, call.S, dtype=real) if settings.save else None
    for name, tensor in {"output": output, "final_h": final_h, "final_c": final_c, "saved": saved}.items():
        setattr(call, name, None if tensor is None else tensor.data_ptr() or None)
    _code().run(call, backward=False)
    del alive
    return ForwardResult(output.to(dtype), final_h.to(dtype), None if final_c is None else final_c.to(dtype), saved)


def backward(
    cell: str,
    gradients: Inputs,
    inputs: Inputs,
    output: Tensor,
    saved: Tensor,
    layout: SavedLayout,
    settings: Settings,
    wanted: Sequence[bool],
) -> tuple[Tensor | None, ...]:
    """Return the gradients of DIFFERENTIABLE, from those of output, final_h and final_c; the layout is always the same.

    `wanted` says of x, the parameters, the initial state and the probes whether theirs are wanted; the others are None.
    """
    call, alive = _call(cell, inputs, settings)
    if not settings.save and call.S > 0:  # the forward run did not know of a backward run
        again = forward(cell, inputs, settings._replace(save=True))
        assert again.saved is not None
        saved = again.saved
    dtype = there(inputs, "x").dtype
    real = saved_dtype(dtype)
    states, final = (call.E, call.T, call.B, call.H), (call.E, call.M, call.B, call.H)
    for name, tensor, shape, own in (
        ("output", output, states, dtype),
        ("saved", saved, (call.E, call.T, call.B, call.S), real),
        ("d_output", gradients["d_output"], states, dtype),
        ("d_final_h", gradients["d_final_h"], final, dtype),
        ("d_final_c", gradients["d_final_c"], final, dtype),
    ):
        if tensor is not None and tensor.numel() and (tensor.shape != shape or tensor.dtype != own):
            raise ValueError(
                f"{cell}: expected {name} {list(shape)} in {own}, got {list(tensor.shape)} in {tensor.dtype}."
            )
    output, saved = output.to(real).contiguous(), saved.contiguous()
    call.output, call.saved = output.data_ptr() or None, saved.data_ptr() or None
    d_output = gradients["d_output"]
    if d_output is not None and d_output.numel():
        d_output = d_output.to(real)
        call.d_output = d_output.data_ptr()
        call.d_output_trial, call.d_output_time, call.d_output_sequence, call.d_output_unit = d_output.stride()
    for name in ("d_final_h", "d_final_c"):
        alive.append(_point(call, name, gradients[name], real))
    results: list[Tensor | None] = []
    for name in DIFFERENTIABLE:
        tensor = inputs[name]
        if tensor is None or not is_wanted(name, wanted):
            results.append(None)
            continue
        result = tensor.new_empty(tensor.shape, dtype=real)
        setattr(call, f"d_{name}", result.data_ptr() or None)
        results.append(result)
    _code().run(call, backward=True)
    del alive
    return tuple(None if result is None else result.to(dtype) for result in results)


def _call(cell: str, inputs: Inputs, settings: Settings) -> tuple[Call, list[Any]]:
    """Return the call with all inputs, and the tensors that must stay alive until it returns."""
    x, weight_ih, weight_hh, initial = (there(inputs, name) for name in ("x", "weight_ih", "weight_hh", "initial_h"))
    check(cell, inputs, settings, "cpu", DTYPES)
    check_lengths(cell, inputs["lengths"], x.size(1))
    call = Call(cell=_code().cells[cell], is_double=x.dtype == torch.float64)
    real = saved_dtype(x.dtype)
    call.E, call.T, call.B, call.I = x.shape
    call.M, call.H = initial.size(1), initial.size(3)
    call.S = saved_size(cell_of(cell), call.H, inputs, settings)
    work = call.E * call.T * call.B * weight_ih.size(1) * (call.I + weight_hh.size(2))
    call.threads = max(1, min(torch.get_num_threads(), work // WORTH_A_THREAD))
    delays = (c_int64 * len(settings.lags))(*settings.lags)
    call.D, call.delays = len(settings.lags), addressof(delays)
    call.layer_norm, call.reverse, call.save = inputs["gain"] is not None, settings.reverse, settings.save
    call.zoneout = settings.zoneout
    alive: list[Any] = [delays]
    x = x.to(real)
    if x.numel() and x.stride(3) != 1 and call.I > 1:
        x = x.contiguous()
    call.x, alive = x.data_ptr() or None, [*alive, x]
    call.x_trial, call.x_time, call.x_sequence, _ = x.stride()
    for name in INPUTS[1:]:
        if name not in PROBES:
            alive.append(_point(call, name, inputs[name], real))
    return call, alive


def _point(call: Call, name: str, tensor: Tensor | None, real: torch.dtype) -> Tensor | None:
    """Enter a tensor into the call, contiguous but for its trial axis; return what must stay alive."""
    if tensor is None or not tensor.numel():
        return None
    shared = tensor.stride(0) == 0 and tensor.size(0) > 1  # one tensor for all trials
    tensor = tensor[0] if shared else tensor
    tensor = tensor.to(real).contiguous() if tensor.is_floating_point() else tensor.contiguous()
    setattr(call, name, tensor.data_ptr())
    if hasattr(Call, f"{name}_trial"):
        setattr(call, f"{name}_trial", 0 if shared else tensor.stride(0))
    return tensor


def _code() -> Library:
    assert library.loaded is not None, library.problem
    return library.loaded


def new_stream(
    cell: str, inputs: Inputs, settings: Settings
) -> tuple[int, Callable[[int, int, int, int], None], Callable[[int], None]]:
    """Return a stream's handle and its functions: step(handle, x, output, slot), all addresses but the slot; free(handle).

    All tensors must be contiguous and outlive the stream, which keeps its state in them; initial_h is the first half of its
    ring buffer [2M, B, H].
    """
    weight_ih, ring = there(inputs, "weight_ih"), there(inputs, "initial_h")
    x = ring.new_empty(1, 1, ring.size(1), weight_ih.size(1))
    given: dict[str, Tensor | None] = dict.fromkeys(INPUTS)
    given |= {name: None if tensor is None else tensor.unsqueeze(0) for name, tensor in inputs.items()}
    call, _ = _call(cell, {**given, "x": x}, settings)
    for name, tensor in inputs.items():
        assert tensor is None or not tensor.numel() or getattr(call, name) == tensor.data_ptr(), f"{name} was copied"
    call.final_c = call.initial_c
    code = _code()
    return code.new_stream(call), code.stream_step, code.stream_free
