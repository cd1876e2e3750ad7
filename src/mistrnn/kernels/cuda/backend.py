"""The CUDA backend: forward and backward runs of any cell.

A persistent kernel takes a few sequences of one trial through all steps; or the step-wise kernels advance all trials
together. The input projection comes before, a GEMM by torch. The weight gradients come after, a kernel of their own.

E trials, T time, B batch, I input, H hidden, G rows of the parameters, M memory, D delays.
"""

import sys
from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor

from mistrnn._torch_compat import constant_result
from mistrnn.kernels.cell import Cell, Operand, cells
from mistrnn.kernels.contract import (
    DIFFERENTIABLE,
    ForwardResult,
    Inputs,
    SavedLayout,
    Settings,
    is_wanted,
    there,
)
from mistrnn.kernels.cuda import jit
from mistrnn.kernels.cuda.heuristics import capability_of, smallest_fit
from mistrnn.kernels.cuda.launch import DTYPES, KernelCall, Plan, enough_memory, plan_of
from mistrnn.kernels.cuda.matmul_precision import matmul, precision
from mistrnn.kernels.cuda.persistent.variant import Variant
from mistrnn.kernels.cuda.problem import MAX_DELAY, MAX_DELAYS, MAX_HIDDEN, Problem
from mistrnn.kernels.cuda.program import OLDEST_WITH_CLUSTERS, block_memory
from mistrnn.kernels.cuda.stepwise.variant import StepwiseVariant
from mistrnn.kernels.cuda.wgrad.launch import weight_gradient

OLDEST = 80
"""The least compute capability, times ten: older GPUs have no bfloat16."""

SPLITS = {"highest": 3, "high": 2, "medium": 2}
"""bfloat16 splits of a float32 operand by torch's matmul precision: all 24 bits, or 16.

One split would do for "medium" by its name, but torch's own matmul is more accurate than that at this setting.
"""


@constant_result
def unavailable(
    cell: str, dtype: torch.dtype, device: torch.device, hidden: int, delays: Sequence[int], layer_norm: bool
) -> str | None:
    """Return why there is no kernel for this case, or None if there is one."""
    declared = next((declared for declared in cells() if declared.name == cell), None)
    if declared is None or declared.cuda is None:
        return f"there is none for {cell}"
    if sys.platform == "win32":
        return "there is none for Windows"
    if dtype not in DTYPES:
        return f"it computes in float32, float64 and half precision, and the parameters are {str(dtype).removeprefix('torch.')}"
    capability = capability_of(device)
    if capability < OLDEST:
        return f"it needs a GPU of compute capability 8.0 or newer, and this one has {capability / 10}"
    largest = MAX_HIDDEN if capability >= OLDEST_WITH_CLUSTERS else declared.cuda.max_hidden_without_clusters
    if hidden > largest:
        return f"on this GPU it serves up to {largest} units, and there are {hidden}"
    if len(delays) > MAX_DELAYS or max(delays, default=1) > MAX_DELAY:
        return f"on a GPU it serves up to {MAX_DELAYS} delays of up to {MAX_DELAY} steps, and they are {list(delays)}"
    if not _has_room(declared, dtype == torch.float64, hidden, tuple(delays), layer_norm, capability):
        return f"this GPU's shared memory is too small for {hidden} units{' with layer norm' if layer_norm else ''}"
    return _obstacle(capability)


@cache
def _has_room(
    cell: Cell, double: bool, hidden: int, delays: tuple[int, ...], layer_norm: bool, capability: int
) -> bool:
    """Return whether the shared memory suffices, in both directions and at any precision."""
    memory = cell.memory(delays)
    for backward in (False, True):
        problem = Problem(cell, backward, hidden, True, delays, memory, 0 if double else 3, double, norm=layer_norm)
        if smallest_fit(problem, capability).shared_memory > block_memory(capability):
            return False
    return True


_obstacle = cache(jit.obstacle)


def splits_of(x: Tensor) -> int:  # [T, B, I]
    """Return the bf16 splits for the matmul precision that torch is set to."""
    # Two constants for torch.compile, where the batch may be symbolic.
    return _parts(x.dtype, one_sequence=True) if x.size(1) == 1 else _parts(x.dtype, one_sequence=False)


@constant_result  # torch compiles again when a switch changes
def _parts(dtype: torch.dtype, one_sequence: bool) -> int:
    if dtype == torch.float64:
        return 0
    if dtype != torch.float32 or torch.is_autocast_enabled("cuda"):
        return 1
    # With a single sequence torch multiplies by a vector, always in full precision.
    return SPLITS["highest" if one_sequence else precision()]


def saved_shape(cell: str, inputs: Inputs, settings: Settings) -> tuple[int, ...]:
    """Return the shape of the saved values; fake tensors suffice."""
    return Plan(cell, inputs, settings, there(inputs, "x").device.type, backward=False).saved_shape


def forward(cell: str, inputs: Inputs, settings: Settings, device: str = "cuda") -> ForwardResult:
    """Run forward; see `ForwardResult`."""
    plan = plan_of(cell, inputs, settings, device, backward=False)
    with enough_memory(plan):
        return _forward(plan, inputs)


def _forward(plan: Plan, inputs: Inputs) -> ForwardResult:
    call, settings = KernelCall(plan, inputs), plan.settings
    output = call.new("output", call.E, call.T, call.B, call.H)
    final_h = call.new("final_h", call.E, call.M, call.B, call.H)
    final_c = call.new("final_c", call.E, call.M, call.B, call.H) if len(plan.problem.cell.state) > 1 else None
    saved = call.new("saved", *plan.saved_shape)
    call.arguments.saved_trial = saved.stride(0)
    if isinstance(plan.variant, Variant) and plan.variant.single_sequence and settings.save:
        saved.zero_()  # the backward run reads whole groups of eight sequences
    if not plan.problem.fused_input:
        projected = matmul(call.x.flatten(1, 2), there(call.inputs, "weight_ih").mT)
        call.pass_tensor("projected", projected)
    if call.E and call.B:
        call.launch()
    if isinstance(plan.variant, StepwiseVariant):  # its states are in the output alone
        states = output if call.T >= call.M else torch.cat([call.initial, output], 1)
        final_h.copy_(states[:, states.size(1) - call.M :])
    return ForwardResult(
        output.to(plan.dtype),
        final_h.to(plan.dtype),
        None if final_c is None else final_c.to(plan.dtype),
        saved if settings.save else None,
        plan.variant.layout,
    )


def backward(
    cell: str,
    gradients: Inputs,
    inputs: Inputs,
    output: Tensor,
    saved: Tensor,
    layout: SavedLayout,
    settings: Settings,
    wanted: Sequence[bool],
    device: str = "cuda",
) -> tuple[Tensor | None, ...]:
    """Return the gradients of DIFFERENTIABLE from those of output, final_h and final_c.

    The four flags `wanted` select x, the parameters, the initial state and the probes; the other gradients are None.
    """
    if not settings.save:  # the forward run did not know of a backward run
        settings = settings._replace(save=True)
        again = forward(cell, inputs, settings, device)
        assert again.saved is not None
        saved, layout = again.saved, again.layout
    plan = plan_of(cell, inputs, settings, device, backward=True, layout=layout)
    with enough_memory(plan, output, saved):
        return _backward(plan, gradients, inputs, output, saved, wanted)


def _backward(
    plan: Plan, gradients: Inputs, inputs: Inputs, output: Tensor, saved: Tensor, wanted: Sequence[bool]
) -> tuple[Tensor | None, ...]:
    call, problem = KernelCall(plan, inputs), plan.problem
    output = output.to(plan.real)
    if isinstance(plan.variant, StepwiseVariant):  # it reads the output without strides
        output = output.contiguous()
    call.pass_tensor("output", output)
    call.pass_tensor("saved", saved)
    d_output = gradients["d_output"]
    if d_output is not None and d_output.numel():
        d_output = d_output.to(plan.real)
        d_output = d_output if d_output.stride(3) == 1 else d_output.contiguous()
        call.pass_strided("d_output", d_output)
    for name in ("d_final_h", "d_final_c"):
        gradient = gradients[name]
        call.pass_tensor(name, None if gradient is None else gradient.to(plan.real))
    dz = call.new("dz", call.E, call.T, call.B, problem.gradient_stride)
    sums = call.new("sums", call.E, plan.blocks, problem.reductions, problem.gradient_columns)
    mixed = call.new("mixed", call.E, call.T, call.B, problem.mixed_stride) if problem.kernels.has_mixed_history else dz
    results: dict[str, Tensor] = {}
    for name, slots in (("initial_h", call.M), ("initial_c", call.M), ("probe_h", call.T), ("probe_c", call.T)):
        if is_wanted(name, wanted) and inputs[name] is not None:
            results[name] = call.new(f"d_{name}", call.E, slots, call.B, call.H)
    if call.E and call.B:
        call.launch()
    dz = dz[..., : problem.gradient_columns]
    if is_wanted("weight_hh", wanted):
        results |= _parameter_gradients(call, problem, dz, sums, mixed, output)
    if is_wanted("x", wanted):
        rows = there(inputs, "weight_ih").size(1)
        d_x = matmul(dz[..., :rows].flatten(1, 2), there(call.inputs, "weight_ih"))
        results["x"] = call.by_step(d_x.view(call.E, call.T, call.B, call.I))
    return tuple(
        results[name].to(plan.dtype) if name in results and inputs[name] is not None else None
        for name in DIFFERENTIABLE
    )


def _parameter_gradients(
    call: KernelCall, problem: Problem, dz: Tensor, sums: Tensor, mixed: Tensor, output: Tensor
) -> dict[str, Tensor]:
    """Return the gradients of all parameters; sums is [E, blocks, reductions, columns]."""
    cell, hidden = problem.cell, call.H
    rows = there(call.inputs, "weight_ih").size(1)
    # One sum each: an operator's results must not share memory.
    found = {"bias": sums[:, :, 0, :rows].sum(1)} if call.inputs["bias"] is not None else {}
    if problem.norm:
        found["gain"] = sums[:, :, -1, :rows].sum(1)
    if cell.hidden_bias:
        found["bias_hn"] = sums[:, :, 0, rows : rows + hidden].sum(1)
    if problem.has_diagonal:
        by_gate = sums[:, :, 1 + problem.reduces_input, :rows].sum(1).view(call.E, problem.gates, hidden)
        found["weight_ch"] = torch.stack([by_gate[:, gate] for gate in problem.diagonal_gates], 1)
    if problem.reduces_input:
        found["weight_ih"] = sums[:, :, 1, :rows].sum(1).unsqueeze(-1)
    else:
        x = call.by_step(call.x)
        lengths = call.inputs["lengths"]
        if lengths is not None:  # padding may be NaN, and 0 * NaN is NaN
            steps = torch.arange(call.T, device=x.device).view(1, -1, 1)
            x = x.masked_fill((steps >= lengths.unsqueeze(1)).unsqueeze(-1), 0.0)
        found["weight_ih"] = weight_gradient(call, dz[..., :rows], x)
    found["weight_hh"] = _recurrent_weight_gradient(call, problem, dz, mixed, output)
    return found


def _recurrent_weight_gradient(call: KernelCall, problem: Problem, dz: Tensor, mixed: Tensor, output: Tensor) -> Tensor:
    """Return the gradient of weight_hh by the cell's recipe: blocks of rows of dz, each times its operand."""
    cell, hidden, blocks = problem.cell, call.H, []
    for start, stop, operand in cell.weight_grads:
        rows = dz[..., start(hidden, len(problem.delays)) : stop(hidden, len(problem.delays))]
        if operand is Operand.MIXED_HISTORY:
            blocks.append(weight_gradient(call, rows, mixed[..., :hidden]))
        else:
            delays = problem.delays if operand is Operand.DELAYED_STATES else (1,)
            blocks.append(_delayed_weight_gradient(call, rows, delays, output))
    gradient = torch.cat(blocks, 1) if len(blocks) > 1 else blocks[0]
    if cell.weight_mask is not None:
        gradient = gradient.masked_fill(cell.weight_mask(problem.delays, hidden, dz.device), 0.0)
    return gradient


def _delayed_weight_gradient(call: KernelCall, dz: Tensor, delays: Sequence[int], output: Tensor) -> Tensor:
    """Return the sum over all steps and sequences of dz times the delayed states, [E, rows, delays * H]."""
    if call.origin is None and call.inputs["dropout"] is None and not call.settings.reverse:
        return weight_gradient(call, dz, output, call.initial, delays)
    return torch.cat([weight_gradient(call, dz, _past(call, delay, output)) for delay in delays], 2)


def _past(call: KernelCall, delay: int, output: Tensor) -> Tensor:  # [E, T, B, H]
    """Return the delayed state that each step read, after resets and dropout."""
    before = call.initial[:, call.M - delay : call.M - delay + min(delay, call.T)]
    read = torch.cat([before, call.by_step(output)[:, : call.T - before.size(1)]], 1)
    if call.origin is not None:
        steps = torch.arange(call.T, device=read.device).view(1, -1, 1)
        read = read.masked_fill((steps - delay < call.origin).unsqueeze(-1), 0.0)
    dropout = call.inputs["dropout"]
    return read if dropout is None else read * dropout.unsqueeze(1)
