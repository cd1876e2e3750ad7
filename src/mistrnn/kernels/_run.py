"""One run of a GPU kernel: what its shapes settle once and for all, the arguments of a call, and the launch.

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
from mistrnn.kernels import wide
from mistrnn.kernels._arguments import Arguments
from mistrnn.kernels._nvrtc import Kernels
from mistrnn.kernels._variant import MAX_DELAY, Problem, Variant
from mistrnn.kernels._wide import WideVariant
from mistrnn.kernels.choices import choose
from mistrnn.kernels.contract import INPUTS, PROBES, Inputs, Settings, check, saved_dtype, there

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)

MOST_ROWS = 2**31 - 1
"""Steps times sequences, which the kernels count in 32 bits."""
MOST_TRIALS = 65_535
"""Blocks along one axis of a launch."""


_TRIAL_STRIDES = {name.removesuffix("_trial"): name for name, *_ in Arguments._fields_ if name.endswith("_trial")}
_POINTED = tuple(name for name in INPUTS if name not in ("x", "reset", *PROBES))
"""The inputs that a kernel reads as they are; x has strides of its own, resets become origins, nobody reads a probe."""


class Plan:
    """What the shapes and types of its tensors settle about a run: found at the first call, the same for all like it.

    Backwards, the cluster is the one that left the records.
    """

    def __init__(
        self, cell: str, inputs: Inputs, settings: Settings, device: str, backward: bool, cluster: int | None = None
    ) -> None:
        check(cell, inputs, settings, device, DTYPES)
        self.cell, self.settings = cell, settings._replace(delays=tuple(settings.delays))  # a list could be changed
        x, initial = there(inputs, "x"), there(inputs, "initial_h")
        self.device, self.dtype, self.real = x.device, x.dtype, saved_dtype(x.dtype)
        self.E, self.T, self.B, self.I = x.shape
        if self.E > MOST_TRIALS:
            raise ValueError(f"{cell}: expected at most {MOST_TRIALS} trials at once on a GPU, got {self.E}.")
        self.M, self.H = initial.size(1), initial.size(3)
        if max(self.T, self.M) * self.B > MOST_ROWS:
            raise ValueError(
                f"{cell}: expected at most {MOST_ROWS:,} time steps times sequences on a GPU, got "
                f"{max(self.T, self.M):,} x {self.B:,}."
            )
        self.pointed = [name for name in _POINTED if inputs[name] is not None]
        self.has_origin = inputs["reset"] is not None and bool(self.T)
        self.problem = Problem(
            cell=cell,
            backward=backward,
            hidden=int(self.H),
            inline=self.I == 1,
            delays=tuple(settings.delays),
            memory=int(self.M),
            parts=settings.parts,
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
        if cluster is None and (has_probe or not self.T):
            # The run backwards must be able to write a probe, and without steps no trials advance together.
            probed = replace(self.problem, probe=has_probe)
            cluster = choose(probed, self.E * bool(self.T), self.B, self.device).cluster
        self.variant = choose(self.problem, self.E, self.B, self.device, cluster)

    @cached_property
    def blocks(self) -> int:
        """Blocks (or clusters of them) of one trial."""
        return self.variant.blocks(self.B)

    @cached_property
    def saved_shape(self) -> tuple[int, int]:
        """The shape of all records: those of a trial are a multiple of 64 numbers, and what comes on top tells the cluster.

        The run backwards may have more trials, and would choose another one.
        """
        return self.E, self.variant.saved_numbers(self.T, self.B) + 4 * self.variant.cluster

    @cached_property
    def ring_numbers(self) -> int:
        """Numbers under way that a trial keeps."""
        return self.variant.ring_numbers(self.T, self.B)

    @cached_property
    def run(self) -> Callable[[Arguments, int], None]:
        """What lays out the weights and runs all steps, on a stream."""
        variant, device, trials, batch = self.variant, self.device, self.E, self.B
        if isinstance(variant, WideVariant):
            return partial(wide.run, variant, self.M, device)
        kernels, saved_block = load(variant, device), variant.saved_size(self.T)
        packed_bytes = trials * variant.working_bytes(batch)

        def run(arguments: Arguments, stream: int) -> None:
            arguments.saved_block = saved_block
            packed = torch.empty(packed_bytes, dtype=torch.uint8, device=device)
            if packed_bytes:
                arguments.packed = packed.data_ptr()
                kernels.pack(arguments, trials, stream)
            kernels.run(arguments, trials, batch, stream)

        return run

    def trials_that_fit(self, kept: int) -> int:
        """Return how many trials the memory that is free, or torch's own in reserve, would hold, forwards and backwards.

        The trials' own tensors, such as their inputs and parameters, are there already. So are `kept` bytes, which the run
        forwards has left and which count as well.
        """
        free = free_gpu_memory(self.device) + kept
        problem, rows = replace(self.problem, backward=True), self.T * self.B
        variant = choose(problem, self.E, self.B, self.device)
        each = rows * (2 * self.H + problem.column_stride + problem.mixed_stride * (self.cell == "mist"))
        each += variant.saved_numbers(self.T, self.B) + variant.ring_numbers(self.T, self.B)
        return int(free // max(1, each * self.real.itemsize + variant.working_bytes(self.B)))


@contextmanager
def enough_memory(plan: Plan, *kept: Tensor) -> Iterator[None]:
    """Tell whoever runs out of memory inside how many trials would fit; backwards, of what the run forwards has left, too."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        traceback.clear_frames(error.__traceback__)  # they hold what the run has made so far
        fit = plan.trials_that_fit(sum(tensor.numel() * tensor.element_size() for tensor in kept))
        raise torch.OutOfMemoryError(
            f"{plan.cell}: expected memory for {plan.E} trials of {plan.B} sequences of {plan.T} steps with {plan.H} "
            f"units, and there is not enough on {plan.device}; about {fit} would fit. ({error})"
        ) from error


plans: dict[tuple[Any, ...], Plan] = {}
"""The plans of this process, without any tensors. Clear it to have choices made anew."""

MOST_PLANS = 1024
"""From here on they are forgotten: sequences of ever new lengths would fill the memory."""


def plan_of(
    cell: str, inputs: Inputs, settings: Settings, device: str, backward: bool, cluster: int | None = None
) -> Plan:
    """Return the plan for these tensors."""
    tensors = [inputs[name] for name in INPUTS]
    forms = [None if tensor is None else (tensor.shape, tensor.dtype, tensor.device) for tensor in tensors]
    key = (cell, device, backward, cluster, tuple(settings.delays), *settings[1:], *forms)
    plan = plans.get(key)
    if plan is None:
        plan = Plan(cell, inputs, settings, device, backward, cluster)
        if len(plans) >= MOST_PLANS:
            plans.clear()
        plans[key] = plan
    return plan


class Run:
    """One call: its tensors in the type that the kernel computes in, and the arguments under way."""

    def __init__(self, plan: Plan, inputs: Inputs) -> None:
        self.plan, self.cell, self.settings = plan, plan.cell, plan.settings
        self.E, self.T, self.B, self.I, self.M, self.H = plan.E, plan.T, plan.B, plan.I, plan.M, plan.H
        self.inputs = inputs if plan.dtype == plan.real else _converted(inputs, plan.real)
        self.x, self.initial = there(self.inputs, "x"), there(self.inputs, "initial_h")
        self.arguments = Arguments(E=self.E, T=self.T, B=self.B, zoneout=self.settings.zoneout)
        self._alive: list[Tensor] = []
        self.origin = self._origin() if plan.has_origin else None
        x = self.x if self.x.stride(3) == 1 or self.I == 1 else self.x.contiguous()
        self.enter_strided("x", x)
        for name in plan.pointed:
            self.point(name, self.inputs[name])
        self.point("origin", self.origin)

    def _origin(self) -> Tensor:
        """Return, for each step, the newest one at which its sequence began afresh, or one before everything."""
        reset = there(self.inputs, "reset")
        steps = torch.arange(self.T, device=reset.device, dtype=torch.int32).view(1, -1, 1)
        return torch.where(reset, steps, -2 * MAX_DELAY).cummax(1).values.to(torch.int32)

    def point(self, name: str, tensor: Tensor | None) -> None:
        """Enter a tensor into the arguments, contiguous but for its trial axis."""
        if tensor is None or not tensor.numel():
            return
        shared = tensor.stride(0) == 0 and tensor.size(0) > 1  # one tensor for all trials
        tensor = tensor[0].contiguous() if shared else tensor.contiguous()
        if tensor.data_ptr() % 16:  # what the kernels read at once
            tensor = tensor.clone()
        if name in _TRIAL_STRIDES:
            setattr(self.arguments, _TRIAL_STRIDES[name], 0 if shared else tensor.stride(0))
        self.enter(name, tensor)

    def enter(self, name: str, tensor: Tensor) -> None:
        """Enter a tensor as it lies."""
        setattr(self.arguments, name, tensor.data_ptr() or None)
        self._alive.append(tensor)

    def enter_strided(self, name: str, tensor: Tensor) -> None:  # [E, T, B, ...]
        """Enter a tensor with the strides of its trials, steps and sequences."""
        for axis, stride in zip(("trial", "time", "sequence"), tensor.stride(), strict=False):
            setattr(self.arguments, f"{name}_{axis}", stride)
        self.enter(name, tensor)

    def new(self, name: str, *shape: int) -> Tensor:
        """Make a tensor for the kernel to write."""
        tensor = self.x.new_empty(shape)
        self.enter(name, tensor)
        return tensor

    def launch(self) -> None:
        """Lay out the weights and run all steps."""
        if size := self.plan.ring_numbers:
            self.new("ring", self.E, size)
        with current(self.plan.device):
            self.plan.run(self.arguments, current_stream(self.plan.device))

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


def _converted(inputs: Inputs, dtype: torch.dtype) -> Inputs:
    """Return all numbers in the type that the kernel computes in, but for the probes, which nobody reads."""

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
        torch.cuda.current_stream(device)  # the context that the module is loaded into
        return Kernels(variant)


def current(device: torch.device) -> AbstractContextManager[object]:
    """Make a GPU the current one, whose context a launch needs."""
    if device.type != "cuda" or device.index == torch.cuda.current_device():
        return nullcontext()
    return torch.cuda.device(device)


def current_stream(device: torch.device) -> int:
    """Return torch's current stream as the driver knows it, without making an object of it."""
    return torch._C._cuda_getCurrentRawStream(device.index)
