"""Whole numbers as names: pandas writes 1 as 1.0 where the same column has a gap, and both mean the same label or group."""

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mistrnn.tables._csv import MISSING

Texts = NDArray[np.object_]
"""Strings, None where a cell is empty."""

_WHOLE = re.compile(r"(-?[0-9]+)(\.0+)?")


def without_point(text: str) -> str:
    """Return a whole number without a point, and anything else as it is.

    >>> without_point("4.0"), without_point("4"), without_point("1.50"), without_point("01")
    ('4', '4', '1.50', '01')
    """
    found = _WHOLE.fullmatch(text)
    return found[1] if found else text


def written_alike(columns: Sequence[Texts]) -> list[Texts]:
    """Return the same column of several files with its whole numbers written alike; with other words among them, as it is.

    >>> written_alike([np.array(["1.0", None], dtype=object), np.array(["1", "2"], dtype=object)])
    [array(['1', None], dtype=object), array(['1', '2'], dtype=object)]
    >>> written_alike([np.array(["1.0", "1.1"], dtype=object)])
    [array(['1.0', '1.1'], dtype=object)]
    """
    words = {text for column in columns for text in column.tolist() if text is not None}
    if not all(_WHOLE.fullmatch(word) or word.lower() in MISSING for word in words):
        return list(columns)
    meaning: dict[str | None, str | None] = {word: without_point(word) for word in words}
    if all(word == meant for word, meant in meaning.items()):
        return list(columns)
    meaning[None] = None
    return [np.array([meaning[text] for text in column.tolist()], dtype=object) for column in columns]
