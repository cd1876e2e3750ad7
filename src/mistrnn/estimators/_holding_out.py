"""Which cases are held out for validation: a share of them, or whole groups."""

from typing import Any

import numpy as np
from numpy.typing import NDArray


def held_out(
    share: float,
    classes: NDArray[np.bool_],
    strata: NDArray[Any] | None,
    groups: NDArray[Any] | None,
    random: np.random.RandomState,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the cases to train on and those to validate on.

    Args:
        share: of the cases that is held out.
        classes: [cases, classes] the classes that each case teaches.
        strata: [cases] the class that is held out in proportion; not needed with groups.
        groups: [cases] names of groups that are held out whole.
        random: draws the cases.
    """
    count = len(classes)
    wanted = max(1, round(count * share))
    if groups is not None:
        held = drawn_groups(wanted, groups, classes, random)
    else:
        assert strata is not None
        held = drawn_cases(wanted, strata, classes, random)
    return np.setdiff1d(np.arange(count), held), held


def drawn_cases(
    wanted: int, strata: NDArray[Any], classes: NDArray[np.bool_], random: np.random.RandomState
) -> NDArray[np.int64]:
    """Draw cases, of each stratum in proportion, and never the last one that has a class.

    If each is the last one of some class, one that shares another class with the rest.
    """
    order = random.permutation(len(strata))
    keys = np.empty(len(strata))
    for name in np.unique(strata):
        own = order[strata[order] == name]
        keys[own] = (np.arange(len(own)) + random.rand()) / len(own)
    order = np.argsort(keys, kind="stable")
    left = classes.sum(0)  # how many cases that are trained on have each class
    chosen: list[int] = []
    for case in order.tolist():
        if len(chosen) < wanted and (left[classes[case]] > 1).all():
            chosen.append(case)
            left -= classes[case]
    if not chosen and wanted:
        chosen = [case for case in order.tolist() if (left[classes[case]] > 1).any()][:1]
    return np.sort(np.array(chosen, dtype=np.int64))


def drawn_groups(
    wanted: int, groups: NDArray[Any], classes: NDArray[np.bool_], random: np.random.RandomState
) -> NDArray[np.int64]:
    """Draw whole groups with about as many cases as wanted: at most twice as many, or else the smallest group.

    Never the last one that has a class, unless each group is.
    """
    names, of, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    holds = np.zeros((len(names), classes.shape[1]), dtype=bool)
    np.logical_or.at(holds, of, classes)
    left = holds.sum(0)  # how many groups that are trained on have each class

    def is_last(group: int) -> bool:
        return bool((left[holds[group]] == 1).any())

    chosen: list[int] = []
    for group in random.permutation(len(names)).tolist():
        held = int(sizes[chosen].sum())
        if held < wanted and held + sizes[group] <= 2 * wanted and not is_last(group):
            chosen.append(group)
            left -= holds[group]
    if not chosen and len(names) > 1:
        chosen = [min(range(len(names)), key=lambda group: (is_last(group), sizes[group]))]
    return np.flatnonzero(np.isin(of, chosen))
