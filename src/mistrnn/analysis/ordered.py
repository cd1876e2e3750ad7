"""The chain rule for ordered derivatives (the paper's appendix A): a full derivative as a sum over paths.

The state at t depends on the one at t - tau along every path of direct connections between them:

    (1)  d+h_t / dh_{t-tau}  =  sum over paths  of  dh_t/dh_{t'...}  ...  dh_{t''}/dh_{t'}  dh_{t'}/dh_{t-tau}

with d+ the full and d the partial derivatives, one factor for each edge. With lambda the largest spectral norm of any factor,
a path with n_e edges contributes at most

    (2)  ‖product over its edges‖  <=  product of ‖factors‖  <=  lambda^n_e

An LSTM's state has two vectors, h and c, each of which reads both a step before: its paths run through either.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import jacrev

from mistrnn.analysis.paths import count_paths, delays_read
from mistrnn.layers import RecurrentLayer
from mistrnn.layers.backends import project
from mistrnn.layers.recurrence import StateHistory, advance, run


@dataclass(frozen=True)
class Path:
    """One path and its contribution."""

    times: tuple[int, ...]
    """From t - tau to t."""
    components: tuple[str, ...]
    """Which vector of the state it passes through at these times, "h" or "c"."""
    derivative: Tensor
    """[H, H] the product of its factors."""
    norm: float
    """The spectral norm of the product."""
    factor_norms: tuple[float, ...]
    """The spectral norm of each factor."""

    @property
    def edges(self) -> int:
        """n_e, the number of edges."""
        return len(self.times) - 1

    @property
    def bound(self) -> float:
        """The product of the factors' norms: the middle of (2)."""
        return math.prod(self.factor_norms)


@dataclass(frozen=True)
class Decomposition:
    """A full derivative and the paths that it is the sum of."""

    full: Tensor
    """[H, H] d+h_t / dh_{t-tau}, by automatic differentiation of the whole run."""
    paths: tuple[Path, ...]
    """All of them, the shortest first."""

    @property
    def total(self) -> Tensor:
        """[H, H] the sum over the paths: the right side of (1)."""
        return torch.stack([path.derivative for path in self.paths]).sum(0)

    @property
    def largest_factor(self) -> float:
        """Lambda, the largest spectral norm of any factor."""
        return max(norm for path in self.paths for norm in path.factor_norms)

    def bound(self, path: Path) -> float:
        """Return lambda^n_e, the right side of (2)."""
        return self.largest_factor**path.edges


def ordered_derivative(
    layer: RecurrentLayer, input: Tensor, tau: int, t: int | None = None, *, max_paths: int = 10_000
) -> Decomposition:
    """Return the full derivative of h_t with respect to h_{t-tau} and all paths that it is the sum of.

    Args:
        layer: one layer in one direction, best in float64.
        input: one sequence, [T, I].
        tau: how many steps back.
        t: the later step, counted from 0; the last if left out.
        max_paths: refuse to compute more paths than that; their number grows exponentially.

    >>> from mistrnn import NARX
    >>> layer = NARX(1, 4, delays=[1, 2], dtype=torch.float64)
    >>> found = ordered_derivative(layer, torch.randn(9, 1, dtype=torch.float64), tau=4)
    >>> [path.edges for path in found.paths], torch.allclose(found.total, found.full)
    ([2, 3, 3, 3, 4], True)
    """
    steps = _checked(layer, input)
    t = steps - 1 if t is None else t
    if not isinstance(tau, int) or isinstance(tau, bool) or tau < 1:
        raise ValueError(f"ordered_derivative: expected tau to be a whole number >= 1, got {tau!r}.")
    if tau >= steps:
        raise ValueError(f"ordered_derivative: expected more than tau = {tau} steps, got {steps}.")
    if not isinstance(t, int) or not tau <= t < steps:
        raise ValueError(
            f"ordered_derivative: expected {tau} <= t < {steps}, because t - tau and t are steps of it, got {t}."
        )
    delays = delays_read(layer)
    names = layer.cell.state
    number = count_paths(delays, tau, len(names))
    if number == 0:
        raise ValueError(f"ordered_derivative: expected delays that add up to tau = {tau}, got {list(delays)}.")
    if number > max_paths:
        raise ValueError(
            f"ordered_derivative: expected at most {max_paths} paths, and there are {number}; take a smaller tau or set "
            "max_paths."
        )
    factors = _factors(layer, input, t - tau, t)
    norms = {edge: float(torch.linalg.matrix_norm(factor, 2)) for edge, factor in factors.items()}
    paths: list[Path] = []
    # Beginnings of paths: their times, the components they pass through, their product and the norms of its factors.
    unfinished: list[tuple[tuple[int, ...], tuple[int, ...], Tensor | None, tuple[float, ...]]]
    unfinished = [((t - tau,), (0,), None, ())]
    while unfinished:
        times, through, product, passed = unfinished.pop()
        if times[-1] == t:
            assert product is not None
            norm = float(torch.linalg.matrix_norm(product, 2))
            paths.append(Path(times, tuple(names[k] for k in through), product, norm, passed))
            continue
        for delay in delays:
            later = times[-1] + delay
            for component in range(len(names)) if later < t else (0,) if later == t else ():
                edge = (times[-1], through[-1], later, component)
                longer = factors[edge] if product is None else factors[edge] @ product
                unfinished.append(((*times, later), (*through, component), longer, (*passed, norms[edge])))
    return Decomposition(
        _full(layer, input, t - tau, t), tuple(sorted(paths, key=lambda path: (path.edges, path.times)))
    )


def _checked(layer: RecurrentLayer, input: Tensor) -> int:
    name = type(layer).__name__
    if not isinstance(layer, RecurrentLayer):
        raise TypeError(
            f"ordered_derivative: expected a layer of mistrnn, such as from_torch makes of torch's, got {name}."
        )
    layer.require_own_forward("ordered_derivative")
    like = next(layer.parameters())
    if layer.num_layers * layer.directions > 1:
        raise ValueError(f"ordered_derivative: expected one layer in one direction, got {layer}.")
    if layer.draws_at_random:
        raise ValueError(
            f"ordered_derivative: expected {name} in evaluation mode, because zoneout and dropout draw at random in training."
        )
    if input.dim() != 2 or input.size(1) != layer.input_size or input.dtype != like.dtype:
        raise ValueError(
            f"ordered_derivative: expected one sequence [T, {layer.input_size}] in {like.dtype}, got {list(input.shape)} in "
            f"{input.dtype}."
        )
    return input.size(0)


def _factors(layer: RecurrentLayer, input: Tensor, first: int, last: int) -> dict[tuple[int, int, int, int], Tensor]:
    """Return the partial derivatives [H, H] of (from time, from component, to time, to component), by the reference."""
    weights = layer.all_cell_weights(recompute=True)[0]
    step, zoneout = layer.step(weights), float(layer.zoneout) or None
    memory, components = layer.memory, len(layer.cell.state)
    x = project(input, weights).unsqueeze(1).detach()  # [T, 1, G]
    clock = torch.arange(len(input), device=input.device).unsqueeze(1) if layer.cell.has_clock else None
    start = [x.new_zeros(memory, 1, layer.hidden_size) for _ in range(components)]
    with torch.no_grad():
        states = run(step, x, start, clock=clock, zoneout=zoneout)
    history = [torch.cat([before, inside]) for before, inside in zip(start, states, strict=True)]  # [M + T, 1, H]
    factors = {}
    for later in range(first + 1, last + 1):

        def one_step(past: list[Tensor], later: int = later) -> tuple[Tensor, ...]:
            given = StateHistory(past)
            given.clock = None if clock is None else clock[later]
            return tuple(value[0] for value in advance(step, x[later], given, zoneout))

        past = [values[later : later + memory] for values in history]
        jacobians = jacrev(one_step)(past)  # [to component][from component] [H, M, 1, H]
        for delay in range(1, min(memory, later - first) + 1):
            for to in range(components):
                for source in range(components):
                    factors[later - delay, source, later, to] = jacobians[to][source][:, memory - delay, 0].detach()
    return factors


def _full(layer: RecurrentLayer, input: Tensor, first: int, last: int) -> Tensor:  # [H, H]
    """Return the full derivative by backpropagation through the layer's own call."""
    probes: list[Tensor] = []

    def new(_: int, steps: int, batch: int) -> tuple[Tensor, ...]:
        zero = input.new_zeros(())
        probes.extend(zero.expand(steps, batch, layer.hidden_size).requires_grad_() for _ in layer.cell.state)
        return tuple(probes)

    with torch.enable_grad(), layer.probed(new):
        output, _ = layer(input)
    rows = [torch.autograd.grad(value, probes[0], retain_graph=True)[0][first, 0] for value in output[last]]
    return torch.stack(rows).detach()
