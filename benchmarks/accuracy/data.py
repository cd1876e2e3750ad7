"""Data sets of the accuracy benchmark, in two halves: DEVELOPMENT and JUDGEMENT.

Defaults of the estimators may be chosen by the DEVELOPMENT half only. The JUDGEMENT half is looked at when a choice is made.

Sources: UEA archive files in DIR/uea (official splits), files inside the aeon wheel (official splits), recordings in DIR (see
recordings.py), and generated cues. DIR comes from --data or the environment variable MISTRNN_DATA.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from recordings import Part, Parts, gesture_frames, hapt_frames, hapt_segments, timit_frames

DEVELOPMENT, JUDGEMENT = "development", "judgement"
SMALL = 500
"""Sets with fewer training cases are trained in minibatches of 16 by the rivals, others of 32."""


class NotAvailableError(Exception):
    """The files of a data set are not there."""


@dataclass(frozen=True)
class DataSet:
    """A data set and its share of the rivals' budget.

    Args:
        name: its name in tables and on the command line.
        half: DEVELOPMENT or JUDGEMENT.
        load: returns its parts, given the data folder.
        kind: "sequences" for one label per case, "frames" for one per step, "cue" for generated cases.
        rival_seeds: seeds of each rival; fewer for slow sets.
        rival_minibatches: share of the rivals' minibatches that this set gets; below 1 for long sequences.
    """

    name: str
    half: str
    load: Callable[[Path | None], Parts]
    kind: str = "sequences"
    rival_seeds: int = 5
    rival_minibatches: float = 1.0

    @property
    def frames(self) -> bool:
        """Return whether each step has a label."""
        return self.kind == "frames"


def in_folder(load: Callable[[Path], Parts], path: str, folder: Path | None) -> Parts:
    """Load from a path below the data folder."""
    if folder is None:
        raise NotAvailableError("not available: give the data folder by --data or MISTRNN_DATA")
    if not (folder / path).exists():
        raise NotAvailableError(f"not available: {path} is not in the data folder")
    return load(folder / path)


def uea(folder: Path) -> Parts:
    """Load the official split of a UEA archive set from its .ts or .arff files."""
    from aeon.datasets import load_from_arff_file, load_from_ts_file

    def part(split: str) -> Part:
        stem = folder / f"{folder.name}_{split}"
        if stem.with_suffix(".ts").exists():
            x, y = load_from_ts_file(str(stem.with_suffix(".ts")))
        else:
            x, y = load_from_arff_file(str(stem.with_suffix(".arff")))
        return Part(cases(x), np.asarray(y))

    return Parts(part("TRAIN"), part("TEST"))


def in_aeon(name: str, folder: Path | None) -> Parts:
    """Load the official split of a set whose files are inside the aeon package."""
    import aeon.datasets

    place = Path(aeon.datasets.__file__).parent / "data" / name
    if not (place / f"{name}_TRAIN.ts").exists():  # aeon would try to download it
        raise NotAvailableError(f"not available: this version of aeon has no files of {name}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return uea(place)


def cases(x: Any) -> list[NDArray[np.float32]]:
    """Return a list of arrays [channels, time]."""
    return [np.ascontiguousarray(case, dtype=np.float32) for case in x]


def cue(steps: int, folder: Path | None) -> Parts:
    """Generate noise with a class mean of -1 or 1 in the first 10 steps."""

    def part(seed: int, count: int) -> Part:
        random = np.random.RandomState(seed)
        y = np.arange(count) % 2
        x = random.randn(count, 1, steps) / 2
        x[:, 0, :10] += np.where(y, 1.0, -1.0)[:, None]
        return Part(cases(x), y)

    return Parts(part(0, 300), part(1, 400))


def _uea(name: str, half: str, **budget: Any) -> DataSet:
    return DataSet(name, half, partial(in_folder, uea, f"uea/{name}"), **budget)


def _aeon(name: str, half: str, **budget: Any) -> DataSet:
    return DataSet(name, half, partial(in_aeon, name), **budget)


def _recorded(
    name: str, half: str, load: Callable[[Path], Parts], path: str, kind: str = "frames", **budget: Any
) -> DataSet:
    return DataSet(name, half, partial(in_folder, load, path), kind, **budget)


# PLAID is not listed: aeon names it, but the wheel has no files of it. UnitTest is a cut of Chinatown for aeon's own tests.
SETS = {
    one.name: one
    for one in (
        _uea("ERing", DEVELOPMENT),
        _uea("NATOPS", DEVELOPMENT),
        _aeon("JapaneseVowels", DEVELOPMENT),
        _aeon("ArrowHead", DEVELOPMENT, rival_seeds=3),
        _aeon("ItalyPowerDemand", DEVELOPMENT),
        _recorded("HAPT-frames", DEVELOPMENT, hapt_frames, "hapt/HAPT.zip", rival_seeds=3),
        DataSet("cue-600", DEVELOPMENT, partial(cue, 600), "cue", rival_seeds=3, rival_minibatches=0.5),
        _uea("Epilepsy", JUDGEMENT, rival_seeds=3),
        _aeon("BasicMotions", JUDGEMENT),
        _aeon("GunPoint", JUDGEMENT),
        _aeon("Covid3Month_disc", JUDGEMENT),
        _aeon("PickupGestureWiimoteZ", JUDGEMENT, rival_seeds=3),
        _aeon("OSULeaf", JUDGEMENT, rival_seeds=3),
        _aeon("ACSF1", JUDGEMENT, rival_seeds=3, rival_minibatches=0.5),
        _recorded(
            "HAPT-segments",
            JUDGEMENT,
            hapt_segments,
            "hapt/HAPT.zip",
            "sequences",
            rival_seeds=3,
        ),
        _recorded("GesturePhase-frames", JUDGEMENT, gesture_frames, "gesture_phase", rival_seeds=3),
        _recorded("TIMIT-sample-frames", JUDGEMENT, timit_frames, "timit_sample/timit.zip", rival_seeds=3),
        DataSet("cue-2000", JUDGEMENT, partial(cue, 2000), "cue", rival_seeds=2, rival_minibatches=0.5),
    )
}


PREPARED = "prepared"
"""Folder below the data folder with sets that `prepare` has written: for machines without aeon."""


@lru_cache(maxsize=4)
def loaded(name: str, folder: Path | None) -> Parts:
    """Return the parts of a data set; some are kept in memory."""
    if folder is not None and (path := folder / PREPARED / f"{name}.npz").exists():
        return read_prepared(path)
    return SETS[name].load(folder)


def prepare(name: str, folder: Path | None, out: Path) -> None:
    """Write a data set as one file, which needs neither aeon nor the original files."""
    arrays: dict[str, Any] = {}
    for title, part in zip(Parts._fields, SETS[name].load(folder), strict=True):
        arrays[f"{title}_x"] = np.concatenate([case.T for case in part.x])
        arrays[f"{title}_lengths"] = [case.shape[1] for case in part.x]
        labels = np.concatenate(part.y).tolist() if SETS[name].frames else np.asarray(part.y).tolist()
        arrays[f"{title}_y"] = np.array(["" if label is None else str(label) for label in labels])
        if part.groups is not None:
            arrays[f"{title}_groups"] = np.asarray(part.groups).astype(str)
    out.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(out / f"{name}.npz", **arrays)


def read_prepared(path: Path) -> Parts:
    """Read what `prepare` has written; classes are words."""
    arrays = np.load(path)

    def part(title: str) -> Part:
        ends = np.cumsum(arrays[f"{title}_lengths"])[:-1]
        x = [np.ascontiguousarray(case.T) for case in np.split(arrays[f"{title}_x"], ends)]
        y: Any = arrays[f"{title}_y"]
        if SETS[path.stem].frames:
            y = np.split(np.array([label or None for label in y.tolist()], dtype=object), ends)
        return Part(x, y, arrays.get(f"{title}_groups"))

    return Parts(part("train"), part("test"))


def summary(name: str, folder: Path | None) -> str:
    """Return one line on the cases and classes of a data set."""
    try:
        parts = loaded(name, folder)
    except NotAvailableError as error:
        return f"{name}: {error}"
    words = [f"{name} ({SETS[name].half})"]
    for title, part in (("train", parts.train), ("test", parts.test)):
        lengths = [case.shape[1] for case in part.x]
        labels = np.concatenate(part.y).tolist() if SETS[name].frames else part.y.tolist()
        known = [label for label in labels if label is not None]
        counts = {str(label): known.count(label) for label in sorted(set(known))}
        words.append(
            f"{title} {len(part.x)} cases, {part.x[0].shape[0]} channels, {min(lengths)} to {max(lengths)} steps, "
            f"{len(labels) - len(known)} unlabelled, classes {counts}"
            + (f", {len(set(part.groups))} groups" if part.groups is not None else "")
        )
        assert all(np.isfinite(case).all() for case in part.x), f"{name}: missing values"
    return "; ".join(words)
