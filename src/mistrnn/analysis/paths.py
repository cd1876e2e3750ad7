"""Paths between time steps: how many edges lie between a state and the ones tau steps later.

A state reads the states of some delays ago. Each such connection is an edge, and gradients travel back along paths of them: a
path's share of the derivative is a product with a factor for each edge (`mistrnn.analysis.ordered`), so that short paths
keep gradients alive. A simple RNN, an LSTM and a GRU have the one delay 1, MIST and NARX their `delays`. Zoneout, which keeps
some of the last state, adds the delay 1 to any.

Everything is for all tau from 0 to some largest at once, as an array with the index tau.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import combinations, islice
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mistrnn.layers import Clockwork, RecurrentLayer
from mistrnn.layers.backends import project
from mistrnn.layers.recurrence import StateHistory, advance

Integers = NDArray[np.int64]

UNREACHABLE = -1
EXHAUSTIVE = 20_000
"""Up to so many sets of delays are tried out one by one; of more, `suggest_delays` searches a part."""
LONGEST_IN_BLOCKS = 4096
"""Up to this delay, counts are computed in blocks, whose matrices grow with its square."""
CANDIDATES, WORK = 512, 2_000_000
"""Values that `suggest_delays` tries for a delay: as many, or for a long horizon fewer, WORK / horizon."""


def edges_of(layer: RecurrentLayer) -> tuple[int, ...]:
    """Return the delays of a layer's direct connections, its own step's and zoneout's.

    >>> from mistrnn import MIST
    >>> edges_of(MIST(1, 4, delays=[3, 5]))  # its gates read the last state, whatever the delays
    (1, 3, 5)
    """
    if not isinstance(layer, RecurrentLayer):
        raise TypeError(f"edges_of: expected a layer of mistrnn, got {type(layer).__name__}.")
    if isinstance(layer, Clockwork):
        raise ValueError("edges_of: expected a layer with the same edges at all steps; see clockwork_path_lengths.")
    return delays_read(layer)


@torch.no_grad()
def delays_read(layer: RecurrentLayer) -> tuple[int, ...]:
    """Return how many steps ago the states are that a step of the layer reads: whatever it asks its past for, once it runs."""
    weights = layer.cell_weights(0, 0)
    like = next(layer.parameters())
    x = project(like.new_zeros(1, layer.input_size), weights)
    past = _NotedPast(like.new_zeros(1, layer.hidden_size), len(layer.cell.state))
    if layer.cell.has_clock:
        past.clock = torch.zeros(1, dtype=torch.int64, device=like.device)
    advance(layer.step(weights), x, past, float(layer.zoneout) or None)
    return tuple(sorted(past.delays))


class _NotedPast(StateHistory):
    """A past of zeros, as long as one likes, that notes which delays a step reads."""

    def __init__(self, zero: Tensor, components: int) -> None:
        super().__init__([zero.unsqueeze(0)] * components)
        self.delays: set[int] = set()

    def __call__(self, delay: int, component: int = 0) -> Tensor:
        self.delays.add(delay)
        return super().__call__(1, component)


@dataclass(frozen=True)
class ShortestPaths:
    """The shortest paths between a state and the ones up to max_tau steps later."""

    lengths: Integers
    """[max_tau + 1] edges; -1 where no path leads."""
    last_edge: Integers
    """[max_tau + 1] the delay of the last edge of one shortest path, the longest there is; 0 where there is none."""

    def path(self, tau: int) -> list[int]:
        """Return the times on one shortest path, from -tau to 0.

        >>> shortest_paths([1, 2, 4, 8], 20).path(13)
        [-13, -12, -8, 0]
        """
        _check_tau(tau, len(self.lengths) - 1)
        if self.lengths[tau] == UNREACHABLE:
            raise ValueError(f"expected delays that add up to tau = {tau}, and these do not.")
        times = [0]
        while times[-1] > -tau:
            times.append(times[-1] - int(self.last_edge[tau + times[-1]]))
        return times[::-1]


def shortest_paths(delays: Sequence[int], max_tau: int) -> ShortestPaths:
    """Return the shortest paths for every tau up to max_tau.

    >>> shortest_paths([1, 2, 4, 8], 20).lengths[15]  # 15 = 8 + 4 + 2 + 1
    np.int64(4)
    """
    delays = _checked(delays)
    lengths = shortest_path_lengths(delays, max_tau)
    last_edge = np.zeros(max_tau + 1, dtype=np.int64)
    for delay in delays:  # the longest comes last
        if delay <= max_tau:
            reached = (lengths[delay:] > 0) & (lengths[:-delay] == lengths[delay:] - 1)
            last_edge[delay:][reached] = delay
    return ShortestPaths(lengths, last_edge)


def shortest_path_lengths(delays: Sequence[int], max_tau: int) -> Integers:  # [max_tau + 1]
    """Return how many edges the shortest path over tau steps has; -1 where the delays do not add up to tau.

    >>> shortest_path_lengths([1, 2, 4], 10)
    array([0, 1, 1, 2, 1, 2, 2, 3, 2, 3, 3])
    >>> shortest_path_lengths([1], 3)  # a simple RNN, or an LSTM
    array([0, 1, 2, 3])
    """
    delays = _checked(delays)
    _check_tau(max_tau)
    lengths = reduce(_with_delay, delays, _no_path(max_tau))
    return np.where(lengths > max_tau, UNREACHABLE, lengths)


def _no_path(max_tau: int) -> Integers:
    """Return the lengths without any edge: 0 over no step, and more than there can be elsewhere."""
    lengths = np.full(max_tau + 1, 2 * max_tau + 2, dtype=np.int64)
    lengths[0] = 0
    return lengths


def _with_delay(lengths: Integers, delay: int) -> Integers:
    """Return the shortest lengths when one more delay is there, as often as one likes.

    The best over k uses of it is min over k of lengths[tau - k * delay] + k: a running minimum, along every delay-th tau.
    """
    if delay >= len(lengths):
        return lengths
    rows = -(-len(lengths) // delay)
    padded = np.full(rows * delay, lengths.max(), dtype=np.int64)
    padded[: len(lengths)] = lengths
    uses = np.arange(rows)[:, None]
    table: Integers = np.minimum.accumulate(padded.reshape(rows, delay) - uses, axis=0) + uses
    return table.reshape(-1)[: len(lengths)]


def shortest_path(delays: Sequence[int], tau: int) -> list[int]:
    """Return the times on one shortest path, from -tau to 0."""
    delays = _checked(delays)
    _check_tau(tau)
    found = shortest_paths(delays, tau)
    if found.lengths[tau] == UNREACHABLE:
        raise ValueError(f"expected delays that add up to tau = {tau}, got {list(delays)}, which do not.")
    return found.path(tau)


def count_paths(delays: Sequence[int], tau: int, components: int = 1) -> int:
    """Return the exact number of paths over tau steps: of the terms that the full derivative is a sum of.

    components: how many vectors a state has, all of which read all of them (2 in an LSTM, h and c); the paths counted
    lead from one of them to one of them.

    >>> count_paths([1, 2], 10)  # Fibonacci's numbers
    89
    >>> count_paths([1], 10), count_paths([1], 10, components=2)
    (1, 512)
    """
    delays = _checked(delays)
    _check_tau(tau)
    if components < 1:
        raise ValueError(f"expected components >= 1, got {components}.")
    counts = [1]
    for later in range(1, tau + 1):
        total = sum(counts[later - delay] for delay in delays if delay <= later)
        counts.append(total * components)
    return counts[tau] // components


def log10_path_counts(delays: Sequence[int], max_tau: int, components: int = 1) -> NDArray[np.float64]:  # [max_tau + 1]
    """Return log10 of the number of paths for every tau, -inf where there is none; the numbers grow exponentially.

    A second or less for a million steps with delays up to 4096, 1 among them; some seconds otherwise.

    >>> 10 ** log10_path_counts([1, 2], 5)
    array([1., 1., 2., 3., 5., 8.])
    """
    delays = _checked(delays)
    _check_tau(max_tau)
    if components < 1:
        raise ValueError(f"expected components >= 1, got {components}.")
    edges = [delay for delay in delays if delay <= max_tau]
    by_blocks = 1 in edges and edges[-1] <= LONGEST_IN_BLOCKS
    return (
        _counts_by_blocks(edges, max_tau, components) if by_blocks else _counts_one_by_one(edges, max_tau, components)
    )


def _counts_by_blocks(edges: Sequence[int], max_tau: int, components: int) -> NDArray[np.float64]:
    """Return log10 of the counts; with a delay of 1 they never fall, so that a block can share one scale.

    A block of counts is a matrix times the counts before it; short enough that float64 holds its growth, which is at most
    (1 + components)-fold at a step.
    """
    longest, block = edges[-1], int(900 / math.log2(1 + components))
    matrix = np.zeros((longest + block, longest))
    matrix[:longest] = np.eye(longest)
    for row in range(longest, longest + block):
        matrix[row] = components * sum(matrix[row - delay] for delay in edges)
    matrix = matrix[longest:]
    logs = np.zeros(max_tau + 1 + block)
    before, scale = np.zeros(longest), 0.0
    before[-1] = 1.0
    for begin in range(1, max_tau + 1, block):
        counts = matrix @ before
        logs[begin : begin + block] = np.log10(counts) + scale
        before = np.concatenate([before, counts])[-longest:]
        largest = before.max()
        before, scale = before / largest, scale + math.log10(largest)
    logs[1:] -= math.log10(components)
    return logs[: max_tau + 1]


def _counts_one_by_one(edges: Sequence[int], max_tau: int, components: int) -> NDArray[np.float64]:
    """Return log10 of the counts, each with a scale of its own: neighbours may differ by any number of digits."""
    logs = np.full(max_tau + 1, -math.inf)
    logs[0] = 0.0
    numbers, powers = [1.0] + [0.0] * max_tau, [0] * (max_tau + 1)  # the count is number * 2^power
    for tau in range(1, max_tau + 1):
        terms = [(numbers[tau - d], powers[tau - d]) for d in edges if d <= tau and numbers[tau - d]]
        if not terms:
            continue
        largest = max(power for _, power in terms)
        total = sum(math.ldexp(number, power - largest) for number, power in terms)
        numbers[tau], extra = math.frexp(components * total)
        powers[tau] = largest + extra
        logs[tau] = math.log10(numbers[tau]) + powers[tau] * math.log10(2) - math.log10(components)
    return logs


def clockwork_path_lengths(periods: Sequence[int], max_tau: int, end: int | None = None) -> Integers:
    """Return the edges of the shortest paths in a Clockwork RNN, [periods, max_tau + 1]: from each group to the state at `end`.

    An edge is an update, with its matrix and its tanh; a group that does not tick is passed on as it is. A group can be
    read only by groups of equal or shorter period, which tick at least as often, so that the shortest path stays in the
    group and takes its ticks. That depends on the clock: `end` is the step that the loss belongs to, counted from 0 at
    the start of a sequence (max_tau if left out).

    >>> clockwork_path_lengths([1, 4], 8)
    array([[0, 1, 2, 3, 4, 5, 6, 7, 8],
           [0, 1, 1, 1, 1, 2, 2, 2, 2]])
    """
    end = _checked_clock(periods, max_tau, end)
    starts = end - np.arange(max_tau + 1)
    return np.stack([end // period - starts // period for period in periods])


def clockwork_shortest_path(periods: Sequence[int], group: int, tau: int, end: int | None = None) -> list[int]:
    """Return the times of one shortest path from a group (by its place in `periods`): its start, and its ticks after that.

    >>> clockwork_shortest_path([1, 4], group=1, tau=10, end=17)
    [7, 8, 12, 16]
    """
    end = _checked_clock(periods, tau, end)
    if not 0 <= group < len(periods):
        raise ValueError(f"expected a group from 0 to {len(periods) - 1}, one for each of the periods, got {group}.")
    period, start = periods[group], end - tau
    return [start, *range((start // period + 1) * period, end + 1, period)]


def clockwork_log10_path_counts(
    periods: Sequence[int], max_tau: int, end: int | None = None
) -> NDArray[np.float64]:  # [periods, max_tau + 1]
    """Return log10 of the number of paths from each group to the state at `end`, through any groups.

    >>> 10 ** clockwork_log10_path_counts([1, 2], 4)
    array([[1., 1., 1., 1., 1.],
           [1., 2., 3., 4., 5.]])
    """
    end = _checked_clock(periods, max_tau, end)
    own = np.array(periods)
    readers = own[:, None] <= own  # [to, from] a group reads those of equal or longer period
    logs = np.zeros((max_tau + 1, len(own)))
    with np.errstate(divide="ignore"):
        allowed = np.log(readers.astype(float))
        for tau in range(1, max_tau + 1):
            ticks = (end - tau + 1) % own == 0
            onward = np.where(ticks[:, None], logs[tau - 1][:, None] + allowed, -np.inf)  # [to, from]
            kept = np.where(ticks, -np.inf, logs[tau - 1])
            logs[tau] = np.logaddexp(np.logaddexp.reduce(onward, axis=0), kept)
    return logs.T / math.log(10)


def _checked_clock(periods: Sequence[int], tau: int, end: int | None) -> int:
    """Return the step at which the paths end."""
    if len(_checked(periods, "periods")) < len(periods):
        raise ValueError(f"expected distinct periods, got {list(periods)}.")
    _check_tau(tau)
    end = tau if end is None else end
    if end < tau:
        raise ValueError(f"expected end >= {tau}, because so many steps lie before it, got {end}.")
    return end


def suggest_delays(horizon: int, count: int) -> tuple[int, ...]:
    """Return delays that keep the longest shortest path to any of `horizon` steps small.

    Among equals, the shorter paths are on average, the better. All sets are compared where there are at most 20,000 of
    them, and the result is then the best there is; beyond, delays are improved one at a time from several starts, powers
    of two among them, and the result is never worse than those. That takes some seconds up to 100,000 steps, and a minute
    for a million.

    >>> suggest_delays(24, 3)
    (1, 5, 8)
    >>> int(shortest_path_lengths((1, 5, 8), 24).max()), int(shortest_path_lengths((1, 2, 4), 24).max())
    (4, 7)
    """
    for name, value in (("horizon", horizon), ("count", count)):
        if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < 1:
            raise ValueError(f"suggest_delays: expected {name} to be a whole number >= 1, got {value!r}.")
    if count >= horizon:
        return tuple(range(1, horizon + 1))

    def cost(lengths: Integers) -> tuple[int, float]:
        return int(lengths.max()), float(lengths.mean())

    start = _with_delay(_no_path(horizon), 1)  # without delay 1 a single step has no path
    if math.comb(horizon - 1, count - 1) <= EXHAUSTIVE:
        others = combinations(range(2, horizon + 1), count - 1)
        return min(((1, *chosen) for chosen in others), key=lambda d: cost(reduce(_with_delay, d[1:], start)))
    best = min(
        (_improved(list(chosen), horizon, start, cost) for chosen in _starts(horizon, count)), key=lambda pair: pair[0]
    )
    return best[1]


def _starts(horizon: int, count: int) -> Iterator[tuple[int, ...]]:
    """Give sets of delays to improve: powers of two, and powers that end at several shares of the horizon."""
    powers = [2**k for k in range(count) if 2**k <= horizon]
    others = (number for number in range(2, horizon + 1) if number not in powers)
    yield tuple(sorted([*powers, *islice(others, count - len(powers))]))
    for last in (horizon / share for share in (2, 4, 8, 16, 32)):
        base = max(last, count) ** (1 / max(1, count - 1))
        delays: list[int] = []
        for k in range(count):
            delays.append(max(round(base**k), delays[-1] + 1 if delays else 1))
        if delays[-1] <= horizon:
            yield tuple(delays)
    yield tuple(range(1, count + 1))


def _improved(delays: list[int], horizon: int, start: Integers, cost: Any) -> tuple[Any, tuple[int, ...]]:
    """Move one delay at a time to its best place until none moves."""
    tried = max(24, min(CANDIDATES, WORK // horizon))
    spaced = np.unique(np.geomspace(2, horizon, tried).round().astype(np.int64))
    candidates = range(2, horizon + 1) if horizon <= tried else spaced.tolist()
    best = cost(reduce(_with_delay, delays[1:], start))
    moved = True
    while moved:
        moved = False
        for k in range(1, len(delays)):
            others = delays[:k] + delays[k + 1 :]
            without = reduce(_with_delay, others[1:], start)
            near = range(max(2, delays[k] - 3), min(horizon, delays[k] + 3) + 1)
            for value in {*candidates, *near} - set(others):
                found = cost(_with_delay(without, int(value)))
                if found < best:
                    best, delays[k], moved = found, int(value), True
    return best, tuple(sorted(delays))


def _checked(delays: Sequence[int], name: str = "delays") -> tuple[int, ...]:
    whole = [isinstance(d, int | np.integer) and not isinstance(d, bool) and d >= 1 for d in delays]
    if not whole or not all(whole):
        raise ValueError(f"expected {name} to be whole numbers >= 1, at least one of them, got {list(delays)}.")
    return tuple(sorted({int(d) for d in delays}))


def _check_tau(tau: int, largest: int | None = None) -> None:
    if not isinstance(tau, int | np.integer) or isinstance(tau, bool) or tau < 1:
        raise ValueError(f"expected tau to be a whole number >= 1, got {tau!r}.")
    if largest is not None and tau > largest:
        raise ValueError(f"expected tau <= {largest}, up to which paths are known, got {tau}.")
