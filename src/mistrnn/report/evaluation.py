"""The accuracy of a model on labelled recordings: figures for each class, confusions, and errors over time.

T time, K classes. Nothing here knows about models: it takes true and predicted values.
"""

import heapq
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mistrnn.intervals import bootstrap, wilson

TENTHS = tuple(round(0.1 * k, 1) for k in range(1, 11))
UNLABELLED = -1
MOST_ERRORS = 20
"""Errors that are listed."""


@dataclass(frozen=True)
class Timeline:
    """True and predicted classes of one recording, step by step."""

    id: str
    why: str
    """Why this recording is shown."""
    truth: NDArray[np.int64]
    """[T] UNLABELLED where a row has no label."""
    found: NDArray[np.int64]
    """[T]"""


@dataclass(frozen=True)
class Evaluation:
    """The figures of an evaluation, and the predictions as a table."""

    figures: dict[str, Any]
    names: Sequence[str]
    """The columns of the table."""
    rows: Iterable[Sequence[object]]
    """Its rows; they may be gone through once."""
    errors: Sequence[Mapping[str, Any]] = ()
    """The errors to look at first, at most MOST_ERRORS: the most confident ones, or of numbers the largest."""
    timelines: Sequence[Timeline] = ()
    """Row labels: a few recordings, the longest first."""


def evaluate_recordings(
    ids: Sequence[str],
    truth: NDArray[np.int64],
    probabilities: Sequence[NDArray[np.float32]],
    classes: Sequence[str],
    groups: Sequence[str] | None = None,
) -> Evaluation:
    """Evaluate one class for each recording.

    Args:
        ids: of the recordings.
        truth: [recordings] the true classes, as places in `classes`.
        probabilities: [T, K] for each recording, as if it had ended at each of its steps; [1, K] if that is not known.
        classes: their names; the first K are those that have a probability.
        groups: [recordings] the group of each, if there are groups.
    """
    found = np.array([one[-1].argmax() for one in probabilities])
    figures = _class_figures("recordings", truth, found, classes) | _counted_groups(groups)
    right = int((truth == found).sum())
    figures["accuracy_95_percent_interval"] = wilson(right, len(truth))
    if any(len(one) > 1 for one in probabilities):
        by_share = []
        for share in TENTHS:
            early = np.array([one[math.ceil(share * len(one)) - 1].argmax() for one in probabilities])
            by_share.append({"read": share, "accuracy": float((early == truth).mean())})
        figures["over_time"] = {"after_reading": by_share}
    rows = [
        [own, classes[true], classes[said], f"{one[-1].max():.6f}", "yes" if true == said else "no"]
        for own, true, said, one in zip(ids, truth, found, probabilities, strict=True)
    ]
    sure = np.array([one[-1].max() for one in probabilities])
    wrong = np.flatnonzero(truth != found)
    first = wrong[np.argsort(-sure[wrong], kind="stable")][:MOST_ERRORS]
    errors = [
        {"id": ids[k], "true": classes[truth[k]], "predicted": classes[found[k]], "probability": float(sure[k])}
        for k in first
    ]
    return Evaluation(figures, ("id", "true", "label", "probability", "right"), rows, errors)


def evaluate_rows(
    ids: Sequence[str],
    rows: Sequence[NDArray[np.int64]],
    truth: Sequence[NDArray[np.int64]],
    probabilities: Sequence[NDArray[np.float32]],
    classes: Sequence[str],
    groups: Sequence[str] | None = None,
) -> Evaluation:
    """Evaluate one class for each row.

    Args:
        ids: of the recordings.
        rows: [T] for each recording: the row of the file, from 0.
        truth: [T] for each recording: places in `classes`, -1 where a row has no label.
        probabilities: [T, K] for each recording.
        classes: their names; the first K are those that have a probability.
        groups: [recordings] the group of each, if there are groups.
    """
    found = [one.argmax(-1) for one in probabilities]
    labelled = [one != UNLABELLED for one in truth]
    all_true = np.concatenate([one[there] for one, there in zip(truth, labelled, strict=True)])
    all_found = np.concatenate([one[there] for one, there in zip(found, labelled, strict=True)])
    figures = _class_figures("rows", all_true, all_found, classes) | _counted_groups(groups)
    figures["recordings"] = len(ids)
    wrong = [one != other for one, other in zip(truth, found, strict=True)]
    counts = np.array([there.sum() for there in labelled])
    right = counts - [int((one & there).sum()) for one, there in zip(wrong, labelled, strict=True)]

    def accuracy(drawn: NDArray[np.int64]) -> float:
        return float(right[drawn].sum()) / max(1, int(counts[drawn].sum()))

    # Rows of one recording are alike: whole recordings are drawn.
    figures["accuracy_95_percent_interval"] = bootstrap(accuracy, len(ids))
    figures["over_time"] = {
        "by_position": _by_position(wrong, labelled),
        "near_changes": _near_changes(truth, wrong, labelled),
    }
    table = (
        [own, int(row) + 1, classes[true] if true != UNLABELLED else "", classes[said], f"{share[said]:.6f}"]
        for own, places, one, other, shares in zip(ids, rows, truth, found, probabilities, strict=True)
        for row, true, said, share in zip(places, one, other, shares, strict=True)
    )
    shown = _worth_showing(counts, right / counts.clip(1))
    timelines = [Timeline(ids[k], why, truth[k], found[k]) for k, why in shown.items()]
    errors = _wrong_stretches(ids, truth, found, probabilities, classes)
    return Evaluation(figures, ("id", "row", "true", "label", "probability"), table, errors, timelines)


def evaluate_numbers(
    ids: Sequence[str],
    truth: NDArray[np.float64],
    found: NDArray[np.float64],
    after_reading: Mapping[float, NDArray[np.float64]],
    groups: Sequence[str] | None = None,
) -> Evaluation:
    """Evaluate one number for each recording; `after_reading` has the predictions from the first share of each."""
    error, away = found - truth, truth - truth.mean()
    r2 = _r2(truth, found)
    figures = {
        "kind": "numbers",
        "count": len(truth),
        "mean_absolute_error": float(np.abs(error).mean()),
        "root_mean_square_error": _root_mean_square(error),
        "root_mean_square_error_95_percent_interval": bootstrap(
            lambda drawn: _root_mean_square(error[drawn]), len(truth)
        ),
        "r2": None if math.isnan(r2) else r2,
        "r2_95_percent_interval": bootstrap(lambda drawn: _r2(truth[drawn], found[drawn]), len(truth)),
        "always_the_mean": {
            "mean_absolute_error": float(np.abs(away).mean()),
            "root_mean_square_error": _root_mean_square(away),
        },
        "over_time": {
            "after_reading": [
                {"read": share, "mean_absolute_error": float(np.abs(early - truth).mean())}
                for share, early in after_reading.items()
            ]
        },
    } | _counted_groups(groups)
    rows = [[own, float(t), float(f)] for own, t, f in zip(ids, truth, found, strict=True)]
    errors = [
        {"id": ids[k], "true": float(truth[k]), "predicted": float(found[k]), "error": float(error[k])}
        for k in np.argsort(-np.abs(error), kind="stable")[:MOST_ERRORS]
        if error[k]
    ]
    return Evaluation(figures, ("id", "true", "predicted"), rows, errors)


def _root_mean_square(values: NDArray[np.float64]) -> float:
    return float(np.sqrt(np.square(values).mean()))


def _r2(truth: NDArray[np.float64], found: NDArray[np.float64]) -> float:
    """Return the share of the variance that is explained; NaN where there is no variance."""
    spread = float(np.square(truth - truth.mean()).sum())
    return 1 - float(np.square(found - truth).sum()) / spread if spread > 0 else math.nan


def _counted_groups(groups: Sequence[str] | None) -> dict[str, Any]:
    return {} if groups is None else {"groups": len(set(groups))}


def _class_figures(
    kind: str, truth: NDArray[np.int64], found: NDArray[np.int64], classes: Sequence[str]
) -> dict[str, Any]:
    size = len(classes)
    counts = np.bincount(truth * size + found, minlength=size * size).reshape(size, size)  # [true, predicted]
    of_true, of_found, right = counts.sum(1), counts.sum(0), counts.diagonal()
    rows = []
    for k, name in enumerate(classes):
        others = counts[k].copy()
        others[k] = 0
        mistaken = {"class": classes[int(others.argmax())], "count": int(others.max())} if others.any() else None
        rows.append(
            {
                "class": name,
                "precision": float(right[k] / of_found[k]) if of_found[k] else None,
                "recall": float(right[k] / of_true[k]) if of_true[k] else None,
                "f1": float(2 * right[k] / (of_true[k] + of_found[k])) if of_true[k] + of_found[k] else None,
                "support": int(of_true[k]),
                "mistaken_for": mistaken,
            }
        )
    there = [row for row in rows if row["support"]]
    common = int(of_true.argmax())
    return {
        "kind": kind,
        "count": len(truth),
        "accuracy": float(right.sum() / len(truth)),
        "balanced_accuracy": float(np.mean([row["recall"] for row in there])),
        "macro_f1": float(np.mean([row["f1"] for row in there])),
        "always_the_most_common": {"class": classes[common], "accuracy": float(of_true[common] / len(truth))},
        "classes": rows,
        "confusion": {"classes": list(classes), "counts": counts.tolist()},
    }


def _worth_showing(counts: NDArray[np.int64], accuracy: NDArray[np.float64]) -> dict[int, str]:
    """Return the places of a few recordings with the reason, the longest first."""
    own = np.flatnonzero(counts)
    ranked = own[np.argsort(accuracy[own], kind="stable")]
    longest, lowest, median = int(counts.argmax()), int(ranked[0]), int(ranked[len(ranked) // 2])
    reasons = {longest: "the longest"}
    for place, why in ((lowest, "lowest accuracy"), (median, "median accuracy")):
        reasons[place] = f"{reasons[place]}, {why}" if place in reasons else why
    return reasons


def _wrong_stretches(
    ids: Sequence[str],
    truth: Sequence[NDArray[np.int64]],
    found: Sequence[NDArray[np.int64]],
    probabilities: Sequence[NDArray[np.float32]],
    classes: Sequence[str],
) -> list[dict[str, Any]]:
    """Return the stretches of one and the same error, by the sum of the probabilities of the predicted classes.

    So long and confident errors come before single rows around a change.
    """
    wrong: list[tuple[float, int, int, int]] = []  # sum, recording, first row, end
    for number, (one, other, shares) in enumerate(zip(truth, found, probabilities, strict=True)):
        right = (one == other) | (one == UNLABELLED)
        what = np.where(right, -1, one * len(classes) + other)
        own = [(float(shares[a:b].max(-1).sum()), number, a, b) for a, b in stretches(what) if what[a] != -1]
        wrong += heapq.nlargest(MOST_ERRORS, own, key=itemgetter(0))
    return [
        {
            "id": ids[number],
            "from": a + 1,
            "to": b,
            "true": classes[truth[number][a]],
            "predicted": classes[found[number][a]],
            "probability": total / (b - a),
        }
        for total, number, a, b in heapq.nlargest(MOST_ERRORS, wrong, key=itemgetter(0))
    ]


def stretches(values: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Return where each stretch of one value begins and ends.

    >>> stretches(np.array([7, 7, 0, 7]))
    [(0, 2), (2, 3), (3, 4)]
    """
    edges = np.flatnonzero(np.diff(values, prepend=values[0] - 1, append=values[-1] - 1))
    return list(pairwise(edges.tolist()))


def _by_position(
    wrong: Sequence[NDArray[np.bool_]], labelled: Sequence[NDArray[np.bool_]]
) -> list[dict[str, float | int | None]]:
    """Return the error of each tenth of the recordings."""
    errors, counts = np.zeros(10, dtype=np.int64), np.zeros(10, dtype=np.int64)
    for mistakes, there in zip(wrong, labelled, strict=True):
        tenth = np.arange(len(there)) * 10 // len(there)
        counts += np.bincount(tenth[there], minlength=10)
        errors += np.bincount(tenth[there & mistakes], minlength=10)
    return [
        {"from": round(0.1 * k, 1), "to": TENTHS[k], "rows": int(counts[k]), "error": _share(errors[k], counts[k])}
        for k in range(10)
    ]


def _near_changes(
    truth: Sequence[NDArray[np.int64]], wrong: Sequence[NDArray[np.bool_]], labelled: Sequence[NDArray[np.bool_]]
) -> dict[str, Any] | None:
    """Return the error just before and just after the true class changes, and elsewhere; None if it never does.

    Just is a tenth of how long a class lasts, by the median. Rows without a label are passed over: where another class
    follows them, it changes there.
    """
    lengths: list[int] = []
    for one in truth:
        lengths += [end - start for start, end in stretches(one) if one[start] != UNLABELLED]
    near = max(1, round(float(np.median(lengths)) / 10))
    names = ("before", "after", "elsewhere")
    errors, counts = dict.fromkeys(names, 0), dict.fromkeys(names, 0)
    changes = 0
    for one, mistakes, there in zip(truth, wrong, labelled, strict=True):
        steps = np.arange(len(one))
        own = np.flatnonzero(there)
        at = own[1:][one[own[1:]] != one[own[:-1]]]  # the first step of the new class
        changes += len(at)
        bounds = np.concatenate([[-math.inf], at, [math.inf]])
        place = np.searchsorted(at, steps, side="right")
        since, until = steps - bounds[place], bounds[place + 1] - steps
        after = since < near
        before = (until <= near) & ~after
        for name, where in (("before", before), ("after", after), ("elsewhere", ~before & ~after)):
            counts[name] += int((where & there).sum())
            errors[name] += int((where & there & mistakes).sum())
    if not changes:
        return None
    found: dict[str, Any] = {"changes": changes, "within_rows": near}
    return found | {name: {"rows": counts[name], "error": _share(errors[name], counts[name])} for name in names}


def _share(part: int, whole: int) -> float | None:
    return float(part / whole) if whole else None
