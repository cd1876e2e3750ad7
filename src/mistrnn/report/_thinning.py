"""Fewer points of a long curve, its peaks among them."""

from collections.abc import Sequence


def thinned(values: Sequence[float], most: int) -> list[int]:
    """Return the places of so many values or fewer: the first and the last, and the least and the greatest of each stretch.

    >>> thinned([0, 0, 0, 9, 0, 0, 0, 0, 0, -9, 0, 0], 6)
    [0, 1, 3, 6, 9, 11]
    """
    count = len(values)
    if count <= most:
        return list(range(count))
    stretches = max(1, most // 2 - 1)
    kept = {0, count - 1}
    for k in range(stretches):
        begin, end = 1 + k * (count - 2) // stretches, 1 + (k + 1) * (count - 2) // stretches
        kept |= {min(range(begin, end), key=values.__getitem__), max(range(begin, end), key=values.__getitem__)}
    return sorted(kept)
