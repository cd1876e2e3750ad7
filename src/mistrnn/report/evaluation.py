"""How good a model is on labelled recordings: figures for each class, confusions, and where in time it errs.

T time, K classes. Nothing here knows about models: it takes what is true and what was predicted.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

TENTHS = tuple(round(0.1 * k, 1) for k in range(1, 11))
UNLABELLED = -1


@dataclass(frozen=True)
class Evaluation:
    """What came out, as numbers, and what was predicted, as a table."""

    figures: dict[str, Any]
    names: Sequence[str]
    """The columns of the table."""
    rows: Iterable[Sequence[object]]
    """Its rows; they may be gone through once."""
    longest: tuple[str, NDArray[np.int64], NDArray[np.int64]] | None = None
    """Row labels: the id of the longest recording, its true classes and the predicted ones [T]."""


def evaluate_recordings(
    ids: Sequence[str],
    truth: NDArray[np.int64],
    probabilities: Sequence[NDArray[np.float32]],
    classes: Sequence[str],
) -> Evaluation:
    """Judge one class for each recording.

    Args:
        ids: of the recordings.
        truth: [recordings] the true classes, as places in `classes`.
        probabilities: [T, K] for each recording, as if it had ended at each of its steps; [1, K] if that is not known.
        classes: their names.
    """
    found = np.array([one[-1].argmax() for one in probabilities])
    figures = _class_figures("recordings", truth, found, classes)
    right = int((truth == found).sum())
    figures["accuracy_95_percent_interval"] = _wilson(right, len(truth))
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
    return Evaluation(figures, ("id", "true", "label", "probability", "right"), rows)


def evaluate_rows(
    ids: Sequence[str],
    rows: Sequence[NDArray[np.int64]],
    truth: Sequence[NDArray[np.int64]],
    probabilities: Sequence[NDArray[np.float32]],
    classes: Sequence[str],
) -> Evaluation:
    """Judge one class for each row.

    Args:
        ids: of the recordings.
        rows: [T] for each recording: the row of the file, from 0.
        truth: [T] for each recording: places in `classes`, -1 where a row has no label.
        probabilities: [T, K] for each recording.
        classes: their names.
    """
    found = [one.argmax(-1) for one in probabilities]
    labelled = [one != UNLABELLED for one in truth]
    all_true = np.concatenate([one[there] for one, there in zip(truth, labelled, strict=True)])
    all_found = np.concatenate([one[there] for one, there in zip(found, labelled, strict=True)])
    figures = _class_figures("rows", all_true, all_found, classes)
    figures["recordings"] = len(ids)
    wrong = [one != other for one, other in zip(truth, found, strict=True)]
    figures["over_time"] = {
        "by_position": _by_position(wrong, labelled),
        "near_changes": _near_changes(truth, wrong, labelled),
    }
    table = (
        [own, int(row) + 1, classes[true] if true != UNLABELLED else "", classes[said], f"{share[said]:.6f}"]
        for own, places, one, other, shares in zip(ids, rows, truth, found, probabilities, strict=True)
        for row, true, said, share in zip(places, one, other, shares, strict=True)
    )
    which = int(np.argmax([there.sum() for there in labelled]))
    longest = (ids[which], truth[which], found[which])
    return Evaluation(figures, ("id", "row", "true", "label", "probability"), table, longest)


def evaluate_numbers(
    ids: Sequence[str],
    truth: NDArray[np.float64],
    found: NDArray[np.float64],
    after_reading: Mapping[float, NDArray[np.float64]],
) -> Evaluation:
    """Judge one number for each recording; `after_reading` has what was predicted from the first share of each."""
    error = found - truth
    spread = float(np.square(truth - truth.mean()).sum())
    figures = {
        "kind": "numbers",
        "count": len(truth),
        "mean_absolute_error": float(np.abs(error).mean()),
        "root_mean_square_error": float(np.sqrt(np.square(error).mean())),
        "r2": 1 - float(np.square(error).sum()) / spread if spread > 0 else None,
        "always_the_mean": {"mean_absolute_error": float(np.abs(truth - truth.mean()).mean())},
        "over_time": {
            "after_reading": [
                {"read": share, "mean_absolute_error": float(np.abs(early - truth).mean())}
                for share, early in after_reading.items()
            ]
        },
    }
    rows = [[own, float(t), float(f)] for own, t, f in zip(ids, truth, found, strict=True)]
    return Evaluation(figures, ("id", "true", "predicted"), rows)


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


def _wilson(right: int, count: int) -> list[float]:
    """Return the 95% interval of a share."""
    z, share = 1.96, right / count
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count)) / (1 + z * z / count)
    return [max(0.0, middle - half), min(1.0, middle + half)]


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
        edges = np.flatnonzero(np.diff(one, prepend=one[0] - 1, append=one[-1] - 1))
        lengths += [int(n) for n, start in zip(np.diff(edges), edges, strict=False) if one[start] != UNLABELLED]
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
