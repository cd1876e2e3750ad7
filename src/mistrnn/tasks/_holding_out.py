"""Which cases train, validate and test: whole groups, and every class in proportion where that can be."""

from collections.abc import Sequence
from itertools import compress

import numpy as np
import torch
from numpy.typing import NDArray

from mistrnn.errors import UsageError
from mistrnn.tasks._task import Split


def three_splits(
    owner: str,
    contents: NDArray[np.int64],
    groups: Sequence[str] | None,
    *,
    validation: float,
    test: float,
    seed: int,
) -> dict[Split, list[int]]:
    """Return the cases of each split, in their order.

    Groups (or cases, without groups) are drawn in random order, and each is held out if that brings the held-out part of
    every class closer to its share: first for the test, then, of the rest, for the validation. The last of a class always
    stays in the training split.

    Args:
        owner: the name of the caller, for errors.
        contents: [cases, classes] how many labels of each class a case has.
        groups: the group of each case.
        validation: the share of the validation split.
        test: the share of the test split.
        seed: of the random order.

    >>> labels = np.repeat(np.eye(2, dtype=np.int64), 10, axis=0)
    >>> splits = three_splits("Recordings", labels, None, validation=0.2, test=0.1, seed=0)
    >>> {split: labels[chosen].sum(0).tolist() for split, chosen in splits.items()}
    {'train': [7, 7], 'val': [2, 2], 'test': [1, 1]}
    """
    for name, share in (("validation", validation), ("test", test)):
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share < 1:
            raise UsageError(f"{owner}: expected {name} to be a share between 0 and 1, got {share!r}.")
    if validation + test >= 1:
        raise UsageError(
            f"{owner}: expected validation + test < 1, because the rest is trained on, got {validation} + {test}."
        )
    units = [str(number) for number in range(len(contents))] if groups is None else list(groups)
    names = list(dict.fromkeys(units)) if groups is None else sorted(set(units))
    what = "cases" if groups is None else "groups"
    if len(names) < 3:
        raise UsageError(
            f"{owner}: expected at least 3 {what}, because training, validation and test need one each, got {len(names)}."
        )
    place = {name: number for number, name in enumerate(names)}
    unit_of = np.array([place[unit] for unit in units])
    amounts = np.zeros((len(names), contents.shape[1]))
    np.add.at(amounts, unit_of, contents)
    order = torch.randperm(len(names), generator=torch.Generator().manual_seed(seed)).numpy()
    tested = _held_out(owner, what, amounts, order, test)
    rest = order[~tested[order]]
    validated = _held_out(owner, what, amounts, rest, validation / (1 - test))
    masks: dict[Split, NDArray[np.bool_]] = {"train": ~tested & ~validated, "val": validated, "test": tested}
    return {split: list(compress(range(len(units)), mask[unit_of])) for split, mask in masks.items()}


def _held_out(
    owner: str, what: str, amounts: NDArray[np.float64], order: NDArray[np.int64], share: float
) -> NDArray[np.bool_]:
    """Return which of the units in `order` to hold out."""
    total = amounts[order].sum(0)
    there = total > 0
    total = total[there]

    def far(held: NDArray[np.float64]) -> float:
        return float((np.abs(held - share * total) / total).sum())

    def is_possible(held: NDArray[np.float64]) -> bool:
        return bool((held < total).all())

    held, chosen = np.zeros(len(total)), np.zeros(len(amounts), dtype=bool)
    for unit in order:
        more = held + amounts[unit][there]
        if is_possible(more) and far(more) < far(held):
            held, chosen[unit] = more, True
    if not chosen.any():  # each is more than the share
        possible = [int(unit) for unit in order if is_possible(amounts[unit][there])]
        if not possible:
            raise UsageError(
                f"{owner}: expected {what} to validate and to test on, with every class left in the training split, and each "
                f"of the {len(order)} {what} has a class that no other has. More recordings are needed."
            )
        chosen[min(possible, key=lambda unit: far(amounts[unit][there]))] = True
    return chosen
