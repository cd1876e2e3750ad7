"""The two backends of one layer in one direction: the reference loop, and the fused loop of compiled code.

E trials, T time, B batch, I input, H hidden, G rows of pre-activations, M memory.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from mistrnn._torch_compat import in_forward_mode, in_jit_trace
from mistrnn.kernels import dispatch
from mistrnn.kernels.cell import Cell, is_registered
from mistrnn.kernels.contract import INPUTS, PARAMETERS, PROBES, Settings
from mistrnn.kernels.cpu import backend as cpu
from mistrnn.kernels.cuda import backend as cuda
from mistrnn.layers.recurrence import Step, Zoneout, linear, run
from mistrnn.layers.sequence_mask import SequenceMask

Backend = Literal["auto", "reference", "fused"]
BACKENDS: tuple[Backend, ...] = ("auto", "reference", "fused")

Weights = Mapping[str, Tensor]
"""The parameters that a cell reads, by short name: weight_ih, weight_hh and, if any, bias, bias_hn, gain, weight_ch."""


@dataclass(frozen=True, slots=True)
class CellRun:
    """The arguments of one layer in one direction; the inputs and the mask are those of the forward direction."""

    weights: Weights
    lags: Sequence[int]
    x: Tensor
    """[T, B, I]"""
    initial: tuple[Tensor, ...]
    """[M, B, H] per state component."""
    clock: Tensor | None
    """[B]"""
    mask: SequenceMask
    dropout: Tensor | None = None
    """[B, H]"""
    zoneout: Zoneout | None = None
    reverse: bool = False
    probes: tuple[Tensor, ...] = ()
    """Zeros [T, B, H] per state component, whose gradients are wanted; or none."""


Result = tuple[Tensor, tuple[Tensor, ...]]
"""The outputs [T, B, H], zero past each sequence's length, and the final state as `CellRun.initial`."""


def run_reference(
    cell: Cell, given: CellRun, step: Step | None = None, projection: Callable[[Tensor, Weights], Tensor] | None = None
) -> Result:
    """Run the reference loop, with another step or input projection if they are given."""
    x, mask, probes = given.mask.clear_padding(given.x), given.mask, given.probes
    if given.reverse:
        x, mask, probes = mask.flip(x), mask.reversed(), tuple(map(mask.flip, probes))
    states = run(
        cell.step(given.weights, given.dropout, given.lags) if step is None else step,
        (project if projection is None else projection)(x, given.weights),
        given.initial,
        age=mask.ages(mask.full(given.initial[0].size(0))) if mask.reset is not None else None,
        clock=mask.ages(given.clock) if given.clock is not None else None,
        zoneout=given.zoneout,
        probes=probes,
    )
    final = tuple(mask.last(before, inside) for before, inside in zip(given.initial, states, strict=True))
    output = mask.clear_padding(states[0])
    return mask.flip(output) if given.reverse else output, final


def run_fused(cell: Cell, given: CellRun) -> Result:
    """Run the compiled loop."""
    mask = given.mask.reversed() if given.reverse else given.mask
    zoneout_masks = given.zoneout if isinstance(given.zoneout, tuple) else ()
    tensors: dict[str, Tensor | None] = {
        **given.weights,
        "x": given.x,
        "initial_h": given.initial[0],
        "initial_c": given.initial[1] if len(given.initial) > 1 else None,
        "clock": given.clock,
        "lengths": mask.lengths,
        "reset": mask.reset,
        "keep_h": zoneout_masks[0] if zoneout_masks else None,
        "keep_c": zoneout_masks[1] if len(zoneout_masks) > 1 else None,
        "dropout": given.dropout,
        **dict(zip(PROBES, given.probes, strict=False)),
    }
    inputs = [tensors.get(name) for name in INPUTS]
    settings = Settings(
        lags=list(given.lags),
        zoneout=given.zoneout if isinstance(given.zoneout, float) else 0.0,
        reverse=given.reverse,
        save=torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in inputs),
        splits=cuda.splits_of(given.x) if given.x.is_cuda else 0,
    )
    output, *finals = dispatch.run(cell.name, inputs, settings)
    return output, tuple(finals)


def project(x: Tensor, weights: Weights) -> Tensor:
    """Return the input projection [..., G] of all pre-activations; with layer norm the bias is added after the norm."""
    return linear(x, weights["weight_ih"], None if "gain" in weights else weights.get("bias"))


def takes_fused(owner: str, cell: Cell, backend: Backend, like: Tensor, reason: str | None) -> bool:
    """Return whether to run the fused backend.

    Args:
        owner: the class of the layer, for messages.
        cell: its cell.
        backend: the backend that the layer asks for.
        like: one of its parameters.
        reason: why the fused backend is unavailable, or None.
    """
    if backend == "reference":
        return False
    if reason is None:
        return not in_forward_mode()  # forward-mode derivatives, at any level of torch.func, need the reference
    if backend == "fused":
        raise RuntimeError(f'{owner}: expected a fused backend, because backend="fused", but {reason}.')
    recorded = torch.compiler.is_compiling() or is_jit_traced()
    if is_registered(cell) and like.device.type != "meta" and not recorded:
        _warn_once(f"{owner} runs on the reference backend, which is slower: {reason}.")
    return False


def why_not_fused(cell: Cell, like: Tensor, hidden: int, lags: Sequence[int], layer_norm: bool) -> str | None:
    """Return why there is no fused backend for parameters like this one, or None if there is."""
    if not is_registered(cell):
        return "this cell has only the reference step"
    if is_jit_traced():
        return "torch.jit.trace cannot record compiled code"
    if like.device.type == "cpu":
        return cpu.unavailable(cell.name, like.dtype)
    if like.device.type == "cuda":
        return cuda.unavailable(cell.name, like.dtype, like.device, hidden, lags, layer_norm)
    return f"fused backends exist for CPUs and NVIDIA GPUs, and the parameters are on {like.device}"


def is_jit_traced() -> bool:
    """Return whether torch.jit.trace is recording; torch.compile cannot trace that question."""
    return not torch.compiler.is_compiling() and in_jit_trace()


_warned: set[str] = set()


def _warn_once(text: str) -> None:
    if text not in _warned:
        _warned.add(text)
        warnings.warn(text, stacklevel=2)


def _run_operator_reference(cell: Cell, inputs: Sequence[Tensor | None], settings: Settings) -> tuple[Tensor, ...]:
    """Run the reference loop on the inputs of a cell's operator, trial by trial; second derivatives are taken from it."""
    shape = inputs[0].shape  # type: ignore[union-attr]
    trials = [_reference_trial(cell, [None if t is None else t[e] for t in inputs], settings) for e in range(shape[0])]
    return tuple(torch.stack(values) for values in zip(*trials, strict=True))


dispatch.set_reference(_run_operator_reference)


def _reference_trial(cell: Cell, inputs: Sequence[Tensor | None], settings: Settings) -> tuple[Tensor, ...]:
    given = dict(zip(INPUTS, inputs, strict=True))
    zoneout_masks = tuple(t for name in ("keep_h", "keep_c") if (t := given[name]) is not None)
    probes = tuple(t for name in PROBES if (t := given[name]) is not None)
    x = given["x"]
    assert x is not None
    mask = SequenceMask(x.size(0), x.size(1), x.device, given["lengths"], given["reset"])
    # The resets are in the order of the run's own steps already; only x is not.
    output, final = run_reference(
        cell,
        CellRun(
            weights={name: t for name in PARAMETERS if (t := given[name]) is not None},
            lags=settings.lags,
            x=mask.flip(mask.clear_padding(x)) if settings.reverse else x,
            initial=tuple(t for name in ("initial_h", "initial_c") if (t := given[name]) is not None),
            clock=given["clock"],
            mask=mask,
            dropout=given["dropout"],
            zoneout=zoneout_masks or settings.zoneout or None,
            probes=tuple(map(mask.flip, probes)) if settings.reverse else probes,
        ),
    )
    return (mask.flip(output) if settings.reverse else output, *final)
