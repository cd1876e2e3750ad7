"""The fused CPU forms of all cells: tensors in, tensors out.

E trials, T time, B batch, I input, H hidden, G rows of the parameters, M memory, D delays, S saved values per step.
"""

from collections.abc import Callable, Mapping, Sequence
from ctypes import addressof, c_int64
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mistrnn.kernels import _library
from mistrnn.kernels._library import Call, Library

CELLS = ("mist", "narx", "clockwork", "rnn", "lstm", "gru")
"""In the order of the library's own numbers."""

DTYPES = (torch.float32, torch.float64)

WORTH_A_THREAD = 2_000_000
"""Multiplications that take longer than starting a thread."""


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


def saved_size(cell: str, rows: int, hidden: int, settings: Settings, layer_norm: bool) -> int:
    """Return S: how many values a step keeps for the backward pass, beside its state."""
    count = len(settings.delays)
    size = {"mist": hidden + count, "lstm": 5 * hidden, "gru": 4 * hidden}.get(cell, 0)
    if settings.zoneout and cell not in ("lstm", "gru"):
        size += hidden  # the new state, which cannot be told from the mixture
    if layer_norm:
        blocks = {"mist": 3, "clockwork": count, "lstm": 4, "gru": 3}.get(cell, 1)
        size += rows + blocks  # normalised pre-activations and their scales
    return size


def unavailable(cell: str, dtype: torch.dtype) -> str | None:
    """Return why the fused form cannot serve, or None if it can."""
    if cell not in CELLS:
        return f"there is none for {cell}"
    if dtype not in DTYPES:
        return f"it computes in float32 and float64, and the parameters are {str(dtype).removeprefix('torch.')}"
    return _library.problem


def forward(cell: str, inputs: Mapping[str, Tensor | None], settings: Settings) -> tuple[Tensor, ...]:
    """Return output [E, T, B, H], the final h and c [E, M, B, H] (c only of LSTM, else empty), and what is saved."""
    call, alive = _call(cell, inputs, settings)
    like = _there(inputs, "initial_h")
    output = like.new_empty(call.E, call.T, call.B, call.H)
    final_h = like.new_empty(call.E, call.M, call.B, call.H)
    final_c = like.new_empty(call.E, call.M, call.B, call.H) if cell == "lstm" else like.new_empty(0)
    saved = like.new_empty(call.E, call.T, call.B, call.S) if settings.save else like.new_empty(0)
    for name, tensor in {"output": output, "final_h": final_h, "final_c": final_c, "saved": saved}.items():
        setattr(call, name, tensor.data_ptr() or None)
    _code().run(call, backward=False)
    del alive
    return output, final_h, final_c, saved


def backward(
    cell: str,
    gradients: Mapping[str, Tensor | None],
    inputs: Mapping[str, Tensor | None],
    output: Tensor,
    saved: Tensor,
    settings: Settings,
    wanted: Sequence[bool],
) -> tuple[Tensor, ...]:
    """Return the gradients of DIFFERENTIABLE, from those of output, final_h and final_c.

    `wanted` says of x, the parameters, and the initial state whether theirs are wanted; the others are empty.
    """
    call, alive = _call(cell, inputs, settings)
    if saved.numel() == 0 and call.S > 0:  # the run forwards did not know that it would be asked
        saved = forward(cell, inputs, settings._replace(save=True))[3]
    states, final = (call.E, call.T, call.B, call.H), (call.E, call.M, call.B, call.H)
    for name, tensor, shape in (
        ("output", output, states),
        ("saved", saved, (call.E, call.T, call.B, call.S)),
        ("d_output", gradients["d_output"], states),
        ("d_final_h", gradients["d_final_h"], final),
        ("d_final_c", gradients["d_final_c"], final),
    ):
        if tensor is not None and tensor.numel() and (tensor.shape != shape or tensor.dtype != output.dtype):
            raise ValueError(f"{cell}: expected {name} {list(shape)} in {output.dtype}, got {list(tensor.shape)}.")
    output, saved = output.contiguous(), saved.contiguous()
    call.output, call.saved = output.data_ptr() or None, saved.data_ptr() or None
    d_output = gradients["d_output"]
    if d_output is not None and d_output.numel():
        call.d_output = d_output.data_ptr()
        call.d_output_trial, call.d_output_time, call.d_output_sequence, call.d_output_unit = d_output.stride()
    for name in ("d_final_h", "d_final_c"):
        alive.append(_point(call, name, gradients[name]))
    results = []
    want_x, want_parameters, want_initial = wanted
    for name in DIFFERENTIABLE:
        tensor = inputs[name]
        is_wanted = want_x if name == "x" else want_initial if name.startswith("initial") else want_parameters
        if tensor is None or not is_wanted:
            results.append(output.new_empty(0))
            continue
        result = torch.empty(tensor.shape, dtype=tensor.dtype)
        setattr(call, f"d_{name}", result.data_ptr() or None)
        results.append(result)
    _code().run(call, backward=True)
    del alive
    return tuple(results)


DIFFERENTIABLE = ("x", "weight_ih", "weight_hh", "bias", "bias_hn", "gain", "initial_h", "initial_c")
"""The inputs that have gradients."""

INPUTS = (*DIFFERENTIABLE, "clock", "lengths", "reset", "keep_h", "keep_c", "dropout")
"""The tensors of a run, in order, each with a trial axis in front; see kernels/cpp/call.h for their shapes."""


def _call(cell: str, inputs: Mapping[str, Tensor | None], settings: Settings) -> tuple[Call, list[Any]]:
    """Return the call with all inputs, and the tensors that must live until it is made."""
    x, weight_ih, weight_hh, initial = (_there(inputs, name) for name in ("x", "weight_ih", "weight_hh", "initial_h"))
    _check(cell, inputs, settings)
    call = Call(cell=CELLS.index(cell), is_double=x.dtype == torch.float64)
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
    if x.numel() and x.stride(3) != 1 and call.I > 1:
        x = x.contiguous()
    call.x, alive = x.data_ptr() or None, [*alive, x]
    call.x_trial, call.x_time, call.x_sequence, _ = x.stride()
    for name in INPUTS[1:]:
        alive.append(_point(call, name, inputs[name]))
    return call, alive


def _check(cell: str, inputs: Mapping[str, Tensor | None], settings: Settings) -> None:
    """Raise unless all tensors fit together: compiled code would read and write beyond them."""
    x, initial = _there(inputs, "x"), _there(inputs, "initial_h")
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
        **dict.fromkeys(("keep_h", "keep_c"), (trials, steps, batch, hidden)),
        "dropout": (trials, batch, hidden),
    }
    integers, booleans = ("clock", "lengths"), ("reset", "keep_h", "keep_c")
    for name, shape in shapes.items():
        tensor = inputs[name]
        if tensor is None:
            continue
        dtype = torch.int64 if name in integers else torch.bool if name in booleans else x.dtype
        if tensor.shape != shape or tensor.dtype != dtype or tensor.device.type != "cpu":
            raise ValueError(
                f"{cell}: expected {name} {list(shape)} in {dtype} on the CPU, with the trial axis in front, got "
                f"{list(tensor.shape)} in {tensor.dtype} on {tensor.device}."
            )
    needed = {"lstm": "initial_c", "clockwork": "clock"}.get(cell)
    if x.dtype not in DTYPES or (needed and inputs[needed] is None):
        raise ValueError(f"{cell}: expected float32 or float64{f' and {needed}' if needed else ''}, got {x.dtype}.")
    if cell in ("mist", "narx") and not (count and min(settings.delays) >= 1 and max(settings.delays) <= memory):
        raise ValueError(
            f"{cell}: expected delays from 1 to {memory}, the states that there are, got {list(settings.delays)}."
        )
    if cell == "clockwork" and not (count and min(settings.delays) >= 1 and hidden % count == 0):
        raise ValueError(f"{cell}: expected periods >= 1 that divide {hidden} units, got {list(settings.delays)}.")
    lengths = inputs["lengths"]
    if lengths is not None and lengths.numel() and not 0 <= lengths.min() <= lengths.max() <= steps:
        raise ValueError(f"{cell}: expected lengths from 0 to {steps}, the number of steps, got {lengths.tolist()}.")


def _point(call: Call, name: str, tensor: Tensor | None) -> Tensor | None:
    """Enter a tensor into the call, contiguous but for its trial axis; return what must stay alive."""
    if tensor is None or not tensor.numel():
        return None
    shared = tensor.stride(0) == 0 and tensor.size(0) > 1  # one tensor for all trials
    tensor = tensor[0].contiguous() if shared else tensor.contiguous()
    setattr(call, name, tensor.data_ptr())
    if hasattr(Call, f"{name}_trial"):
        setattr(call, f"{name}_trial", 0 if shared else tensor.stride(0))
    return tensor


def _there(inputs: Mapping[str, Tensor | None], name: str) -> Tensor:
    tensor = inputs[name]
    assert tensor is not None, name
    return tensor


def _code() -> Library:
    assert _library.library is not None, _library.problem
    return _library.library


def new_stream(
    cell: str, inputs: Mapping[str, Tensor | None], settings: Settings
) -> tuple[int, Callable[[int, int, int, int], None], Callable[[int], None]]:
    """Return a stream with its functions: step(stream, x, output, place in the ring) by address, and free(stream).

    All tensors must be contiguous and outlive the stream, which writes its state to theirs; initial_h is the first half
    of its ring [2M, B, H].
    """
    weight_ih, ring = _there(inputs, "weight_ih"), _there(inputs, "initial_h")
    x = ring.new_empty(1, 1, ring.size(1), weight_ih.size(1))
    given: dict[str, Tensor | None] = dict.fromkeys(INPUTS)
    given |= {name: None if tensor is None else tensor.unsqueeze(0) for name, tensor in inputs.items()}
    call, _ = _call(cell, {**given, "x": x}, settings)
    for name, tensor in inputs.items():
        assert tensor is None or not tensor.numel() or getattr(call, name) == tensor.data_ptr(), f"{name} was copied"
    call.final_c = call.initial_c
    code = _code()
    return code.new_stream(call), code.stream_step, code.stream_free
