"""The fused GPU forms of all cells: tensors in, tensors out.

A persistent kernel takes a few sequences of one trial through all steps, or all trials advance together (wide.py). What does
not depend on the order of the steps comes before it (inputs by weight_ih, torch's own product) and after it (gradients of
the weights, a kernel of their own).

E trials, T time, B batch, I input, H hidden, G rows of the parameters, M memory, D delays.
"""

import sys
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, TypeVar

import torch
from torch import Tensor

from mistrnn.kernels import _nvrtc
from mistrnn.kernels._run import DTYPES, Plan, Run, enough_memory, plan_of
from mistrnn.kernels._variant import (
    MAX_DELAY,
    MAX_DELAYS,
    MAX_HIDDEN,
    MAX_HIDDEN_ALONE,
    OLDEST_WITH_CLUSTERS,
    Problem,
    Variant,
    block_memory,
)
from mistrnn.kernels._wide import WideVariant
from mistrnn.kernels.choices import capability_of, fitting
from mistrnn.kernels.contract import CELLS, DIFFERENTIABLE, Inputs, Settings, is_wanted, there
from mistrnn.kernels.outer import weight_gradient
from mistrnn.kernels.products import precision, product

Function = TypeVar("Function", bound=Callable[..., Any])

OLDEST = 80
"""The least compute capability, times ten: earlier GPUs have no bfloat16."""

PARTS = {"highest": 3, "high": 2, "medium": 2}
"""bfloat16 parts of a float32 operand, by torch's precision of products: all 24 bits, or 16.

One part would do for "medium" by its name, but torch's own products are more exact than that at this setting.
"""


def settled_for_compiler(function: Function) -> Function:
    """Let torch.compile take what a function answers for a constant, instead of looking inside.

    It is what torch.compiler.assume_constant_result does, which would load all of torch's compiler here.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


@settled_for_compiler
def unavailable(
    cell: str, dtype: torch.dtype, device: torch.device, hidden: int, delays: Sequence[int], layer_norm: bool
) -> str | None:
    """Return why the fused form cannot serve, or None if it can."""
    if cell not in CELLS:
        return f"there is none for {cell}"
    if sys.platform == "win32":
        return "there is none for Windows"
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
    return _problem(capability)


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
    # Two constants, of which torch.compile can choose one where the batch is not known.
    return _parts(x.dtype, one_sequence=True) if x.size(1) == 1 else _parts(x.dtype, one_sequence=False)


@settled_for_compiler  # torch compiles anew when a switch is turned
def _parts(dtype: torch.dtype, one_sequence: bool) -> int:
    if dtype == torch.float64:
        return 0
    if dtype != torch.float32 or torch.is_autocast_enabled("cuda"):
        return 1
    # A single sequence is a product by a vector, which torch never shortens.
    return PARTS["highest" if one_sequence else precision()]


def saved_shape(cell: str, inputs: Inputs, settings: Settings) -> tuple[int, ...]:
    """Return the shape of what a run saves, from tensors that need not hold anything."""
    return Plan(cell, inputs, settings, there(inputs, "x").device.type, backward=False).saved_shape


def _cluster_of(saved: Tensor) -> int:
    return saved.size(1) % 64 // 4


def forward(cell: str, inputs: Inputs, settings: Settings, device: str = "cuda") -> tuple[Tensor | None, ...]:
    """Return output [E, T, B, H], the final h and c [E, M, B, H] (c only of LSTM), and what is saved, if anything is."""
    plan = plan_of(cell, inputs, settings, device, backward=False)
    with enough_memory(plan):
        return _forward(plan, inputs)


def _forward(plan: Plan, inputs: Inputs) -> tuple[Tensor | None, ...]:
    run, cell, settings = Run(plan, inputs), plan.cell, plan.settings
    output = run.new("output", run.E, run.T, run.B, run.H)
    final_h = run.new("final_h", run.E, run.M, run.B, run.H)
    final_c = run.new("final_c", run.E, run.M, run.B, run.H) if cell == "lstm" else None
    saved = run.new("saved", *plan.saved_shape)
    run.arguments.saved_trial = saved.stride(0)
    if isinstance(plan.variant, Variant) and plan.variant.alone and settings.save:
        saved.zero_()  # the run backwards reads the places of eight sequences, however few there are
    if not plan.problem.inline:
        projected = product(run.x.flatten(1, 2), there(run.inputs, "weight_ih").mT)
        run.point("projected", projected)
    if run.E and run.B:
        run.launch()
    if isinstance(plan.variant, WideVariant):  # whose kernels leave the states where they are
        states = output if run.T >= run.M else torch.cat([run.initial, output], 1)
        final_h.copy_(states[:, states.size(1) - run.M :])
    results = [None if result is None else result.to(plan.dtype) for result in (output, final_h, final_c)]
    return *results, saved if settings.save else None


def backward(
    cell: str,
    gradients: Inputs,
    inputs: Inputs,
    output: Tensor,
    saved: Tensor,
    settings: Settings,
    wanted: Sequence[bool],
    device: str = "cuda",
) -> tuple[Tensor | None, ...]:
    """Return the gradients of DIFFERENTIABLE, from those of output, final_h and final_c.

    `wanted` says of x, the parameters, the initial state and the probes whether theirs are wanted; the others are None.
    """
    if not settings.save:  # the run forwards did not know that it would be asked
        settings = settings._replace(save=True)
    if saved.numel() == 0:
        *_, again = forward(cell, inputs, settings, device)
        assert again is not None
        saved = again
    plan = plan_of(cell, inputs, settings, device, backward=True, cluster=_cluster_of(saved))
    with enough_memory(plan, output, saved):
        return _backward(plan, gradients, inputs, output, saved, wanted)


def _backward(
    plan: Plan, gradients: Inputs, inputs: Inputs, output: Tensor, saved: Tensor, wanted: Sequence[bool]
) -> tuple[Tensor | None, ...]:
    run, problem, cell = Run(plan, inputs), plan.problem, plan.cell
    output = output.to(plan.real)
    if isinstance(plan.variant, WideVariant):  # whose kernels read it, trial by trial
        output = output.contiguous()
    run.point("output", output)
    run.point("saved", saved)
    d_output = gradients["d_output"]
    if d_output is not None and d_output.numel():
        d_output = d_output.to(plan.real)
        d_output = d_output if d_output.stride(3) == 1 else d_output.contiguous()
        run.enter_strided("d_output", d_output)
    for name in ("d_final_h", "d_final_c"):
        gradient = gradients[name]
        run.point(name, None if gradient is None else gradient.to(plan.real))
    dz = run.new("dz", run.E, run.T, run.B, problem.column_stride)
    sums = run.new("sums", run.E, plan.blocks, problem.kinds, problem.columns)
    mixed = run.new("mixed", run.E, run.T, run.B, problem.mixed_stride) if cell == "mist" else dz
    results: dict[str, Tensor] = {}
    for name, slots in (("initial_h", run.M), ("initial_c", run.M), ("probe_h", run.T), ("probe_c", run.T)):
        if is_wanted(name, wanted) and inputs[name] is not None:
            results[name] = run.new(f"d_{name}", run.E, slots, run.B, run.H)
    if run.E and run.B:
        run.launch()
    dz = dz[..., : problem.columns]
    if is_wanted("weight_hh", wanted):
        results |= _parameter_gradients(run, problem, dz, sums, mixed, output)
    if is_wanted("x", wanted):
        rows = there(inputs, "weight_ih").size(1)
        d_x = product(dz[..., :rows].flatten(1, 2), there(run.inputs, "weight_ih"))
        results["x"] = run.by_step(d_x.view(run.E, run.T, run.B, run.I))
    return tuple(
        results[name].to(plan.dtype) if name in results and inputs[name] is not None else None
        for name in DIFFERENTIABLE
    )


def _parameter_gradients(
    run: Run, problem: Problem, dz: Tensor, sums: Tensor, mixed: Tensor, output: Tensor
) -> dict[str, Tensor]:
    """Return the gradients of all parameters; sums is [E, blocks, kinds, columns]."""
    hidden, count, cell = run.H, len(problem.delays), run.cell
    rows = there(run.inputs, "weight_ih").size(1)
    # Each is added up by itself, because an operator's results may not share memory.
    found = {"bias": sums[:, :, 0, :rows].sum(1)} if run.inputs["bias"] is not None else {}
    if problem.norm:
        found["gain"] = sums[:, :, -1, :rows].sum(1)
    if cell == "gru":
        found["bias_hn"] = sums[:, :, 0, 3 * hidden :].sum(1)
    if problem.sums_x:
        found["weight_ih"] = sums[:, :, 1, :rows].sum(1).unsqueeze(-1)
    else:
        x = run.by_step(run.x)
        lengths = run.inputs["lengths"]
        if lengths is not None:  # padding may hold anything, and 0 * NaN is NaN
            steps = torch.arange(run.T, device=x.device).view(1, -1, 1)
            x = x.masked_fill((steps >= lengths.unsqueeze(1)).unsqueeze(-1), 0.0)
        found["weight_ih"] = weight_gradient(run, dz[..., :rows], x)
    if cell == "mist":
        gates = _against_past(run, dz[..., : count + hidden], (1,), output)
        last = weight_gradient(run, dz[..., count + hidden :], mixed[..., :hidden])
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


def _severed(periods: tuple[int, ...], hidden: int, device: torch.device) -> Tensor:  # [H, H]
    """Return which weights of a Clockwork do not exist; without a copy from the CPU, which a CUDA graph cannot hold."""
    group = hidden // len(periods)
    of_units = torch.cat([torch.full((group,), period, device=device) for period in periods])
    return of_units.unsqueeze(1) > of_units


def _against_past(run: Run, dz: Tensor, delays: Sequence[int], output: Tensor) -> Tensor:
    """Return the sum over all steps and sequences of dz at a step times the states so many steps before.

    It is [E, rows, delays * H].
    """
    if run.origin is None and run.inputs["dropout"] is None and not run.settings.reverse:
        return weight_gradient(run, dz, output, run.initial, delays)
    return torch.cat([weight_gradient(run, dz, _past(run, delay, output)) for delay in delays], 2)


def _past(run: Run, delay: int, output: Tensor) -> Tensor:  # [E, T, B, H]
    """Return what each step read of the state so many steps before, after resets and dropout."""
    before = run.initial[:, run.M - delay : run.M - delay + min(delay, run.T)]  # what the first steps read
    read = torch.cat([before, run.by_step(output)[:, : run.T - before.size(1)]], 1)
    if run.origin is not None:
        steps = torch.arange(run.T, device=read.device).view(1, -1, 1)
        read = read.masked_fill((steps - delay < run.origin).unsqueeze(-1), 0.0)
    dropout = run.inputs["dropout"]
    return read if dropout is None else read * dropout.unsqueeze(1)
