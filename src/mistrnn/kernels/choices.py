"""Which launch a GPU kernel gets: how many sequences a block takes, how many blocks share the units."""

from dataclasses import replace

import torch

from mistrnn.kernels._variant import Launch, Problem, Variant

CLUSTERS = (1, 2, 4, 8, 16)
OLDEST_WITH_CLUSTERS = 90


def choose(problem: Problem, trials: int, batch: int, device: torch.device) -> Variant:
    """Return the variant for a problem on a device."""
    major, minor = torch.cuda.get_device_capability(device)
    return fitting(problem, 10 * major + minor)


def fitting(problem: Problem, capability: int) -> Variant:
    """Return the smallest cluster that holds all weights, or else the largest."""
    clusters = CLUSTERS if capability >= OLDEST_WITH_CLUSTERS else (1,)
    found = None
    for cluster in clusters:
        if cluster > 1 and problem.hidden < 16 * cluster:
            break
        stack = 1
        while -(-problem.hidden // (16 * stack * cluster)) > MOST_WARPS:
            stack += 1
        launch = Launch(cluster=cluster, stack=stack)
        found = Variant(problem, launch, capability)
        # Both directions share their records, so that one choice serves both.
        both = (Variant(replace(problem, backward=way, save=True), launch, capability) for way in (False, True))
        if problem.parts == 0 or not any(variant.streamed for variant in both):
            return found
    assert found is not None
    return found


MOST_WARPS = 16
