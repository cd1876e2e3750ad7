"""Studies from any set of folders, as much of each as can be read, and what could not be read in words."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from mistrnn.errors import UsageError
from mistrnn.training import Recorded, Study, Summary, summarise

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
    def summary(self) -> Summary:
        """Its top 10%."""
        return summarise(self.trials)

    @property
    def finished(self) -> int:
        """How many trials have come to an end, diverged ones among them."""
        return sum(trial["status"] != "crashed" for trial in self.trials)


def collect(folders: Sequence[Path]) -> tuple[list[Found], list[str]]:
    """Return the studies in these folders, at any depth, and a line about each thing that could not be read."""
    found, problems = [], []
    for folder in folders:
        if not folder.is_dir():
            problems.append(f"{folder}: there is no such folder.")
            continue
        places = sorted(path.parent for path in folder.rglob("study.json"))
        if not places:
            problems.append(f"{folder}: there is no study in this folder (no study.json).")
        if len(places) > MOST_STUDIES:
            problems.append(f"{folder}: {len(places)} studies; only the first {MOST_STUDIES} are shown.")
        for place in places[:MOST_STUDIES]:
            name = str(place.relative_to(folder)) if place != folder else place.resolve().name
            try:
                found.append(_read(place, name, problems))
            except UsageError as error:
                problems.append(str(error))
    versions = sorted({str(one.about.get("mistrnn")) for one in found})
    if len(versions) > 1:
        problems.append(f"The studies come from different versions of mistrnn: {', '.join(versions)}.")
    return found, problems


def _read(place: Path, name: str, problems: list[str]) -> Found:
    recorded = Recorded(place)
    settings, study = recorded.settings(), recorded.study()
    parts: dict[str, Any] = {"trials": [], "curves": {}, "gradients": {}}
    for part, read in (("trials", recorded.trials), ("curves", recorded.curves), ("gradients", recorded.gradients)):
        try:
            parts[part] = read()
        except UsageError as error:  # the rest is still shown
            problems.append(str(error))
    about = settings.get("about")
    return Found(place, name, study, about if isinstance(about, dict) else {}, settings.get("data"), **parts)
