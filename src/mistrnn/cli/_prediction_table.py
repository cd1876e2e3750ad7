"""The table that `mist predict` writes: its columns, its rows, and how it is told from other files."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mistrnn.estimators import FrameLabeler, SequenceClassifier, SequenceEstimator, SequenceRegressor
from mistrnn.tables import Reading, Recording


def prediction_rows(
    estimator: SequenceEstimator, recordings: Sequence[Recording], reading: Reading
) -> tuple[list[str], Iterator[Sequence[object]]]:
    """Return the columns of predictions.csv, and its rows in the order of the files."""
    inputs = [one.values.T for one in recordings]
    if isinstance(estimator, SequenceRegressor):
        found = np.atleast_1d(estimator.predict(inputs).T).T.reshape(len(inputs), -1)
        many = found.shape[1] > 1
        names = [f"predicted{k}" for k in range(found.shape[1])] if many else ["predicted"]
        return ["id", *names], ([one.id, *own] for one, own in zip(recordings, found.tolist(), strict=True))
    assert isinstance(estimator, SequenceClassifier | FrameLabeler)
    classes = estimator.classes_.tolist()
    says = ["label", "probability", *(f"p_{label}" for label in classes)]

    def said(shares: NDArray[np.float32]) -> list[object]:
        best = int(shares.argmax())
        return [classes[best], f"{shares[best]:.6f}", *(f"{share:.6f}" for share in shares.tolist())]

    if isinstance(estimator, SequenceClassifier):
        shares = estimator.predict_proba(inputs)
        return ["id", *says], ([one.id, *said(own)] for one, own in zip(recordings, shares, strict=True))
    by_row = list(estimator.predict_proba(inputs))
    timed = [] if reading.time_column is None else [reading.time_column]
    files = {path: number for number, path in enumerate(dict.fromkeys(one.path for one in recordings))}
    file = np.concatenate([np.full(len(one.rows), files[one.path]) for one in recordings])
    row = np.concatenate([one.rows for one in recordings])
    which = np.concatenate([np.full(len(one.rows), number) for number, one in enumerate(recordings)])
    step = np.concatenate([np.arange(len(one.rows)) for one in recordings])

    def lines() -> Iterator[Sequence[object]]:
        for place in np.lexsort((row, file)):
            number, at = int(which[place]), int(step[place])
            one = recordings[number]
            times = [] if one.times is None else [one.times[at]]
            yield [one.id, int(row[place]) + 1, *times, *said(by_row[number][at])]

    return ["id", "row", *timed, *says], lines()


def are_predictions(path: Path) -> bool:
    """Whether a file begins as those do that are written here."""
    try:
        with open(path, "rb") as file:
            names = file.readline(2**20).decode("utf-8", "replace").strip()
    except OSError:
        return False
    return bool(re.match("id,(predicted0?(,|$)|(row,)?(.*,)?label,probability,p_)", names.replace('"p_', "p_")))
