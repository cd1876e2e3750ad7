"""Which launch a GPU kernel gets: how many sequences a block takes, how many blocks share the units."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache, lru_cache

import torch

from mistrnn.kernels._outer import OuterOfGroups, OuterOfWarps, OuterVariant
from mistrnn.kernels._variant import OLDEST_WITH_CLUSTERS, Launch, Problem, Variant, block_memory
from mistrnn.kernels._wide import GENERATION_WITH_GROUPS, WideVariant, is_grouped, serves, wide_variant

CLUSTERS = (1, 2, 4, 8)
LARGE_CLUSTER, FEW_WARPS, MOST_WARPS = 8, 4, 16
"""Measured on an H200, 2026-11-15: benchmarks/results/gpu.md. Larger clusters and blocks of 16 sequences were slower."""

AT_LEAST = {("lstm", 139): 3, ("narx", 64): 2}
"""Blocks that share the units of known layers even if all multiprocessors are busy: same place, 2026-11-16."""

MOST_BLOCKS_ALONE = {2: 1, 3: 3}
"""Blocks of one sequence, for each multiprocessor, that are faster than blocks of eight, by parts: same place, 2026-11-16."""
MOST_OF_ONE_GATE_ALONE = {2: 1, 3: 4}
"""The same of the cells with one gate; measured with RNN 198."""


MANY = {"mist": (512, 3 * 2**26), "lstm": (256, 3 * 2**25)}
"""Units, and multiply-adds of one matrix in a step of all trials, from which on they advance together: 2026-11-16."""
WARPS_ALONE = 2
"""About so many times as many are needed where groups of warps cannot multiply together: same place."""


def choose(
    problem: Problem, trials: int, batch: int, device: torch.device, cluster: int | None = None
) -> Variant | WideVariant:
    """Return the variant for a problem on a device; it is told the cluster if there are records of a run forwards."""
    capability = capability_of(device)
    if cluster == 0 or (
        cluster is None and serves(problem, capability) and are_many(problem, trials * batch, capability)
    ):
        wide = wide_variant(problem, trials, batch, capability, multiprocessors(device))
        if cluster == 0 or wide.fits:
            return wide
    if cluster is None:
        cluster = spread(problem, trials * -(-batch // Launch.rows), device)
    found = fitting(problem, capability, cluster)
    blocks = trials * batch * found.launch.cluster
    if serves_one(found) and blocks <= most_alone(problem) * multiprocessors(device):
        return alone(found)
    return found


def are_many(problem: Problem, sequences: int, capability: int) -> bool:
    """Return whether so many sequences of all trials are faster when they advance together."""
    units, products = MANY[problem.cell]
    least = products if is_grouped(problem, capability) else WARPS_ALONE * products
    return problem.hidden >= units and sequences * problem.hidden**2 >= least


def serves_one(variant: Variant) -> bool:
    """Return whether sequences can have blocks of their own: forwards, in float32, a unit a thread."""
    return not variant.problem.backward and variant.problem.parts in MOST_BLOCKS_ALONE and variant.launch.stack == 1


def most_alone(problem: Problem) -> int:
    """Return how many blocks of one sequence a multiprocessor may have to go through."""
    return (MOST_OF_ONE_GATE_ALONE if problem.cell in ("rnn", "clockwork") else MOST_BLOCKS_ALONE)[problem.parts]


@cache
def alone(variant: Variant) -> Variant:
    """Return the variant whose blocks have one sequence each; the records stay where they are."""
    found = replace(variant, launch=replace(variant.launch, rows=1))
    few = found.warps <= FEW_WARPS and not variant.problem.norm  # as in `fitting`
    if few and any(shape.wide > 4 / 3 * shape.in_registers for shape in found.shapes):
        return replace(found, launch=replace(found.launch, ranges=2))  # twice the registers
    return found


def spread(problem: Problem, groups: int, device: torch.device) -> int:
    """Return how many blocks share the units, at least: while multiprocessors are idle, each warp gets a scheduler alone."""
    if not problem.parts or capability_of(device) < OLDEST_WITH_CLUSTERS:
        return 1
    wanted = -(-problem.hidden // (16 * FEW_WARPS))
    idle = min(wanted, max(CLUSTERS), multiprocessors(device) // max(1, groups))
    # A number, though torch.compile may have only a name for it.
    return max(AT_LEAST.get((problem.cell, problem.hidden), 1), int(idle))


@cache
def fitting(problem: Problem, capability: int, least: int = 1) -> Variant:
    """Return the smallest cluster from `least` on that holds all weights, or else the largest."""
    clusters = CLUSTERS if capability >= OLDEST_WITH_CLUSTERS else (1,)
    found = None
    for cluster in sorted({least, *(size for size in clusters if size > least)}):
        if cluster > max(1, least) and problem.hidden < 16 * cluster:
            break
        stack = 1
        while -(-problem.hidden // (16 * stack * cluster)) > MOST_WARPS:
            stack += 1
        launch = Launch(cluster=cluster, stack=stack)
        found = Variant(problem, launch, capability)
        # Few warps take long for a long sum: more of them share it. Layer norm has barriers of its own, which they miss.
        if cluster >= LARGE_CLUSTER and found.warps <= FEW_WARPS and problem.parts and not problem.norm:
            launch = replace(launch, ranges=2)
            found = Variant(problem, launch, capability)
        # Both directions share their records, so that one choice serves both.
        both = [Variant(replace(problem, backward=way, save=True), launch, capability) for way in (False, True)]
        fits = all(variant.shared_memory <= block_memory(capability) for variant in both)
        if fits and (problem.parts == 0 or not any(variant.streamed or variant.cramped for variant in both)):
            return found
    assert found is not None
    return found


@cache
def capability_of(device: torch.device) -> int:
    """Return a GPU's compute capability, times ten."""
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor


@cache
def multiprocessors(device: torch.device) -> int:
    """Return how many multiprocessors a GPU has."""
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


MOST_SUMS = {1: 108, 2: 108, 3: 64}
"""Of a thread that multiplies for a weight gradient, by parts: for so many there are registers, found by compiling."""
MOST_TILES_DOWN, MOST_PLACES, MOST_PLACES_WITH_DELAYS = 3, 384, {1: 320, 2: 320, 3: 256}
"""... and of its tiles along the tall operand, and of both operands' numbers that a block reads."""
OUTER_WARPS = ((8, 1), (4, 2), (2, 4), (4, 1), (2, 2), (1, 4), (2, 1), (1, 1))


MOST_TILES_OF_GROUPS = {False: {1: 32, 2: 32, 3: 22}, True: {1: 32, 2: 28}}
"""Of the wide operand, without and with delays of the tall one, by groups of a block: found by compiling, too."""


@cache
def outer_choice(parts: int, rows: int, columns: int, delays: bool, capability: int) -> tuple[bool, OuterVariant]:
    """Return the kernel for a weight gradient of this size, and whether it takes the columns for the tall operand."""
    grouped = capability == GENERATION_WITH_GROUPS and parts < 3
    found = list(_of_groups(parts, delays, capability) if grouped else _of_warps(parts, delays, capability))
    ways = (True,) if delays else (False, True)  # only the tall operand, here the columns, can have delays
    return min(
        ((turned, variant) for turned in ways for variant in found),
        key=lambda pair: pair[1].cycles * pair[1].blocks(*((columns, rows) if pair[0] else (rows, columns))),
    )


def _of_warps(parts: int, delays: bool, capability: int) -> Iterator[OuterVariant]:
    most = MOST_PLACES_WITH_DELAYS[parts] if delays else MOST_PLACES
    for warps in OUTER_WARPS:
        for down in range(1, MOST_TILES_DOWN + 1):
            for across in range(1, MOST_SUMS[parts] // (4 * down) + 1):
                variant = OuterOfWarps(parts, delays, capability, warps, (down, across))
                if sum(variant.places) <= most and variant.stages > 1:
                    yield variant


def _of_groups(parts: int, delays: bool, capability: int) -> Iterator[OuterVariant]:
    for groups, most in MOST_TILES_OF_GROUPS[delays].items():
        for tiles in range(1, most + 1):
            variant = OuterOfGroups(parts, delays, capability, groups, tiles)
            if variant.stages > 2:
                yield variant


@lru_cache(maxsize=1024)  # sequences of ever new lengths would fill the memory
def ranges_of(depth: int, blocks: int, device: torch.device) -> tuple[int, int]:
    """Return into how many ranges the sum of a weight gradient is cut, and how long they are: all multiprocessors work.

    On an H200 a block takes 5 ms for 80,000 steps and sequences, and its result is written and read in 40 ns.
    """
    count = multiprocessors(device)
    most = max(1, min(128, depth // 256))
    ranges = min(range(1, most + 1), key=lambda n: (-(-blocks * n // count) / n + 8e-6 * blocks * n, n))
    per_range = -(-depth // ranges // 16) * 16
    return -(-depth // per_range), per_range
