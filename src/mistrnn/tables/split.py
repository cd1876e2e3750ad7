"""Which recordings are held out: whole groups, and every class in proportion where that can be."""

from collections import Counter
from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray

from mistrnn.errors import UsageError


def hold_out(
    share: float,
    contents: Sequence[Counter[Hashable]],
    groups: Sequence[str] | None,
    seed: int,
) -> NDArray[np.bool_]:
    """Return which recordings to hold out.

    Groups (or recordings, without groups) are drawn in random order, and each is held out if that brings the held-out part
    of every class closer to its share. The last of a class always stays in the training part.

    Args:
        share: of all that is counted.
        contents: how much of each class a recording holds: one of its own, or a number of rows.
        groups: the group of each recording.
        seed: all that is random follows from it.

    >>> contents = [Counter({label: 1}) for label in "aaaaabbbbb"]
    >>> out = hold_out(0.2, contents, None, seed=0)
    >>> sorted(label for label, held in zip("aaaaabbbbb", out) if held)
    ['a', 'b']
    """
    owners = list(map(str, range(len(contents)))) if groups is None else list(groups)
    names = sorted(set(owners))
    whose = np.searchsorted(names, owners)
    classes = {label: number for number, label in enumerate(sorted({c for one in contents for c in one}, key=str))}
    amounts = np.zeros((len(names), len(classes)))  # [groups, classes]
    for group, content in zip(whose, contents, strict=True):
        for label, count in content.items():
            amounts[group, classes[label]] += count
    total = amounts.sum(0)
    if groups is not None and len(names) < 2:
        raise UsageError(
            f"expected several groups, because whole groups are held out, got one, {names[0]!r}. Recordings of others are "
            "needed; --test-share 0 trains on all of them, without an honest figure."
        )

    def far(held: NDArray[np.float64]) -> float:
        return float((np.abs(held - share * total) / total).sum())

    def possible(held: NDArray[np.float64], group: int) -> bool:
        return bool((held + amounts[group] < total).all())

    held, chosen = np.zeros(len(classes)), np.zeros(len(names), dtype=bool)
    order = np.random.default_rng(seed).permutation(len(names))
    for group in order:
        more = held + amounts[group]
        if possible(held, group) and far(more) < far(held):
            held, chosen[group] = more, True
    if not chosen.any():  # each of them is more than the share
        candidates = [group for group in order if possible(held, group)]
        if not candidates:
            what = "recording" if groups is None else "group"
            raise UsageError(
                f"expected to hold some out for testing, because --test-share is {share}, and keep every class in the training "
                f"part, but each {what} has a class that no other {what} has. More recordings are needed; --test-share 0 "
                "trains on all of them, without an honest figure."
            )
        chosen[min(candidates, key=lambda group: far(amounts[group]))] = True
    return np.asarray(chosen[whose])
