"""The fused CPU forms of all cells: tensors in, tensors out.

E trials, T time, B batch, I input, H hidden, G rows of the parameters, M memory, D delays, S saved values per step.
"""

from collections.abc import Callable, Sequence
from ctypes import addressof, c_int64
from typing import Any

import torch
from torch import Tensor

from mistrnn.kernels import _library
from mistrnn.kernels._library import Call, Library
from mistrnn.kernels.contract import (
    CELLS,
    DIFFERENTIABLE,
    INPUTS,
    PROBES,
    Inputs,
    Settings,
    check,
    check_lengths,
    is_wanted,
    saved_dtype,
    saved_size,
    there,
)

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
"""Of the tensors. Half precision is computed in float32, and rounded in the end."""

WORTH_A_THREAD = 2_000_000
"""Multiplications that take longer than starting a thread."""


def unavailable(cell: str, dtype: torch.dtype) -> str | None:
    """Return why the fused form cannot serve, or None if it can."""
    if cell not in CELLS:
        return f"there is none for {cell}"
    if dtype not in DTYPES:
        return f"it computes in float32, float64 and half precision, and the parameters are {str(dtype).removeprefix('torch.')}"
    return _library.problem


def forward(cell: str, inputs: Inputs, settings: Settings) -> tuple[Tensor | None, ...]:
    """Return output [E, T, B, H], the final h and c [E, M, B, H] (c only of LSTM), and what is saved, if anything is."""
    call, alive = _call(cell, inputs, settings)
    like = there(inputs, "initial_h")
    dtype, real = like.dtype, saved_dtype(like.dtype)
    output = like.new_empty(call.E, call.T, call.B, call.H, dtype=real)
    final_h = like.new_empty(call.E, call.M, call.B, call.H, dtype=real)
    final_c = like.new_empty(call.E, call.M, call.B, call.H, dtype=real) if cell == "lstm" else None
    saved = like.new_empty(call.E, call.T, call.B, call.S, dtype=real) if settings.save else None
    for name, tensor in {"output": output, "final_h": final_h, "final_c": final_c, "saved": saved}.items():
        setattr(call, name, None if tensor is None else tensor.data_ptr() or None)
    _code().run(call, backward=False)
    del alive
    return output.to(dtype), final_h.to(dtype), None if final_c is None else final_c.to(dtype), saved


def backward(
    cell: str,
    gradients: Inputs,
    inputs: Inputs,
    output: Tensor,
    saved: Tensor,
    settings: Settings,
    wanted: Sequence[bool],
) -> tuple[Tensor | None, ...]:
    """Return the gradients of DIFFERENTIABLE, from those of output, final_h and final_c.

    `wanted` says of x, the parameters, the initial state and the probes whether theirs are wanted; the others are None.
    """
    call, alive = _call(cell, inputs, settings)
    if saved.numel() == 0 and call.S > 0:  # the run forwards did not know that it would be asked
        *_, again = forward(cell, inputs, settings._replace(save=True))
        assert again is not None
        saved = again
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
    """Return the call with all inputs, and the tensors that must live until it is made."""
    x, weight_ih, weight_hh, initial = (there(inputs, name) for name in ("x", "weight_ih", "weight_hh", "initial_h"))
    check(cell, inputs, settings, "cpu", DTYPES)
    check_lengths(cell, inputs["lengths"], x.size(1))
    call = Call(cell=CELLS.index(cell), is_double=x.dtype == torch.float64)
    real = saved_dtype(x.dtype)
    call.E, call.T, call.B, call.I = x.shape
    call.M, call.H = initial.size(1), initial.size(3)
    rows, layer_norm = weight_ih.size(1), inputs["gain"] is not None
    call.S = saved_size(cell, rows, call.H, settings, layer_norm)
    work = call.E * call.T * call.B * rows * (call.I + weight_hh.size(2))
    call.threads = max(1, min(torch.get_num_threads(), work // WORTH_A_THREAD))
    delays = (c_int64 * len(settings.delays))(*settings.delays)
    call.D, call.delays = len(settings.delays), addressof(delays)
    call.layer_norm, call.reverse, call.save = layer_norm, settings.reverse, settings.save
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
    assert _library.library is not None, _library.problem
    return _library.library


def new_stream(
    cell: str, inputs: Inputs, settings: Settings
) -> tuple[int, Callable[[int, int, int, int], None], Callable[[int], None]]:
    """Return a stream with its functions: step(stream, x, output, place in the ring) by address, and free(stream).

    All tensors must be contiguous and outlive the stream, which writes its state to theirs; initial_h is the first half
    of its ring [2M, B, H].
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
