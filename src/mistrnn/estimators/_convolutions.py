"""Random convolutions with a ridge classifier as a second opinion next to the recurrent network of a classifier."""

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from numpy.typing import NDArray

from mistrnn.estimators._sequences import batches, pad
from mistrnn.models import RandomConvolutions, Standardisation
from mistrnn.models.random_convolutions import spread
from mistrnn.training.examples import Examples
from mistrnn.training.ridge import fit_ridge, temperature
from mistrnn.training.study import seed_of

CASES_AT_ONCE, FRAMES_AT_ONCE = 256, 2**17
CASES_FOR_THRESHOLDS = 256


@torch.no_grad()
def fit_convolutions(
    examples: Examples,
    groups: NDArray[Any] | None,
    classes: int,
    features: int,
    standardisation: Standardisation,
    seed: int,
    device: torch.device,
) -> RandomConvolutions:
    """Return random convolutions whose scores are logarithms of probabilities, fitted on classes.

    Args:
        examples: the cases, whose targets are classes.
        groups: [cases] the penalty and the confidence are chosen on groups that are left out; on single cases if None.
        classes: how many there are.
        features: about how many thresholds there are to be.
        standardisation: of the inputs.
        seed: all that is random follows from it.
        device: where the convolutions are computed.
    """
    generator = torch.Generator().manual_seed(seed_of(seed, 0, "convolutions"))
    cases = examples.cases
    longest = max(map(len, cases))
    dilations, thresholds = spread(features, longest)
    network = RandomConvolutions(
        cases[0].shape[1],
        classes,
        dilations=dilations,
        thresholds=thresholds,
        arcsinh=standardisation.arcsinh is not None,
        device=device,
    ).eval()
    network.standardisation = standardisation
    few = torch.randperm(len(cases), generator=generator)[:CASES_FOR_THRESHOLDS]
    inputs, lengths = pad([cases[k] for k in few])
    network.draw(inputs.to(device), lengths.to(device), generator)
    shares = torch.empty(len(cases), network.feature_count, dtype=torch.float64)
    for chosen in batches(cases, CASES_AT_ONCE, FRAMES_AT_ONCE):
        inputs, lengths = pad([cases[k] for k in chosen])
        shares[torch.from_numpy(chosen)] = network.features(inputs.to(device), lengths.to(device)).cpu()
    targets = torch.stack(list(examples.targets))
    weights = torch.stack(list(examples.weights)).double()
    names = None if groups is None else torch.from_numpy(np.unique(groups.astype(str), return_inverse=True)[1])
    ridge = fit_ridge(shares, 2.0 * F.one_hot(targets, classes) - 1, weights, names, generator)
    factor = temperature(ridge.held_out, targets[ridge.chosen], weights[ridge.chosen])
    network.head.weight.copy_(factor * ridge.weight)
    network.head.bias.copy_(factor * ridge.bias)
    return network
