"""Paths between time steps: against breadth-first search, the paper's claims, and speed."""

import math
import time
import tracemalloc
from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mistrnn import GRU, LSTM, MIST, NARX, RNN, Clockwork
from mistrnn.analysis import (
    clockwork_log10_path_counts,
    clockwork_path_lengths,
    clockwork_shortest_path,
    count_paths,
    edges_of,
    log10_path_counts,
    shortest_path,
    shortest_path_lengths,
    shortest_paths,
    suggest_delays,
)

delay_sets = st.lists(st.integers(1, 40), min_size=1, max_size=6)


def searched(delays: list[int], max_tau: int) -> list[int]:
    """Breadth-first, one edge after the other."""
    lengths = [0] + [-1] * max_tau
    front, edges = {0}, 0
    while front:
        edges += 1
        front = {at + d for at in front for d in delays if at + d <= max_tau and lengths[at + d] == -1}
        for at in front:
            lengths[at] = edges
    return lengths


@given(delay_sets, st.integers(1, 150))
def test_lengths_equal_a_search(delays: list[int], max_tau: int) -> None:
    assert shortest_path_lengths(delays, max_tau).tolist() == searched(delays, max_tau)


@given(delay_sets, st.integers(1, 150))
def test_paths_are_paths_and_as_short_as_said(delays: list[int], max_tau: int) -> None:
    found = shortest_paths(delays, max_tau)
    for tau in range(1, max_tau + 1):
        if found.lengths[tau] == -1:
            with pytest.raises(ValueError, match=f"expected delays that add up to tau = {tau}"):
                found.path(tau)
            continue
        path = found.path(tau)
        assert path[0] == -tau
        assert path[-1] == 0
        assert {later - earlier for earlier, later in pairwise(path)} <= set(delays)
        assert len(path) - 1 == found.lengths[tau]
    if found.lengths[max_tau] != -1:
        assert shortest_path(delays, max_tau) == found.path(max_tau)


@given(delay_sets, st.integers(1, 150), st.integers(1, 3))
def test_counts_equal_an_enumeration_and_their_logarithms(delays: list[int], max_tau: int, components: int) -> None:
    exact = [0 if tau else 1 for tau in range(max_tau + 1)]
    for tau in range(1, max_tau + 1):  # paths with their last edge taken off, whichever it is
        exact[tau] = sum(exact[tau - d] * (components if tau > d else 1) for d in set(delays) if d <= tau)
    logs = log10_path_counts(delays, max_tau, components)
    assert count_paths(delays, max_tau, components) == exact[max_tau]
    for tau, number in enumerate(exact):
        assert logs[tau] == pytest.approx(math.log10(number), abs=1e-9) if number else logs[tau] == -math.inf


def test_counts_of_small_numbers_are_those_one_can_list() -> None:
    def listed(tau: int, delays: tuple[int, ...]) -> int:
        return 1 if tau == 0 else sum(listed(tau - d, delays) for d in delays if d <= tau)

    assert [count_paths([1, 2, 4], tau) for tau in range(1, 12)] == [listed(tau, (1, 2, 4)) for tau in range(1, 12)]


def test_counts_that_differ_by_hundreds_of_digits_are_all_seen() -> None:
    logs = log10_path_counts([2, 4, 4001], 5_000)
    assert logs[4001] == pytest.approx(
        0.0, abs=1e-9
    )  # odd sums need the long delay, and even ones are 10^800 times as many
    assert logs[4999] == pytest.approx(math.log10(count_paths([2, 4, 4001], 4999)), rel=1e-9)
    assert logs[3999] == -math.inf


def test_delays_longer_than_tau_cost_nothing() -> None:
    tracemalloc.start()
    assert shortest_path_lengths([1, 2 * 10**9], 10).tolist() == list(range(11))
    assert log10_path_counts([1, 2 * 10**9], 10)[10] == pytest.approx(0.0, abs=1e-9)
    shortest_paths([1, 20_000], 40_000)
    assert log10_path_counts([1, 20_000], 40_000)[20_001] == pytest.approx(math.log10(3))
    assert tracemalloc.get_traced_memory()[1] < 50_000_000
    tracemalloc.stop()


def test_the_papers_claims_about_lengths() -> None:
    taus = np.arange(5_001)
    assert np.array_equal(shortest_path_lengths(edges_of(RNN(1, 2)), 5_000), taus)
    assert np.array_equal(shortest_path_lengths(edges_of(LSTM(1, 2)), 5_000), taus)
    assert np.array_equal(shortest_path_lengths(edges_of(GRU(1, 2)), 5_000), taus)
    for count in (2, 3, 8):
        lengths = shortest_path_lengths(edges_of(NARX(1, 2, delays=count)), 5_000)
        assert np.array_equal(lengths, -(-taus // count))
    for count in (1, 5, 8):
        longest = 2 ** (count - 1)
        lengths = shortest_path_lengths(edges_of(MIST(1, 2, delays=count)), 5_000)
        within, beyond = taus[1 : longest + 1], taus[longest + 1 :]
        assert np.all(lengths[within] <= np.log2(within) + 1)
        assert np.all(lengths[2 ** np.arange(count)] == 1)
        assert np.all(lengths[beyond] >= beyond / longest)
        assert np.all(lengths[beyond] <= beyond / longest + count - 1)  # "about tau / 2^(n_d - 1)"


def test_edges_of_a_layer() -> None:
    assert edges_of(MIST(1, 2, delays=[8, 2])) == (1, 2, 8)  # the gates read the last state
    assert edges_of(NARX(1, 2, delays=[8, 2])) == (2, 8)
    assert edges_of(NARX(1, 2, 2, delays=[8, 2], bidirectional=True, device="meta")) == (2, 8)
    assert edges_of(NARX(1, 2, delays=[8, 2], zoneout=0.3)) == (1, 2, 8)  # it keeps a share of the last state
    with pytest.raises(
        ValueError, match="expected a layer with the same edges at all steps; see clockwork_path_lengths"
    ):
        edges_of(Clockwork(1, 8))


def clockwork_searched(periods: list[int], max_tau: int, end: int) -> list[list[int]]:
    """Over (group, time), where a tick costs an edge and reads the groups that are as slow or slower."""
    best = [[math.inf] * (max_tau + 1) for _ in periods]
    for source in range(len(periods)):
        for tau in range(max_tau + 1):
            cost = {source: 0.0}
            for t in range(end - tau + 1, end + 1):
                after: dict[int, float] = {}
                for group, spent in cost.items():
                    for to, period in enumerate(periods):
                        if t % period == 0 and period <= periods[group]:
                            after[to] = min(after.get(to, math.inf), spent + 1)
                        elif t % period and to == group:
                            after[to] = min(after.get(to, math.inf), spent)
                cost = after
            best[source][tau] = min(cost.values())
    return [[int(value) for value in row] for row in best]


@given(st.lists(st.integers(1, 7), min_size=1, max_size=3, unique=True), st.integers(1, 20), st.integers(0, 9))
def test_clockwork_lengths_equal_a_search_over_groups(periods: list[int], max_tau: int, later: int) -> None:
    found = clockwork_path_lengths(periods, max_tau, max_tau + later)
    assert found.tolist() == clockwork_searched(periods, max_tau, max_tau + later)
    for group, period in enumerate(periods):
        path = clockwork_shortest_path(periods, group, max_tau, max_tau + later)
        assert len(path) - 1 == found[group, max_tau]
        assert path[0] == later
        assert all(tick % period == 0 and later < tick <= max_tau + later for tick in path[1:])


@given(st.lists(st.integers(1, 5), min_size=1, max_size=3, unique=True), st.integers(1, 7), st.integers(0, 4))
def test_clockwork_counts_equal_an_enumeration(periods: list[int], max_tau: int, later: int) -> None:
    end = max_tau + later

    def paths(group: int, t: int) -> int:
        """Every way from a group at step t to the end."""
        if t == end:
            return 1
        onward = [to for to, p in enumerate(periods) if (t + 1) % p == 0 and p <= periods[group]]
        stays = [group] if (t + 1) % periods[group] else []
        return sum(paths(to, t + 1) for to in onward + stays)

    logs = clockwork_log10_path_counts(periods, max_tau, end)
    for group in range(len(periods)):
        for tau in range(max_tau + 1):
            assert 10 ** logs[group, tau] == pytest.approx(paths(group, end - tau))


def test_a_million_steps_are_fast() -> None:
    for delays in ([1], [2**k for k in range(8)], [1, 4096], [3, 5, 1000]):
        start = time.perf_counter()
        found = shortest_paths(delays, 1_000_000)
        log10_path_counts(delays, 1_000_000)
        assert time.perf_counter() - start < 20  # 0.1 to 2 s were seen
        assert len(found.path(1_000_000)) - 1 == found.lengths[-1]
    assert shortest_path_lengths([2**k for k in range(8)], 1_000_000)[-1] == 7813  # 7812 * 128 + 64


@pytest.mark.parametrize(("horizon", "count"), [(10, 2), (24, 3), (30, 3), (18, 4)])
def test_suggested_delays_are_the_best_where_all_can_be_tried(horizon: int, count: int) -> None:
    best = min(searched_longest((1, *others), horizon) for others in combinations(range(2, horizon + 1), count - 1))
    found = suggest_delays(horizon, count)
    assert len(found) == count
    assert searched_longest(found, horizon) == best


def searched_longest(delays: tuple[int, ...], horizon: int) -> int:
    return max(searched(list(delays), horizon))


@pytest.mark.parametrize(("horizon", "count"), [(100, 5), (784, 8), (3_000, 4)])
def test_suggested_delays_are_shorter_than_powers_of_two(horizon: int, count: int) -> None:
    found = suggest_delays(horizon, count)
    assert len(set(found)) == count
    assert found[0] == 1
    ours, powers = (shortest_path_lengths(d, horizon).max() for d in (found, [2**k for k in range(count)]))
    assert ours < powers


def test_suggestions_at_the_edges() -> None:
    assert suggest_delays(1, 1) == (1,)
    assert suggest_delays(100, 1) == (1,)
    assert suggest_delays(5, 9) == (1, 2, 3, 4, 5)


def test_bad_input_is_named() -> None:
    for tau in (0, -3, 2.5, True):
        with pytest.raises(ValueError, match=r"expected tau to be a whole number >= 1, got"):
            shortest_path_lengths([1, 2], tau)  # type: ignore[arg-type]
    for delays in ([], [0], [1, -2], [1.5], ["1"]):
        with pytest.raises(ValueError, match="expected delays to be whole numbers >= 1, at least one of them, got"):
            shortest_path_lengths(delays, 5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"expected delays that add up to tau = 7, got \[2, 4\], which do not"):
        shortest_path([2, 4], 7)
    with pytest.raises(ValueError, match="expected tau <= 10, up to which paths are known, got 11"):
        shortest_paths([1], 10).path(11)
    with pytest.raises(ValueError, match="expected components >= 1, got 0"):
        count_paths([1], 4, components=0)
    with pytest.raises(ValueError, match="expected components >= 1, got 0"):
        log10_path_counts([1], 4, components=0)
    with pytest.raises(ValueError, match="expected end >= 9, because so many steps lie before it, got 8"):
        clockwork_path_lengths([1, 2], 9, end=8)
    with pytest.raises(ValueError, match=r"expected distinct periods, got \[2, 2\]"):
        clockwork_path_lengths([2, 2], 9)
    with pytest.raises(ValueError, match="expected a group from 0 to 1, one for each of the periods, got 2"):
        clockwork_shortest_path([1, 2], 2, 9)
    with pytest.raises(TypeError, match="edges_of: expected a layer of mistrnn, got int"):
        edges_of(3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="expected periods to be whole numbers"):
        clockwork_path_lengths([0], 9)
    with pytest.raises(ValueError, match="suggest_delays: expected count to be a whole number >= 1, got 0"):
        suggest_delays(10, 0)
