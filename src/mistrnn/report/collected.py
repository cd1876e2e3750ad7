"""Studies from any set of folders, as much of each as can be read, and what could not be read in words."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from mistrnn.errors import UsageError
from mistrnn.paper.comparison import SeedRun
from mistrnn.training import Recorded, Study, Summary

MOST_STUDIES = 500


@dataclass(frozen=True)
class Found:
    """One study: its settings and what it has so far."""

    folder: Path
    name: str
    """The folder's name under the one that was asked for."""
    study: Study
    about: dict[str, Any]
    data: str | None
    trials: list[dict[str, Any]]
    curves: dict[str, Tensor] = field(default_factory=dict)
    gradients: dict[str, Tensor] = field(default_factory=dict)

    @property
    def run(self) -> SeedRun:
        """Its trials, as the paper's tables take them."""
        return SeedRun(self.study, tuple(self.trials), self.data)

    @property
    def summary(self) -> Summary:
        """Its top 10%."""
        return self.run.summary


@dataclass(frozen=True)
class Collected:
    """Studies, what could not be read, and what a reader should know about those that could."""

    studies: list[Found]
    problems: list[str]
    notes: list[str]


def collect(folders: Sequence[Path]) -> Collected:
    """Return the studies in these folders, at any depth, each once, and a line about each thing that could not be read."""
    found: list[Found] = []
    problems: list[str] = []
    notes: list[str] = []
    seen: set[Path] = set()
    for folder in folders:
        if not folder.is_dir():
            problems.append(f"{folder}: there is no such folder.")
            continue
        places = _places(folder)
        if not places:
            problems.append(f"{folder}: there is no study in this folder (no study.json).")
        for place in places:
            if place.resolve() in seen:
                continue
            seen.add(place.resolve())
            if len(seen) > MOST_STUDIES:
                continue
            name = place.relative_to(folder).as_posix() if place != folder else place.resolve().name
            if len(folders) > 1 and place != folder:
                name = f"{folder.resolve().name}/{name}"
            try:
                found.append(_read(place, name, problems))
            except UsageError as error:
                problems.append(str(error))
    if len(seen) > MOST_STUDIES:
        notes.append(f"There are {len(seen)} studies; the first {MOST_STUDIES} are shown.")
    versions = sorted({str(one.about["mistrnn"]) for one in found if "mistrnn" in one.about})
    if len(versions) > 1:
        notes.append(f"The studies come from different versions of mistrnn: {', '.join(versions)}.")
    return Collected(found, problems, notes)


def _places(folder: Path) -> list[Path]:
    """Return the folders of studies below a folder, links followed once."""
    places, entered = [], set()
    for place, folders, files in os.walk(folder, followlinks=True):
        real = os.path.realpath(place)
        if real in entered:
            folders.clear()
            continue
        entered.add(real)
        if "study.json" in files:
            places.append(Path(place))
    return sorted(places)


def _read(place: Path, name: str, problems: list[str]) -> Found:
    recorded = Recorded(place)
    settings, study = recorded.settings(), recorded.study()
    trials, unreadable = recorded.readable_trials()
    problems += unreadable
    parts: dict[str, dict[str, Tensor]] = {"curves": {}, "gradients": {}}
    for part, read in (("curves", recorded.curves), ("gradients", recorded.gradients)):
        try:
            parts[part] = read()
        except UsageError as error:  # the rest is still shown
            problems.append(str(error))
    about = settings.get("about")
    data = settings.get("data")
    return Found(place, name, study, about if isinstance(about, dict) else {}, data, trials, **parts)
