"""Choice of kernel family and launch configuration. The numbers were measured: benchmarks/results/gpu.md."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache, lru_cache

import torch

from mistrnn.kernels.contract import SavedLayout
from mistrnn.kernels.cuda.persistent.variant import Launch, Variant
from mistrnn.kernels.cuda.problem import Problem
from mistrnn.kernels.cuda.program import OLDEST_WITH_CLUSTERS, block_memory
from mistrnn.kernels.cuda.stepwise.variant import (
    CAPABILITY_WITH_WGMMA,
    StepwiseVariant,
    serves,
    stepwise_variant,
    uses_wgmma,
)
from mistrnn.kernels.cuda.wgrad.variant import WarpgroupWgrad, WarpWgrad, WgradVariant

CLUSTERS = (1, 2, 4, 8)
LARGE_CLUSTER, FEW_WARPS, MAX_WARPS = 8, 4, 16
"""Measured on an H200, 2026-11-15. Larger clusters and blocks of 16 sequences were slower."""

MACS_FACTOR_WITHOUT_WGMMA = 2
"""Factor on `StepwiseKernels.min_macs` where single warps multiply, measured 2026-11-16."""


def choose(
    problem: Problem, trials: int, batch: int, device: torch.device, layout: SavedLayout | None = None
) -> Variant | StepwiseVariant:
    """Return the variant for a problem on a device; a backward run follows the layout of the saved values."""
    capability = capability_of(device)
    if layout is None:
        stepwise = serves(problem, capability) and prefers_stepwise(problem, trials * batch, capability)
    else:
        stepwise = layout.stepwise
    if stepwise:
        variant = stepwise_variant(problem, trials, batch, capability, multiprocessors(device))
        if layout is not None or variant.fits:
            return variant
    cluster = layout.cluster if layout else min_cluster(problem, trials * -(-batch // Launch.sequences), device)
    found = smallest_fit(problem, capability, cluster)
    blocks = trials * batch * found.launch.cluster
    if serves_single_sequences(found) and blocks <= max_single_sequence_blocks(problem) * multiprocessors(device):
        return single_sequence(found)
    return found


def prefers_stepwise(problem: Problem, sequences: int, capability: int) -> bool:
    """Return whether so many sequences of all trials are faster step by step."""
    thresholds = problem.cell.stepwise
    assert thresholds is not None
    factor = 1 if uses_wgmma(problem, capability) else MACS_FACTOR_WITHOUT_WGMMA
    enough = sequences * problem.hidden**2 >= factor * thresholds.min_macs
    return problem.hidden >= thresholds.min_hidden and enough


def serves_single_sequences(variant: Variant) -> bool:
    """Return whether blocks can have a single sequence: forward, in float32, one unit per thread."""
    problem = variant.problem
    known = problem.splits in problem.kernels.max_single_sequence_blocks
    return known and not problem.backward and variant.launch.unit_tiles == 1


def max_single_sequence_blocks(problem: Problem) -> int:
    """Return the number of single-sequence blocks per multiprocessor up to which they are faster."""
    return problem.kernels.max_single_sequence_blocks[problem.splits]


@cache
def single_sequence(variant: Variant) -> Variant:
    """Return the variant whose blocks have one sequence each, with the same layout of saved values."""
    found = replace(variant, launch=replace(variant.launch, sequences=1))
    few = found.warps <= FEW_WARPS and not variant.problem.norm  # as in `smallest_fit`
    if few and any(shape.k_tiles > 4 / 3 * shape.in_registers for shape in found.shapes):
        return replace(found, launch=replace(found.launch, split_k=2))  # twice the registers
    return found


def min_cluster(problem: Problem, blocks: int, device: torch.device) -> int:
    """Return the least cluster size: while multiprocessors are idle, each warp gets a scheduler of its own."""
    if not problem.splits or capability_of(device) < OLDEST_WITH_CLUSTERS:
        return 1
    wanted = -(-problem.hidden // (16 * FEW_WARPS))
    idle = min(wanted, max(CLUSTERS), multiprocessors(device) // max(1, blocks))
    # int: under torch.compile it may be symbolic.
    return max(problem.kernels.min_cluster.get(problem.hidden, 1), int(idle))


@cache
def smallest_fit(problem: Problem, capability: int, least: int = 1) -> Variant:
    """Return the smallest cluster from `least` on that holds all weights, or else the largest."""
    clusters = CLUSTERS if capability >= OLDEST_WITH_CLUSTERS else (1,)
    found = None
    for cluster in sorted({least, *(size for size in clusters if size > least)}):
        if cluster > max(1, least) and problem.hidden < 16 * cluster:
            break
        unit_tiles = 1
        while -(-problem.hidden // (16 * unit_tiles * cluster)) > MAX_WARPS:
            unit_tiles += 1
        launch = Launch(cluster=cluster, unit_tiles=unit_tiles)
        found = Variant(problem, launch, capability)
        # Split-K shortens the long sums of few warps. Layer norm's barriers are for warps with units alone.
        if cluster >= LARGE_CLUSTER and found.warps <= FEW_WARPS and problem.splits and not problem.norm:
            launch = replace(launch, split_k=2)
            found = Variant(problem, launch, capability)
        # Both directions share the saved values, so that one choice serves both.
        both = [Variant(replace(problem, backward=way, save=True), launch, capability) for way in (False, True)]
        fits = all(variant.shared_memory <= block_memory(capability) for variant in both)
        held = not any(variant.streamed_bytes or variant.over_register_budget for variant in both)
        if fits and (problem.splits == 0 or held):
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
    """Return a GPU's number of multiprocessors."""
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


MAX_ACCUMULATORS = {1: 108, 2: 108, 3: 64}
"""Accumulators per thread of a weight gradient, by splits, found by compiling."""
MAX_TILES_M, MAX_COLUMNS, MAX_COLUMNS_WITH_DELAYS = 3, 384, {1: 320, 2: 320, 3: 256}
"""Tiles of a warp along M; columns of both operands per block, found by compiling, too."""
WGRAD_WARPS = ((8, 1), (4, 2), (2, 4), (4, 1), (2, 2), (1, 4), (2, 1), (1, 1))

MAX_WARPGROUP_TILES = {False: {1: 32, 2: 32, 3: 22}, True: {1: 32, 2: 28}}
"""Tiles along N without and with delays, by warpgroups per block, found by compiling, too."""


@cache
def choose_wgrad(splits: int, rows: int, columns: int, delays: bool, capability: int) -> tuple[bool, WgradVariant]:
    """Return whether to compute the transposed weight gradient, and the variant for its size."""
    wgmma = capability == CAPABILITY_WITH_WGMMA and splits < 3
    found = list((_warpgroup_variants if wgmma else _warp_variants)(splits, delays, capability))
    ways = (True,) if delays else (False, True)  # only operand A can be delayed; transposed, it is what was read
    return min(
        ((transposed, variant) for transposed in ways for variant in found),
        key=lambda pair: pair[1].cycles * pair[1].blocks(*((columns, rows) if pair[0] else (rows, columns))),
    )


def _warp_variants(splits: int, delays: bool, capability: int) -> Iterator[WgradVariant]:
    most = MAX_COLUMNS_WITH_DELAYS[splits] if delays else MAX_COLUMNS
    for warps in WGRAD_WARPS:
        for tiles_m in range(1, MAX_TILES_M + 1):
            for tiles_n in range(1, MAX_ACCUMULATORS[splits] // (4 * tiles_m) + 1):
                variant = WarpWgrad(splits, delays, capability, warps, (tiles_m, tiles_n))
                if sum(variant.block_tile) <= most and variant.stages > 1:
                    yield variant


def _warpgroup_variants(splits: int, delays: bool, capability: int) -> Iterator[WgradVariant]:
    for warpgroups, most in MAX_WARPGROUP_TILES[delays].items():
        for tiles in range(1, most + 1):
            variant = WarpgroupWgrad(splits, delays, capability, warpgroups, tiles)
            if variant.stages > 2:
                yield variant


@lru_cache(maxsize=1024)  # sequence lengths are unbounded
def split_k(depth: int, blocks: int, device: torch.device) -> tuple[int, int]:
    """Return the split-K ranges of a weight gradient and their length, so that all multiprocessors work.

    On an H200 a block takes 5 ms for 80,000 steps and sequences, and its result is written and read in 40 ns.
    """
    count = multiprocessors(device)
    most = max(1, min(128, depth // 256))
    ranges = min(range(1, most + 1), key=lambda n: (-(-blocks * n // count) / n + 8e-6 * blocks * n, n))
    per_range = -(-depth // ranges // 16) * 16
    return -(-depth // per_range), per_range
