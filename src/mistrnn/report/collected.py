"""Collect studies from any set of folders, as far as they are readable, with a message for each unreadable file."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from torch import Tensor

from mistrnn.errors import UsageError
from mistrnn.files import folder_at
from mistrnn.paper.comparison import StudyResults, last_errors
from mistrnn.training import Recorded, Study, Summary

MOST_STUDIES = 500


@dataclass(frozen=True)
class Found:
    """One study: its settings and its results so far."""

    folder: Path | str
    name: str
    """The folder's name under the one that was asked for."""
    study: Study
    about: dict[str, Any]
    data: str | None
    row: str | None
    """The row of the paper that it is for, if its folder stores one."""
    trials: list[dict[str, Any]]
    curves: dict[str, Tensor] = field(default_factory=dict)
    gradients: dict[str, Tensor] = field(default_factory=dict)

    @property
    def results(self) -> StudyResults:
        """Its trials, as the paper's tables take them."""
        return StudyResults(self.study, tuple(self.trials), self.data, last_errors(self.curves))

    @property
    def summary(self) -> Summary:
        """Its top 10%."""
        return self.results.summary


@dataclass(frozen=True)
class Collected:
    """Studies, messages about unreadable files, and notes for the reader."""

    studies: list[Found]
    problems: list[str]
    notes: list[str]


def collect(folders: Sequence[Path | str]) -> Collected:
    """Return the studies in these folders, at any depth, each once, and a line about each thing that could not be read.

    Args:
        folders: paths, or addresses that fsspec knows, such as s3://bucket/studies.
    """
    found: list[Found] = []
    problems: list[str] = []
    notes: list[str] = []
    seen: set[Path | str] = set()
    for asked in folders:
        try:
            folder, places = _places(asked)
        except UsageError as error:
            problems.append(str(error))
            continue
        if not places:
            problems.append(f"{folder}: there is no study in this folder (no study.json).")
        for place in places:
            same = place.resolve() if isinstance(place, Path) else place
            if same in seen:
                continue
            seen.add(same)
            if len(seen) > MOST_STUDIES:
                continue
            try:
                found.append(_read(place, _name(place, folder, several=len(folders) > 1), problems))
            except UsageError as error:
                problems.append(str(error))
    if len(seen) > MOST_STUDIES:
        notes.append(f"There are {len(seen)} studies; the first {MOST_STUDIES} are shown.")
    versions = sorted({str(one.about["mistrnn"]) for one in found if "mistrnn" in one.about})
    if len(versions) > 1:
        notes.append(f"The studies come from different versions of mistrnn: {', '.join(versions)}.")
    return Collected(found, problems, notes)


def _places(asked: Path | str) -> tuple[Path | str, list[Path | str]]:
    """Return a folder and the folders of studies in it."""
    folder = folder_at(asked)
    try:
        return folder.place, folder.folders_with("study.json")
    except FileNotFoundError as error:
        raise UsageError(f"{folder.place}: there is no such folder.") from error
    except OSError as error:
        raise UsageError(f"{folder.place}: {error.strerror}.") from error


def _name(place: Path | str, folder: Path | str, *, several: bool) -> str:
    """Return the name of a study under the folder that was asked for, and of that one if there are several."""
    top = folder.resolve().name if isinstance(folder, Path) else folder.rsplit("/", 1)[-1]
    if place == folder:
        return top
    below = PurePosixPath(place).relative_to(folder).as_posix()
    return f"{top}/{below}" if several else below


def _read(place: Path | str, name: str, problems: list[str]) -> Found:
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
    return Found(place, name, study, about if isinstance(about, dict) else {}, data, recorded.row(), trials, **parts)
