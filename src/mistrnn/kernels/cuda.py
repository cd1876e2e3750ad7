"""The fused GPU forms of all cells: tensors in, tensors out.

A persistent kernel takes a few sequences of one trial through all steps; the matrix products that do not depend on the
order of the steps (inputs by weight_ih, gradients of the weights) are torch's own, before it and after it.

E trials, T time, B batch, I input, H hidden, G rows of the parameters, M memory, D delays.
"""

import ctypes
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

import torch
from torch import Tensor

from mistrnn.kernels import _nvrtc
from mistrnn.kernels._nvrtc import Kernels, OuterKernel
from mistrnn.kernels._variant import (
    MAX_DELAY,
    MAX_DELAYS,
    MAX_HIDDEN,
    MAX_HIDDEN_ALONE,
    OLDEST_WITH_CLUSTERS,
    OuterVariant,
    Problem,
    Variant,
    block_memory,
)
from mistrnn.kernels.choices import capability_of, choose, fitting, outer_choice, ranges_of
from mistrnn.kernels.contract import (
    CELLS,
    DIFFERENTIABLE,
    INPUTS,
    PROBES,
    Inputs,
    Settings,
    check,
    is_wanted,
    saved_dtype,
    there,
)

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)

OLDEST = 80
"""The least compute capability, times ten: earlier GPUs have no bfloat16."""

MOST_TRIALS = 65_535
"""Blocks along one axis of a launch."""

PARTS = {"highest": 3, "high": 2, "medium": 2}
"""bfloat16 parts of a float32 operand, by torch.get_float32_matmul_precision(): all 24 bits, or 16.

One part would do for "medium" by its name, but torch's own products are more exact than that at this setting.
"""


def unavailable(
    cell: str, dtype: torch.dtype, device: torch.device, hidden: int, delays: Sequence[int], layer_norm: bool
) -> str | None:
    """Return why the fused form cannot serve, or None if it can."""
    if cell not in CELLS:
        return f"there is none for {cell}"
    if dtype not in DTYPES:
        return f"it computes in float32, float64 and half precision, and the parameters are {str(dtype).removeprefix('torch.')}"
    capability = capability_of(device)
    if capability < OLDEST:
        return f"it needs a GPU of compute capability 8.0 or newer, and this one has {capability / 10}"
    largest = MAX_HIDDEN if capability >= OLDEST_WITH_CLUSTERS else MAX_HIDDEN_ALONE[cell]
    if hidden > largest:
        return f"on this GPU it serves up to {largest} units, and there are {hidden}"
    if len(delays) > MAX_DELAYS or max(delays, default=1) > MAX_DELAY:
        return f"on a GPU it serves up to {MAX_DELAYS} delays of up to {MAX_DELAY} steps, and they are {list(delays)}"
    if not _has_room(cell, dtype == torch.float64, hidden, tuple(delays), layer_norm, capability):
        return f"this GPU's shared memory is too small for {hidden} units{' with layer norm' if layer_norm else ''}"
    return _problem()


@cache
def _has_room(cell: str, double: bool, hidden: int, delays: tuple[int, ...], layer_norm: bool, capability: int) -> bool:
    """Whether the kernels' shared memory fits, in both directions and at any precision."""
    memory = max(delays) if cell in ("mist", "narx") else 1
    for backward in (False, True):
        problem = Problem(cell, backward, hidden, True, delays, memory, 0 if double else 3, double, norm=layer_norm)
        if fitting(problem, capability).shared_memory > block_memory(capability):
            return False
    return True


_problem = cache(_nvrtc.problem)


def parts_of(x: Tensor) -> int:  # [T, B, I]
    """Return how many parts a run's products read, as torch's own switches say now."""
    if x.dtype == torch.float64:
        return 0
    if x.dtype != torch.float32 or torch.is_autocast_enabled("cuda"):
        return 1
    # A single sequence is a product by a vector, which torch never shortens.
    return PARTS["highest" if x.size(1) == 1 else torch.get_float32_matmul_precision()]


def _pointers(*names: str) -> list[tuple[str, Any]]:
    return [(name, ctypes.c_void_p) for name in names]


def _numbers(*names: str) -> list[tuple[str, Any]]:
    return [(name, ctypes.c_int64) for name in names]


class Arguments(ctypes.Structure):
    """What a kernel is handed; `Arguments` in kernels/cuh/block.cuh has the same fields in the same order."""

    _fields_ = (
        *_numbers("E", "T", "B"),
        *_pointers("x"),
        *_numbers("x_trial", "x_time", "x_sequence"),
        *_pointers("projected", "weight_ih", "weight_hh", "bias", "bias_hn", "gain"),
        *_numbers("weight_ih_trial", "weight_hh_trial", "bias_trial", "bias_hn_trial", "gain_trial"),
        *_pointers("packed", "initial_h", "initial_c"),
        *_numbers("initial_h_trial", "initial_c_trial"),
        *_pointers("clock", "lengths"),
        *_numbers("clock_trial", "lengths_trial"),
        *_pointers("origin"),
        *_numbers("origin_trial"),
        *_pointers("keep_h", "keep_c"),
        *_numbers("keep_h_trial", "keep_c_trial"),
        *_pointers("dropout"),
        *_numbers("dropout_trial"),
        ("zoneout", ctypes.c_double),
        *_pointers("output", "final_h", "final_c", "saved"),
        *_numbers("saved_trial", "saved_block"),
        *_pointers("d_output"),
        *_numbers("d_output_trial", "d_output_time", "d_output_sequence"),
        *_pointers("d_final_h", "d_final_c"),
        *_numbers("d_final_h_trial", "d_final_c_trial"),
        *_pointers("dz", "mixed", "ring", "sums", "d_initial_h", "d_initial_c", "d_probe_h", "d_probe_c"),
    )


class _Run:
    """One call: its tensors in the type that the kernel computes in, its sizes, and the arguments under way."""

    def __init__(self, cell: str, inputs: Inputs, settings: Settings, device: str, enter: bool = True) -> None:
        check(cell, inputs, settings, device, DTYPES)
        self.cell, self.settings = cell, settings
        self.dtype = there(inputs, "x").dtype
        self.real = saved_dtype(self.dtype)
        self.inputs: dict[str, Tensor | None] = {
            name: tensor.to(self.real) if tensor is not None and _is_converted(name, tensor, self.real) else tensor
            for name, tensor in inputs.items()
        }
        self.x, self.initial = there(self.inputs, "x"), there(self.inputs, "initial_h")
        self.E, self.T, self.B, self.I = self.x.shape
        if self.E > MOST_TRIALS:
            raise ValueError(f"{cell}: expected at most {MOST_TRIALS} trials at once on a GPU, got {self.E}.")
        self.M, self.H = self.initial.size(1), self.initial.size(3)
        self.inline = self.I == 1
        self.origin = self._origin()
        self.arguments = Arguments(E=self.E, T=self.T, B=self.B, zoneout=settings.zoneout)
        self._alive: list[Tensor] = []
        if not enter:
            return
        x = self.x if self.x.stride(3) == 1 or self.I == 1 else self.x.contiguous()
        self.arguments.x_trial, self.arguments.x_time, self.arguments.x_sequence, _ = x.stride()
        self._enter("x", x)
        for name in INPUTS[1:]:
            if name not in ("reset", *PROBES):
                self.point(name, self.inputs[name])
        self.point("origin", self.origin)

    def _origin(self) -> Tensor | None:
        """Return, for each step, the newest one at which its sequence began afresh, or one before everything."""
        reset = self.inputs["reset"]
        if reset is None or not self.T:
            return None
        steps = torch.arange(self.T, device=reset.device, dtype=torch.int32).view(1, -1, 1)
        return torch.where(reset, steps, -2 * MAX_DELAY).cummax(1).values.to(torch.int32)

    def problem(self, backward: bool) -> Problem:
        given, settings = self.inputs, self.settings
        return Problem(
            cell=self.cell,
            backward=backward,
            hidden=int(self.H),
            inline=self.inline,
            delays=tuple(settings.delays),
            memory=int(self.M),
            parts=settings.parts,
            double=self.real == torch.float64,
            bias=given["bias"] is not None,
            bias_hn=given["bias_hn"] is not None,
            norm=given["gain"] is not None,
            reset=self.origin is not None,
            lengths=given["lengths"] is not None,
            reverse=settings.reverse,
            zoneout=1 if given["keep_h"] is not None else 2 if settings.zoneout else 0,
            dropout=given["dropout"] is not None,
            save=settings.save,
            probe=backward and given["probe_h"] is not None,
        )

    def point(self, name: str, tensor: Tensor | None) -> None:
        """Enter a tensor into the arguments, contiguous but for its trial axis."""
        if tensor is None or not tensor.numel():
            return
        shared = tensor.stride(0) == 0 and tensor.size(0) > 1  # one tensor for all trials
        tensor = tensor[0].contiguous() if shared else tensor.contiguous()
        if hasattr(Arguments, f"{name}_trial"):
            setattr(self.arguments, f"{name}_trial", 0 if shared else tensor.stride(0))
        self._enter(name, tensor)

    def _enter(self, name: str, tensor: Tensor) -> None:
        setattr(self.arguments, name, tensor.data_ptr() or None)
        self._alive.append(tensor)

    def new(self, name: str, *shape: int) -> Tensor:
        """Make a tensor for the kernel to write."""
        try:
            tensor = torch.empty(shape, dtype=self.real, device=self.x.device)
        except torch.OutOfMemoryError as error:
            raise torch.OutOfMemoryError(
                f"{self.cell}: expected memory for {self.E} trials of {self.B} sequences of {self.T} steps with {self.H} "
                f"units, and there is not enough on {self.x.device}; about {self._trials_that_fit()} would fit. ({error})"
            ) from error
        self._enter(name, tensor)
        return tensor

    def _trials_that_fit(self) -> int:
        """Return how many trials the memory that is free, or torch's own in reserve, would hold, forwards and backwards."""
        device = self.x.device
        reserve = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        free = torch.cuda.mem_get_info(device)[0] + reserve
        variant = self.variant(backward=True)
        problem, rows = variant.problem, self.T * self.B
        numbers = rows * (2 * self.H + problem.column_stride + problem.mixed_stride * (self.cell == "mist"))
        numbers += variant.blocks(self.B) * (variant.saved_size(self.T) + variant.ring_size(self.T))
        return int(free // (numbers * self.real.itemsize))

    def variant(self, backward: bool, saved: Tensor | None = None) -> Variant:
        """Return the variant for this run; backwards it is the one that left the records."""
        cluster = None if saved is None else _cluster_of(saved)
        return choose(self.problem(backward), self.E, self.B, self.x.device, cluster)

    def launch(self, variant: Variant) -> None:
        """Lay out the weights and run all steps."""
        device = self.x.device
        kernels, stream = load(variant, device), current_stream(device)
        variant = kernels.variant  # as it was settled when it was compiled
        self.arguments.saved_block = variant.saved_size(self.T)
        if size := variant.ring_size(self.T):
            self.new("ring", self.E, variant.blocks(self.B), size)
        if variant.tiles:
            size = self.E * variant.launch.cluster * variant.tiles * variant.problem.parts * 512
            self._enter("packed", torch.empty(size, dtype=torch.uint8, device=device))
        with _current(device):
            if variant.tiles:
                kernels.pack(self.arguments, self.E, stream)
            kernels.run(self.arguments, self.E, self.B, stream)

    def by_step(self, tensor: Tensor) -> Tensor:  # [E, T, B, ...]
        """Turn each sequence around within its length if the run reads it from its end."""
        if not self.settings.reverse:
            return tensor
        lengths, steps = self.inputs["lengths"], torch.arange(self.T, device=tensor.device).view(1, -1, 1)
        if lengths is None:
            return tensor.flip(1)
        ends = lengths.unsqueeze(1)
        source = torch.where(steps < ends, ends - 1 - steps, steps).unsqueeze(-1)
        return tensor.gather(1, source.expand(tensor.shape))


def _is_converted(name: str, tensor: Tensor, dtype: torch.dtype) -> bool:
    return tensor.dtype != dtype and tensor.is_floating_point() and name not in PROBES  # nobody reads a probe


@cache
def load(variant: Variant, device: torch.device) -> Kernels:
    """Return a variant's kernels on a device."""
    with torch.cuda.device(device):
        torch.cuda.current_stream(device)  # the context that the module is loaded into
        return Kernels(variant)


def _current(device: torch.device) -> AbstractContextManager[object]:
    """Make a GPU the current one, whose context a launch needs."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def current_stream(device: torch.device) -> int:
    """Return torch's current stream as the driver knows it."""
    return torch.cuda.current_stream(device).cuda_stream


def saved_shape(cell: str, inputs: Inputs, settings: Settings) -> tuple[int, ...]:
    """Return the shape of what a run saves, from tensors that need not hold anything."""
    run = _Run(cell, inputs, settings, there(inputs, "x").device.type, enter=False)
    return _saved_shape(run, run.variant(backward=False))


def _saved_shape(run: _Run, variant: Variant) -> tuple[int, int]:
    """Return the shape of all records: those of a trial are a multiple of 64 numbers, and what comes on top tells the cluster.

    The run backwards may have more trials, and would choose another one.
    """
    return run.E, variant.blocks(run.B) * variant.saved_size(run.T) + 4 * variant.launch.cluster


def _cluster_of(saved: Tensor) -> int:
    return saved.size(1) % 64 // 4


def forward(cell: str, inputs: Inputs, settings: Settings, device: str = "cuda") -> tuple[Tensor, ...]:
    """Return output [E, T, B, H], the final h and c [E, M, B, H] (c only of LSTM, else empty), and what is saved."""
    run = _Run(cell, inputs, settings, device)
    output = run.new("output", run.E, run.T, run.B, run.H)
    final_h = run.new("final_h", run.E, run.M, run.B, run.H)
    final_c = run.new("final_c", run.E, run.M, run.B, run.H) if cell == "lstm" else final_h.new_empty(0)
    variant = run.variant(backward=False)
    saved = run.new("saved", *_saved_shape(run, variant))
    run.arguments.saved_trial = saved.stride(0)
    if not run.inline:
        projected = _product(run.x.flatten(1, 2), there(run.inputs, "weight_ih").mT)
        bias = run.inputs["bias"]
        if bias is not None and run.inputs["gain"] is None:
            projected += bias.unsqueeze(1)
        run.point("projected", projected)
    if run.E and run.B:
        run.launch(variant)
    if not settings.save:
        saved = saved.new_empty(0)
    return output.to(run.dtype), final_h.to(run.dtype), final_c.to(run.dtype), saved


def backward(
    cell: str,
    gradients: Inputs,
    inputs: Inputs,
    output: Tensor,
    saved: Tensor,
    settings: Settings,
    wanted: Sequence[bool],
    device: str = "cuda",
) -> tuple[Tensor, ...]:
    """Return the gradients of DIFFERENTIABLE, from those of output, final_h and final_c.

    `wanted` says of x, the parameters, the initial state and the probes whether theirs are wanted; the others are empty.
    """
    run = _Run(cell, inputs, settings._replace(save=True), device)
    if saved.numel() == 0:  # the run forwards did not know that it would be asked
        saved = forward(cell, inputs, settings._replace(save=True), device)[3]
    variant = run.variant(backward=True, saved=saved)
    problem = variant.problem
    output = output.to(run.real)
    run.point("output", output)
    run.point("saved", saved)
    d_output = gradients["d_output"]
    if d_output is not None and d_output.numel():
        d_output = d_output.to(run.real)
        d_output = d_output if d_output.stride(3) == 1 else d_output.contiguous()
        run._enter("d_output", d_output)
        strides = ("d_output_trial", "d_output_time", "d_output_sequence")
        for name, stride in zip(strides, d_output.stride(), strict=False):
            setattr(run.arguments, name, stride)
    for name in ("d_final_h", "d_final_c"):
        gradient = gradients[name]
        run.point(name, None if gradient is None else gradient.to(run.real))
    dz = run.new("dz", run.E, run.T, run.B, problem.column_stride)[..., : problem.columns]
    sums = run.new("sums", run.E, variant.blocks(run.B), problem.kinds, problem.columns)
    mixed = run.new("mixed", run.E, run.T, run.B, problem.mixed_stride)[..., : run.H] if cell == "mist" else dz
    results: dict[str, Tensor] = {}
    for name, slots in (("initial_h", run.M), ("initial_c", run.M), ("probe_h", run.T), ("probe_c", run.T)):
        if is_wanted(name, wanted) and inputs[name] is not None:
            results[name] = run.new(f"d_{name}", run.E, slots, run.B, run.H)
    if run.E and run.B:
        run.launch(variant)
    if is_wanted("weight_hh", wanted):
        results |= _parameter_gradients(run, problem, dz, sums.sum(1), mixed, output)
    if is_wanted("x", wanted):
        rows = there(inputs, "weight_ih").size(1)
        d_x = _product(dz[..., :rows].flatten(1, 2), there(run.inputs, "weight_ih"))
        results["x"] = run.by_step(d_x.view(run.E, run.T, run.B, run.I))
    return tuple(
        results[name].to(run.dtype)
        if name in results and inputs[name] is not None
        else dz.new_empty(0, dtype=run.dtype)
        for name in DIFFERENTIABLE
    )


def _parameter_gradients(
    run: _Run, problem: Problem, dz: Tensor, sums: Tensor, mixed: Tensor, output: Tensor
) -> dict[str, Tensor]:
    """Return the gradients of all parameters; sums is [E, kinds, columns]."""
    hidden, count, cell = run.H, len(problem.delays), run.cell
    rows = there(run.inputs, "weight_ih").size(1)
    # Clones, because an operator's results may not share memory.
    found = {"bias": sums[:, 0, :rows].clone()} if run.inputs["bias"] is not None else {}
    if problem.norm:
        found["gain"] = sums[:, -1, :rows].clone()
    if cell == "gru":
        found["bias_hn"] = sums[:, 0, 3 * hidden :].clone()
    if problem.sums_x:
        found["weight_ih"] = sums[:, 1, :rows].unsqueeze(-1).clone()
    else:
        x = run.by_step(run.x)
        lengths = run.inputs["lengths"]
        if lengths is not None:  # padding may hold anything, and 0 * NaN is NaN
            steps = torch.arange(run.T, device=x.device).view(1, -1, 1)
            x = x.masked_fill((steps >= lengths.unsqueeze(1)).unsqueeze(-1), 0.0)
        found["weight_ih"] = _outer(run, dz[..., :rows], x.contiguous())
    if cell == "mist":
        gates = _against_past(run, dz[..., : count + hidden], (1,), output)
        last = _outer(run, dz[..., count + hidden :], mixed)
        found["weight_hh"] = torch.cat([gates, last], 1)
    elif cell == "narx":
        found["weight_hh"] = _against_past(run, dz, problem.delays, output)
    elif cell == "gru":
        parts = (dz[..., : 2 * hidden], dz[..., 3 * hidden :])
        found["weight_hh"] = torch.cat([_against_past(run, part, (1,), output) for part in parts], 1)
    else:
        found["weight_hh"] = _against_past(run, dz, (1,), output)
    if cell == "clockwork":
        found["weight_hh"] = found["weight_hh"].masked_fill(_severed(problem.delays, hidden, dz.device), 0.0)
    return found


@cache
def _severed(periods: tuple[int, ...], hidden: int, device: torch.device) -> Tensor:  # [H, H]
    """Return which weights of a Clockwork do not exist; made once, because a CUDA graph cannot copy from the CPU."""
    of_units = torch.tensor(periods, device=device).repeat_interleave(hidden // len(periods))
    return of_units.unsqueeze(1) > of_units


def _against_past(run: _Run, dz: Tensor, delays: Sequence[int], output: Tensor) -> Tensor:
    """Return the sum over all steps and sequences of dz at a step times the states so many steps before.

    It is [E, rows, delays * H].
    """
    if run.origin is None and run.inputs["dropout"] is None and not run.settings.reverse:
        return _outer(run, dz, output, run.initial, delays)
    return torch.cat([_outer(run, dz, _past(run, delay, output)) for delay in delays], 2)


def _past(run: _Run, delay: int, output: Tensor) -> Tensor:  # [E, T, B, H]
    """Return what each step read of the state so many steps before, after resets and dropout."""
    before = run.initial[:, run.M - delay : run.M - delay + min(delay, run.T)]  # what the first steps read
    read = torch.cat([before, run.by_step(output)[:, : run.T - before.size(1)]], 1)
    if run.origin is not None:
        steps = torch.arange(run.T, device=read.device).view(1, -1, 1)
        read = read.masked_fill((steps - delay < run.origin).unsqueeze(-1), 0.0)
    dropout = run.inputs["dropout"]
    return read if dropout is None else read * dropout.unsqueeze(1)


class Operand(ctypes.Structure):
    """One side of a weight gradient; `Operand` in kernels/cuh/outer.cuh has the same fields."""

    _fields_ = (
        *_pointers("at"),
        *_numbers("trial", "step"),
        *_pointers("first"),
        *_numbers("first_trial", "places", "stride"),
    )


class OuterArguments(ctypes.Structure):
    """What the kernel of a weight gradient is handed; `Arguments` in kernels/cuh/outer.cuh has the same fields."""

    _fields_ = (
        *_numbers("E", "depth"),
        ("tall", Operand),
        ("wide", Operand),
        *_numbers("width"),
        ("delays", ctypes.c_int64 * MAX_DELAYS),
        *_numbers("per_range"),
        *_pointers("result"),
    )


def _outer(run: _Run, dz: Tensor, read: Tensor, before: Tensor | None = None, delays: Sequence[int] = (0,)) -> Tensor:
    """Return the sum over steps and sequences of dz [E, T, B, rows] times what was read, [E, rows, columns].

    `read` [E, T, B, width] holds what was read at each step; with `before` [E, M, B, width], which ends where `read` begins,
    what was read each of the delays later, one beside the other.
    """
    a, b = _rows(dz), _rows(read)
    (trials, depth, rows), width, columns = a.shape, b.size(2), b.size(2) * len(delays)
    first = None if before is None else _rows(before)
    if run.settings.parts == 0 or not run.E * run.T * run.B:
        if first is not None:
            both = torch.cat([first, b], 1)
            begins = [first.size(1) - delay * run.B for delay in delays]
            return torch.cat([_product(a.mT, both[:, begin : begin + depth]) for begin in begins], 2)
        return _product(a.mT, b)
    if first is not None and first.stride(1) != b.stride(1):  # the kernel takes the same step in both
        first, b = first.contiguous(), b.contiguous()
    turned, variant = outer_choice(run.settings.parts, rows, columns, len(delays) > 1, capability_of(run.x.device))
    of_dz = Operand(at=a.data_ptr(), trial=a.stride(0), step=a.stride(1), places=rows, stride=columns)
    of_read = Operand(at=b.data_ptr(), trial=b.stride(0), step=b.stride(1), places=columns, stride=1)
    if first is not None:
        of_read.first = first.data_ptr() + first.size(1) * first.stride(1) * first.element_size()
        of_read.first_trial = first.stride(0)
    tall, wide = (of_read, of_dz) if turned else (of_dz, of_read)
    blocks = variant.blocks(tall.places, wide.places)
    ranges, per_range = ranges_of(depth, blocks * trials, run.x.device)
    result = a.new_empty(ranges, trials, rows, columns)
    arguments = OuterArguments(E=trials, depth=depth, tall=tall, wide=wide, width=width, per_range=per_range)
    arguments.delays = (ctypes.c_int64 * MAX_DELAYS)(*(delay * run.B for delay in delays))
    arguments.result = result.data_ptr()
    kernel = load_outer(variant, run.x.device)
    with _current(run.x.device):
        kernel.run(arguments, (blocks, ranges, trials), current_stream(run.x.device))
    return result.sum(0) if ranges > 1 else result[0]


def _rows(tensor: Tensor) -> Tensor:  # [E, T, B, N] -> [E, T * B, N]
    """Return a tensor by steps and sequences, whose rows are contiguous: the kernel takes that for granted."""
    rows = tensor.flatten(1, 2)
    return rows if rows.stride(2) == 1 or rows.size(2) == 1 else rows.contiguous()


@cache
def load_outer(variant: OuterVariant, device: torch.device) -> OuterKernel:
    """Return the kernel of a weight gradient on a device."""
    with torch.cuda.device(device):
        torch.cuda.current_stream(device)
        return OuterKernel(variant)


def _product(a: Tensor, b: Tensor) -> Tensor:
    """Multiply matrix by matrix for each trial, in torch's own precision, whatever autocast says."""
    with torch.autocast(a.device.type, enabled=False):
        return torch.bmm(a, b)
