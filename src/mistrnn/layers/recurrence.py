"""The loop over time of the reference backend, and the functions that reference steps share.

T time, B batch, H hidden, G rows of pre-activations, M memory: how many past states a layer reads (its longest delay).
"""

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

Zoneout = float | tuple[Tensor, ...]
"""A bool mask [T, B, H] per state component, true where the old value is kept; in evaluation its probability."""


class StateHistory:
    """The states that a step may read: `past(d)` is the state d steps ago, zero where the sequence had not begun by then.

    Every read of an earlier state goes through here, so that nothing can leak across a reset through any delay.
    """

    def __init__(self, state: Sequence[Tensor]) -> None:
        # state: one [M, B, H] per component, oldest first.
        kept = [component.unbind(0) for component in state]
        self._components = [deque(states, maxlen=len(states)) for states in kept]
        self.age: Tensor | None = None
        """[B] how many states each sequence has had since it was last reset; None where there are no resets."""
        self.clock: Tensor | None = None
        """[B] steps since each sequence began, 0 at its first; only for layers that have a clock."""

    def __call__(self, delay: int, component: int = 0) -> Tensor:  # [B, H]
        """Return a component of the state `delay` steps ago."""
        state = self._components[component][-delay]
        if self.age is None:
            return state
        return state.masked_fill((self.age < delay).unsqueeze(-1), 0.0)

    def append(self, state: Sequence[Tensor]) -> None:
        """Append the newest state."""
        for component, value in zip(self._components, state, strict=True):
            component.append(value)

    def stacked(self) -> tuple[Tensor, ...]:  # [M, B, H] per component
        """Return the last M states, oldest first."""
        memory = len(self._components[0])
        return tuple(
            torch.stack([self(delay, k) for delay in range(memory, 0, -1)]) for k in range(len(self._components))
        )


Step = Callable[[Tensor, StateHistory], tuple[Tensor, ...]]
"""(input projected by weight_ih [B, G], past) -> the new state's components, each [B, H], before zoneout."""


def advance(
    step: Step, x: Tensor, past: StateHistory, zoneout: Zoneout | None, probes: Sequence[Tensor] = ()
) -> tuple[Tensor, ...]:
    """Take one step, apply zoneout, add the probes (zeros), append the new state to the history and return it."""
    new = step(x, past)
    if isinstance(zoneout, float):
        new = tuple(zoneout * past(1, k) + (1 - zoneout) * value for k, value in enumerate(new))
    elif zoneout is not None:
        new = tuple(torch.where(zoneout[k], past(1, k), value) for k, value in enumerate(new))
    if probes:
        new = tuple(value + probe for value, probe in zip(new, probes, strict=True))
    past.append(new)
    return new


def run(
    step: Step,
    x: Tensor,
    state: Sequence[Tensor],
    *,
    age: Tensor | None = None,
    clock: Tensor | None = None,
    zoneout: Zoneout | None = None,
    probes: Sequence[Tensor] = (),
) -> tuple[Tensor, ...]:
    """Return all states of a run, [T, B, H] per component, from x [T, B, G] and the state before it, [M, B, H] each.

    `unbind` and `stack` keep the backward pass linear in T; indexing one tensor at each step would make it quadratic. `age`
    and `clock` are [T, B], as in `StateHistory`; `probes` are [T, B, H] per component.
    """
    past, probes_by_step = StateHistory(state), [probe.unbind(0) for probe in probes]
    states: list[tuple[Tensor, ...]] = []
    for t, x_t in enumerate(x.unbind(0)):
        past.age = None if age is None else age[t]
        past.clock = None if clock is None else clock[t]
        masks = tuple(mask[t] for mask in zoneout) if isinstance(zoneout, tuple) else zoneout
        states.append(advance(step, x_t, past, masks, [probe[t] for probe in probes_by_step]))
    if not states:
        # Empty, and still part of the graph, so that a backward pass runs through.
        return tuple(x[..., :1].expand(-1, -1, component.size(-1)) for component in state)
    return tuple(torch.stack(component) for component in zip(*states, strict=True))


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Multiply by a matrix, in low precision under autocast, and return the result in the dtype of the weights.

    States are sums over many steps and keep full precision; only the products are in low precision.
    """
    return F.linear(x, weight, bias).to(weight.dtype)


def drop(x: Tensor, mask: Tensor | None) -> Tensor:
    """Apply recurrent dropout: multiply the operand of a recurrent matrix by the mask [B, H]."""
    return x if mask is None else x * mask


Norm = Callable[[Tensor], Tensor]


def norms(blocks: Sequence[int], gain: Tensor | None, bias: Tensor | None) -> list[Norm]:
    """Return the layer norm of each block of pre-activations, with its gain and bias.

    Without a gain there is no layer norm, and the input projection has added the bias.
    """
    if gain is None:
        return [lambda x: x for _ in blocks]
    gains = torch.split(gain, list(blocks))
    biases = torch.split(bias, list(blocks)) if bias is not None else [None] * len(blocks)
    return [
        partial(F.layer_norm, normalized_shape=(size,), weight=g, bias=b)
        for size, g, b in zip(blocks, gains, biases, strict=True)
    ]
