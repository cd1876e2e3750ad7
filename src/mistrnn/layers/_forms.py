"""The two forms in which one layer runs in one direction: plain, the reference loop, and fused, the compiled one.

E trials, T time, B batch, I input, H hidden, G rows of pre-activations, M memory.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from mistrnn.kernels import cuda, ops
from mistrnn.kernels.contract import INPUTS, PROBES, Settings
from mistrnn.layers._recurrence import Step, Zoneout, linear, run
from mistrnn.layers._timeline import Timeline

Form = Literal["auto", "plain", "fused"]
FORMS: tuple[Form, ...] = ("auto", "plain", "fused")

Weights = Mapping[str, Tensor]
"""The parameters of one layer in one direction by short name: weight_ih, weight_hh and, if any, bias, gain."""

Reference = Callable[[Weights, Tensor | None, Sequence[int]], Step]
"""(weights, recurrent dropout mask, delays or periods) -> the step of `reference.py`."""


@dataclass(frozen=True)
class Run:
    """What one layer in one direction is given; the inputs and the timeline are those of the forward direction."""

    weights: Weights
    x: Tensor
    initial: tuple[Tensor, ...]
    """[M, B, H] per state component."""
    clock: Tensor | None
    timeline: Timeline
    dropout: Tensor | None
    zoneout: Zoneout | None
    reverse: bool
    probes: tuple[Tensor, ...] = ()
    """Zeros [T, B, H] per state component, whose gradients are asked for; or none."""


Result = tuple[Tensor, tuple[Tensor, ...]]
"""The outputs [T, B, H], zero past each sequence's length, and the final state as `Run.initial`."""


def plain(step: Step, project: Callable[[Tensor, Weights], Tensor], given: Run) -> Result:
    """Run the reference loop."""
    x, timeline, probes = given.timeline.clear_padding(given.x), given.timeline, given.probes
    if given.reverse:
        x, timeline, probes = timeline.flip(x), timeline.reversed(), tuple(map(timeline.flip, probes))
    memory = given.initial[0].size(0)
    states = run(
        step,
        project(x, given.weights),
        given.initial,
        age=timeline.ages(timeline.full(memory)) if timeline.reset is not None else None,
        clock=timeline.ages(given.clock) if given.clock is not None else None,
        zoneout=given.zoneout,
        probes=probes,
    )
    final = tuple(timeline.last(before, inside) for before, inside in zip(given.initial, states, strict=True))
    output = timeline.clear_padding(states[0])
    return timeline.flip(output) if given.reverse else output, final


def fused(cell: str, delays: Sequence[int], given: Run) -> Result:
    """Run the compiled loop."""
    timeline = given.timeline.reversed() if given.reverse else given.timeline
    masks = given.zoneout if isinstance(given.zoneout, tuple) else ()
    tensors: dict[str, Tensor | None] = {
        **given.weights,
        "x": given.x,
        "initial_h": given.initial[0],
        "initial_c": given.initial[1] if len(given.initial) > 1 else None,
        "clock": given.clock,
        "lengths": timeline.lengths,
        "reset": timeline.reset,
        "keep_h": masks[0] if masks else None,
        "keep_c": masks[1] if len(masks) > 1 else None,
        "dropout": given.dropout,
        **dict(zip(PROBES, given.probes, strict=False)),
    }
    inputs = [tensors.get(name) for name in INPUTS]
    settings = Settings(
        delays=list(delays),
        zoneout=given.zoneout if isinstance(given.zoneout, float) else 0.0,
        reverse=given.reverse,
        save=torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in inputs),
        parts=cuda.parts_of(given.x) if given.x.is_cuda else 0,
    )
    output, *finals = ops.run(cell, inputs, settings)
    return output, tuple(finals)


def register(cell: str, reference: Reference) -> None:
    """Register a layer's compiled loop with torch; second derivatives come from its reference."""

    def plain_trials(inputs: Sequence[Tensor | None], settings: Settings) -> tuple[Tensor, ...]:
        shape = inputs[0].shape  # type: ignore[union-attr]
        trials = [
            _plain_trial(reference, [None if t is None else t[e] for t in inputs], settings) for e in range(shape[0])
        ]
        return tuple(torch.stack(values) for values in zip(*trials, strict=True))

    ops.register(cell, plain_trials)


def _plain_trial(reference: Reference, inputs: Sequence[Tensor | None], settings: Settings) -> tuple[Tensor, ...]:
    given = dict(zip(INPUTS, inputs, strict=True))
    weights = {
        name: t for name in ("weight_ih", "weight_hh", "bias", "bias_hn", "gain") if (t := given[name]) is not None
    }
    states = [t for name in ("initial_h", "initial_c") if (t := given[name]) is not None]
    masks = tuple(t for name in ("keep_h", "keep_c") if (t := given[name]) is not None)
    probes = tuple(t for name in PROBES if (t := given[name]) is not None)
    x = given["x"]
    assert x is not None
    timeline = Timeline(x.size(0), x.size(1), x.device, given["lengths"], given["reset"])
    # The resets are in the order of the run's own steps already; only x is not.
    output, final = plain(
        reference(weights, given["dropout"], settings.delays),
        lambda x, w: linear(x, w["weight_ih"], None if "gain" in w else w.get("bias")),
        Run(
            weights,
            timeline.flip(timeline.clear_padding(x)) if settings.reverse else x,
            tuple(states),
            given["clock"],
            timeline,
            given["dropout"],
            masks or settings.zoneout or None,
            reverse=False,
            probes=tuple(map(timeline.flip, probes)) if settings.reverse else probes,
        ),
    )
    return (timeline.flip(output) if settings.reverse else output, *final)
