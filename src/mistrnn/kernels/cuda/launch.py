"""A call of the GPU kernels: the plan that follows from its shapes, its arguments, the launch.

E trials, T time, B batch, I input, H hidden, M memory.
"""

import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import cache, cached_property, partial
from typing import Any

import torch
from torch import Tensor

from mistrnn._memory import free_gpu_memory
from mistrnn._torch_compat import raw_stream
from mistrnn.kernels.cell import cell as find_cell
from mistrnn.kernels.contract import INPUTS, PROBES, Inputs, SavedLayout, Settings, check, saved_dtype, there
from mistrnn.kernels.cuda.arguments import Arguments
from mistrnn.kernels.cuda.heuristics import choose
from mistrnn.kernels.cuda.jit import Kernels
from mistrnn.kernels.cuda.persistent.variant import Variant
from mistrnn.kernels.cuda.problem import MAX_DELAY, Problem
from mistrnn.kernels.cuda.stepwise import launch as stepwise
from mistrnn.kernels.cuda.stepwise.variant import StepwiseVariant

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)

MAX_ROWS = 2**31 - 1
"""Steps times sequences, a 32-bit index in the kernels."""
MAX_TRIALS = 65_535
"""Blocks along the second axis of a grid."""

_TRIAL_STRIDES = {name.removesuffix("_trial"): name for name, *_ in Arguments._fields_ if name.endswith("_trial")}
_POINTED = tuple(name for name in INPUTS if name not in ("x", "reset", *PROBES))
"""The inputs that a kernel reads as they are; x has strides of its own, resets become origins, probes are not read."""


class Plan:
    """The decisions for a call that follow from shapes and dtypes: made at the first call, reused for all like it.

    A backward run follows the layout of the saved values; it may have more trials, which would suggest another variant.
    """

    def __init__(
        self,
        cell: str,
        inputs: Inputs,
        settings: Settings,
        device: str,
        backward: bool,
        layout: SavedLayout | None = None,
    ) -> None:
        check(cell, inputs, settings, device, DTYPES)
        self.cell, self.settings = cell, settings._replace(lags=tuple(settings.lags))  # a list could be changed
        x, initial = there(inputs, "x"), there(inputs, "initial_h")
        self.device, self.dtype, self.real = x.device, x.dtype, saved_dtype(x.dtype)
        self.E, self.T, self.B, self.I = x.shape
        if self.E > MAX_TRIALS:
            raise ValueError(f"{cell}: expected at most {MAX_TRIALS} trials at once on a GPU, got {self.E}.")
        self.M, self.H = initial.size(1), initial.size(3)
        if max(self.T, self.M) * self.B > MAX_ROWS:
            raise ValueError(
                f"{cell}: expected at most {MAX_ROWS:,} time steps times sequences on a GPU, got "
                f"{max(self.T, self.M):,} x {self.B:,}."
            )
        self.pointed = [name for name in _POINTED if inputs[name] is not None]
        self.has_origin = inputs["reset"] is not None and bool(self.T)
        self.problem = Problem(
            cell=find_cell(cell),
            backward=backward,
            hidden=int(self.H),
            fused_input=self.I == 1,
            delays=tuple(settings.lags),
            memory=int(self.M),
            splits=settings.splits,
            double=self.real == torch.float64,
            bias=inputs["bias"] is not None,
            bias_hn=inputs["bias_hn"] is not None,
            norm=inputs["gain"] is not None,
            reset=self.has_origin,
            lengths=inputs["lengths"] is not None,
            reverse=settings.reverse,
            zoneout=1 if inputs["keep_h"] is not None else 2 if settings.zoneout else 0,
            dropout=inputs["dropout"] is not None,
            save=settings.save,
            probe=backward and inputs["probe_h"] is not None,
        )
        has_probe = inputs["probe_h"] is not None
        if layout is None and (has_probe or not self.T):
            # The backward run must be able to write a probe. The step-wise kernels need at least one step.
            probed = replace(self.problem, probe=has_probe)
            layout = choose(probed, self.E * bool(self.T), self.B, self.device).layout
        self.variant = choose(self.problem, self.E, self.B, self.device, layout)

    @cached_property
    def blocks(self) -> int:
        """Blocks (or clusters of them) of one trial."""
        return self.variant.blocks(self.B)

    @cached_property
    def saved_shape(self) -> tuple[int, int]:
        """The shape of the saved values."""
        return self.E, self.variant.saved_size(self.T, self.B)

    @cached_property
    def workspace_size(self) -> int:
        """Numbers of workspace per trial."""
        return self.variant.workspace_size(self.T, self.B)

    @cached_property
    def run(self) -> Callable[[Arguments, int], None]:
        """The function that packs the weights and runs all steps on a stream."""
        variant, device, trials, batch = self.variant, self.device, self.E, self.B
        if isinstance(variant, StepwiseVariant):
            return partial(stepwise.run, variant, self.M, device)
        kernels, saved_block = load(variant, device), variant.saved_block_size(self.T)
        packed_bytes = trials * variant.scratch_bytes(batch)

        def run(arguments: Arguments, stream: int) -> None:
            arguments.saved_block = saved_block
            packed = torch.empty(packed_bytes, dtype=torch.uint8, device=device)
            if packed_bytes:
                arguments.packed = packed.data_ptr()
                kernels.pack(arguments, trials, stream)
            kernels.run(arguments, trials, batch, stream)

        return run

    def trials_that_fit(self, kept: int) -> int:
        """Return how many trials fit into the free memory, including torch's cache, forward and backward.

        The `kept` bytes of a forward run count as free. Inputs and parameters are allocated already.
        """
        free = free_gpu_memory(self.device) + kept
        problem, rows = replace(self.problem, backward=True), self.T * self.B
        variant = choose(problem, self.E, self.B, self.device)
        each = rows * (2 * self.H + problem.gradient_stride + problem.mixed_stride * problem.kernels.has_mixed_history)
        each += variant.saved_size(self.T, self.B) + variant.workspace_size(self.T, self.B)
        return int(free // max(1, each * self.real.itemsize + variant.scratch_bytes(self.B)))


@contextmanager
def enough_memory(plan: Plan, *kept: Tensor) -> Iterator[None]:
    """Add to an OutOfMemoryError how many trials would fit; `kept` are tensors of the forward run."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        traceback.clear_frames(error.__traceback__)  # frees the tensors of the call
        fit = plan.trials_that_fit(sum(tensor.numel() * tensor.element_size() for tensor in kept))
        raise torch.OutOfMemoryError(
            f"{plan.cell}: expected memory for {plan.E} trials of {plan.B} sequences of {plan.T} steps with {plan.H} "
            f"units, and there is not enough on {plan.device}; about {fit} would fit. ({error})"
        ) from error


plans: dict[tuple[Any, ...], Plan] = {}
"""The plans of this process, without any tensors. Clear it to repeat the choices."""

MAX_PLANS = 1024
"""Capacity of the cache: sequence lengths are unbounded."""


def plan_of(
    cell: str, inputs: Inputs, settings: Settings, device: str, backward: bool, layout: SavedLayout | None = None
) -> Plan:
    """Return the plan for these tensors, from the cache if it is there."""
    tensors = [inputs[name] for name in INPUTS]
    forms = [None if tensor is None else (tensor.shape, tensor.dtype, tensor.device) for tensor in tensors]
    key = (cell, device, backward, layout, tuple(settings.lags), *settings[1:], *forms)
    plan = plans.get(key)
    if plan is None:
        plan = Plan(cell, inputs, settings, device, backward, layout)
        if len(plans) >= MAX_PLANS:
            plans.clear()
        plans[key] = plan
    return plan


class KernelCall:
    """One call: its tensors in the dtype in which the kernel computes, and the kernel's arguments."""

    def __init__(self, plan: Plan, inputs: Inputs) -> None:
        self.plan, self.cell, self.settings = plan, plan.cell, plan.settings
        self.E, self.T, self.B, self.I, self.M, self.H = plan.E, plan.T, plan.B, plan.I, plan.M, plan.H
        self.inputs = inputs if plan.dtype == plan.real else _converted(inputs, plan.real)
        self.x, self.initial = there(self.inputs, "x"), there(self.inputs, "initial_h")
        self.arguments = Arguments(E=self.E, T=self.T, B=self.B, zoneout=self.settings.zoneout)
        self._tensors: list[Tensor] = []
        self.origin = self._origin() if plan.has_origin else None
        x = self.x if self.x.stride(3) == 1 or self.I == 1 else self.x.contiguous()
        self.pass_strided("x", x)
        for name in plan.pointed:
            self.pass_tensor(name, self.inputs[name])
        self.pass_tensor("origin", self.origin)

    def _origin(self) -> Tensor:
        """Return for each step the latest reset of its sequence, or a step before all delays."""
        reset = there(self.inputs, "reset")
        steps = torch.arange(self.T, device=reset.device, dtype=torch.int32).view(1, -1, 1)
        return torch.where(reset, steps, -2 * MAX_DELAY).cummax(1).values.to(torch.int32)

    def pass_tensor(self, name: str, tensor: Tensor | None) -> None:
        """Pass a tensor to the kernel, contiguous apart from its trial axis."""
        if tensor is None or not tensor.numel():
            return
        shared = tensor.stride(0) == 0 and tensor.size(0) > 1  # one tensor for all trials
        tensor = tensor[0].contiguous() if shared else tensor.contiguous()
        if tensor.data_ptr() % 16:  # vector loads
            tensor = tensor.clone()
        if name in _TRIAL_STRIDES:
            setattr(self.arguments, _TRIAL_STRIDES[name], 0 if shared else tensor.stride(0))
        self.pass_pointer(name, tensor)

    def pass_pointer(self, name: str, tensor: Tensor) -> None:
        """Pass a tensor as it is."""
        setattr(self.arguments, name, tensor.data_ptr() or None)
        self._tensors.append(tensor)

    def pass_strided(self, name: str, tensor: Tensor) -> None:  # [E, T, B, ...]
        """Pass a tensor with the strides of its trials, steps and sequences."""
        for axis, stride in zip(("trial", "time", "sequence"), tensor.stride(), strict=False):
            setattr(self.arguments, f"{name}_{axis}", stride)
        self.pass_pointer(name, tensor)

    def new(self, name: str, *shape: int) -> Tensor:
        """Allocate a tensor for the kernel to write."""
        tensor = self.x.new_empty(shape)
        self.pass_pointer(name, tensor)
        return tensor

    def launch(self) -> None:
        """Pack the weights and run all steps."""
        if size := self.plan.workspace_size:
            self.new("workspace", self.E, size)
        with current(self.plan.device):
            self.plan.run(self.arguments, current_stream(self.plan.device))

    def by_step(self, tensor: Tensor) -> Tensor:  # [E, T, B, ...]
        """Flip each sequence within its length if the run is reversed."""
        if not self.settings.reverse:
            return tensor
        lengths, steps = self.inputs["lengths"], torch.arange(self.T, device=tensor.device).view(1, -1, 1)
        if lengths is None:
            return tensor.flip(1)
        ends = lengths.unsqueeze(1)
        source = torch.where(steps < ends, ends - 1 - steps, steps).unsqueeze(-1)
        return tensor.gather(1, source.expand(tensor.shape))


def _converted(inputs: Inputs, dtype: torch.dtype) -> Inputs:
    """Return all floating-point tensors in the dtype in which the kernel computes, apart from the probes."""

    def is_converted(name: str, tensor: Tensor) -> bool:
        return tensor.is_floating_point() and name not in PROBES

    return {
        name: tensor.to(dtype) if tensor is not None and is_converted(name, tensor) else tensor
        for name, tensor in inputs.items()
    }


@cache
def load(variant: Variant, device: torch.device) -> Kernels:
    """Return a variant's kernels on a device."""
    with torch.cuda.device(device):
        torch.cuda.current_stream(device)  # creates the context that the module is loaded into
        return Kernels(variant)


def current(device: torch.device) -> AbstractContextManager[object]:
    """Make a GPU current: a launch needs its context."""
    if device.type != "cuda" or device.index == torch.cuda.current_device():
        return nullcontext()
    return torch.cuda.device(device)


def current_stream(device: torch.device) -> int:
    """Return the handle of torch's current stream, without the overhead of a Stream object."""
    return raw_stream(device.index)
