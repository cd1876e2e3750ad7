"""Check X and convert it into one array [time, channels] for each case.

Arrays are [cases, channels, time], as in aeon and sktime; [cases, time] is one channel; cases of unequal length are a
list of arrays [channels, time]. Values keep their precision here: they are standardised before it is shortened.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mistrnn.errors import UsageError
from mistrnn.models import Arcsinh, Standardisation
from mistrnn.training.examples import Case

SHAPES = "[cases, channels, time], [cases, time] for one channel, or a list of arrays [channels, time]"

FARTHEST = 1e30
"""Deviations from a channel's mean that a network is given: sums over more of them overflow float32."""
HEAVY_TAILED = 20.0
"""A channel of a greater kurtosis has heavy tails. A normal distribution has 3."""


def is_table(x: Any) -> bool:
    """Whether X is a table [cases, time] in any form that scikit-learn knows: it then checks it, with its own words."""
    if isinstance(x, list | tuple):
        rows = [case for case in x if isinstance(case, list | tuple)]
        plain = all(not hasattr(case, "__array__") for case in x)
        channels = any(hasattr(row[0], "__len__") and not isinstance(row[0], str | bytes) for row in rows if row)
        return plain and len({len(row) for row in rows}) <= 1 and not channels
    dimensions = getattr(x, "ndim", 2 if hasattr(x, "__array__") else None)
    if dimensions == 1 and getattr(x, "dtype", None) == np.dtype(object):
        return False  # an array of cases
    return dimensions is not None and dimensions <= 2


def as_array(x: Any) -> Any:
    """Return a tensor, or an array some of whose numbers are masked, as a plain array, and anything else as it is."""
    if isinstance(x, Tensor):
        x = x.detach().cpu()
        return (x.float() if x.dtype == torch.bfloat16 else x).numpy()
    return np.ma.filled(x.astype(np.float64), np.nan) if isinstance(x, np.ma.MaskedArray) else x


def as_cases(owner: str, x: Any) -> list[Case]:
    """Return the cases of X, which is not a table.

    >>> [case.shape for case in as_cases("SequenceClassifier", [np.zeros((2, 7)), np.zeros((2, 4))])]
    [(7, 2), (4, 2)]
    """
    cases = _taken_apart(owner, x)
    if not cases:
        raise UsageError(f"{owner}: expected at least one case, got none.")
    found = [_as_case(owner, number, case) for number, case in enumerate(cases)]
    counts = [case.shape[1] for case in found]
    if len(set(counts)) > 1:
        other = next(number for number, count in enumerate(counts) if count != counts[0])
        raise UsageError(
            f"{owner}: expected the same channels in every case, got {counts[0]} in case 0 and {counts[other]} in case "
            f"{other}. A case is [channels, time]: are the axes the other way round?"
        )
    return found


def _taken_apart(owner: str, x: Any) -> list[Any]:
    x = as_array(x)
    if isinstance(x, list | tuple) or getattr(x, "ndim", 0) == 3 or getattr(x, "dtype", None) == np.dtype(object):
        return list(x)
    got = f"an array {list(x.shape)}" if hasattr(x, "shape") else type(x).__name__
    raise UsageError(f"{owner}: expected X to be {SHAPES}, got {got}.")


def _as_case(owner: str, number: int, case: Any) -> Case:
    case = as_array(case)
    try:
        values = np.asarray(case)
    except ValueError:  # a list of lists of unequal length
        values = np.asarray(None)
    if values.ndim == 1 and values.dtype != object:
        values = values[None]  # one channel
    if values.ndim != 2:
        raise UsageError(
            f"{owner}: expected case {number} to be [channels, time], or [time] for one channel, got an array "
            f"{list(values.shape)}."
        )
    if values.size == 0:
        raise UsageError(
            f"{owner}: expected case {number} to have at least one step and one channel, got {values.shape}."
        )
    if values.dtype not in (np.float32, np.float64):
        if values.dtype.kind == "c":
            raise UsageError(f"{owner}: expected real numbers, got complex ones in case {number}.")
        try:
            values = values.astype(np.float64)
        except (TypeError, ValueError):
            raise UsageError(f"{owner}: expected numbers, got {values.dtype} in case {number}.") from None
    finite = np.isfinite(values)
    if not finite.all():
        channel, step = (int(place) for place in np.argwhere(~finite)[0])
        raise UsageError(
            f"{owner}: expected finite numbers, got {values[channel, step]} in case {number}, channel {channel}, step {step}. "
            "Fill gaps (the last value that was seen, or an interpolation) or leave these cases out."
        )
    return values.T


def check_distance(owner: str, cases: Sequence[Case], standardisation: Standardisation) -> None:
    """Refuse numbers so far from the training data that the network's answer would be NaN."""
    standardisation = standardisation.to("cpu")
    for number, case in enumerate(cases):
        far = too_far(case, standardisation)
        if far.any():
            step, channel = (int(place) for place in np.argwhere(far)[0])
            raise UsageError(
                f"{owner}: expected numbers less than {FARTHEST:g} deviations from the mean of what was learnt, got "
                f"{case[step, channel]:g} in case {number}, channel {channel}, step {step}."
            )


def too_far(values: NDArray[Any], standardisation: Standardisation) -> NDArray[np.bool_]:
    """Return which numbers [..., channels] a network cannot be given; the standardisation is on the CPU."""
    far: NDArray[np.bool_] = ~(np.abs(standardisation.of_array(values)) < FARTHEST)
    return far


def statistics(owner: str, cases: Sequence[Case], weights: Sequence[float]) -> Standardisation:
    """Return the standardisation of each channel over all steps of all cases; the deviation of a constant channel is 1.

    A channel with heavy tails, of a kurtosis above `HEAVY_TAILED`, is transformed by arcsinh around its median first.

    >>> found = statistics("SequenceClassifier", [np.array([[1.0, 5.0], [3.0, 5.0]])], [1.0])
    >>> found.mean, found.scale, found.arcsinh
    (tensor([2., 5.], dtype=torch.float64), tensor([1., 1.], dtype=torch.float64), None)
    """
    mean, scale, kurtosis = _moments(owner, cases, weights)
    heavy = np.flatnonzero(kurtosis > HEAVY_TAILED)
    if not len(heavy):
        return Standardisation(torch.from_numpy(mean), torch.from_numpy(scale))
    arcsinh = Arcsinh(len(mean))
    each = np.repeat(np.asarray(weights, dtype=np.float64), list(map(len, cases)))
    for channel in heavy:
        values = np.concatenate([case[:, channel] for case in cases]).astype(np.float64)
        center = _weighted_median(values, each)
        distance = np.abs(values - center)
        # Many values may be equal to the center, such as the zeros of counts.
        apart = distance > 0
        arcsinh.center[channel] = center
        arcsinh.knee[channel] = _weighted_median(distance[apart], each[apart])
    ones = torch.ones(len(mean), dtype=torch.float64)
    transform = Standardisation(torch.zeros_like(ones), ones, arcsinh)
    mean, scale, _ = _moments(owner, [transform.of_array(case) for case in cases], weights)
    return Standardisation(torch.from_numpy(mean), torch.from_numpy(scale), arcsinh)


def _weighted_median(values: NDArray[np.float64], weights: NDArray[np.float64]) -> float:
    order = np.argsort(values)
    below = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(below, below[-1] / 2)])


def _moments(
    owner: str, cases: Sequence[Case], weights: Sequence[float]
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Return mean, deviation and kurtosis of each channel; a constant channel has a deviation of 1 and a kurtosis of 0."""
    pairs = list(zip(weights, cases, strict=True))
    with np.errstate(over="ignore", invalid="ignore"):  # said below
        count = sum(weight * len(case) for weight, case in pairs)
        mean = sum(weight * case.sum(0, dtype=np.float64) for weight, case in pairs) / count
        square = sum(weight * np.square(case - mean).sum(0) for weight, case in pairs) / count
    if not (np.isfinite(mean) & np.isfinite(square)).all():
        channel = int(np.flatnonzero(~(np.isfinite(mean) & np.isfinite(square)))[0])
        raise UsageError(f"{owner}: expected smaller numbers in channel {channel}: their squares overflow.")
    lowest, highest = (np.array([f(case, 0) for case in cases]) for f in (np.min, np.max))
    # The deviation of a constant may be the rounding of its mean.
    varies = (highest.max(0) > lowest.min(0)) & (square > 0)
    scale = np.where(varies, np.sqrt(square), 1.0)
    fourth = sum(weight * np.power((case - mean) / scale, 4).sum(0) for weight, case in pairs) / count
    return np.asarray(mean), scale, np.where(varies, fourth, 0.0)


def pad(cases: Sequence[Case]) -> tuple[Tensor, Tensor]:
    """Return some cases as [T, B, C], zero past their ends, and their lengths [B]."""
    lengths = torch.tensor([len(case) for case in cases])
    padded = np.zeros((int(lengths.max()), len(cases), cases[0].shape[1]), dtype=np.result_type(*cases))
    for number, case in enumerate(cases):
        padded[: len(case), number] = case
    return torch.from_numpy(padded), lengths


def batches(cases: Sequence[Case], most_cases: int, most_frames: int) -> list[NDArray[np.int64]]:
    """Return which cases to run together: of similar length, and so few that padded they have at most so many frames."""
    order = np.argsort([-len(case) for case in cases], kind="stable")
    found, place = [], 0
    while place < len(order):
        count = max(1, min(most_cases, most_frames // len(cases[order[place]])))
        found.append(order[place : place + count])
        place += count
    return found
