"""The folder of a model.

config.json, model.safetensors   the estimator
reading.json                     how tables are read
report/                          the report on the held-out recordings
search/                          the search of `mist tune`: race/ and refit/
"""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from mistrnn.errors import UsageError
from mistrnn.estimators import FrameLabeler, SequenceClassifier, SequenceEstimator, SequenceRegressor
from mistrnn.estimators._saved import CONFIG, WEIGHTS
from mistrnn.estimators._saved import FORMAT as MODEL_FORMAT
from mistrnn.files import LocalFolder, write_whole
from mistrnn.report.evaluation_folder import check_report_folder
from mistrnn.tables import Reading
from mistrnn.training.store import OWN_FILES, OWN_MODELS
from mistrnn.training.tuning import RACE, REFIT

Kind = Literal["recordings", "rows", "numbers"]
"""One class for each recording, one for each row, or a number for each recording."""
ESTIMATORS: dict[Kind, type[SequenceEstimator]] = {
    "recordings": SequenceClassifier,
    "rows": FrameLabeler,
    "numbers": SequenceRegressor,
}
READING, READING_FORMAT, READING_VERSION = "reading.json", "mistrnn-reading", 1
REPORT, SEARCH = "report", "search"
HALF_WRITTEN = ".new-"
"""The beginning of the name of a folder that `written_together` writes into."""


@dataclass(frozen=True)
class Kept:
    """How the tables of a model are read."""

    reading: Reading
    kind: Kind
    labels: str | None
    """The file with the labels, if they had one: its place among the recordings, or its name if it was elsewhere."""
    labels_elsewhere: bool = False

    def skipped(self, recordings: Path) -> list[Path]:
        """Return the files among new recordings that are none: a table of labels in the place where it was."""
        return [] if self.labels is None or self.labels_elsewhere else [recordings / self.labels]


def load_model(folder: Path) -> tuple[SequenceEstimator, Kept]:
    """Return a model and how its tables are read."""
    if not folder.is_dir():
        raise UsageError(f"{folder}: expected the folder of a model, and there is none.")
    estimator = SequenceEstimator.from_pretrained(folder)
    kind = next(name for name, one in ESTIMATORS.items() if type(estimator) is one)
    path, names = folder / READING, estimator.channel_names_
    if not path.exists():  # saved from Python
        if names is None:
            raise UsageError(
                f"{folder}: expected a {READING} or the channels' names in {CONFIG}, because columns are chosen by name. Set "
                "channel_names_ before save_pretrained, or train with `mist fit`."
            )
        return estimator, Kept(Reading(columns=tuple(names)), kind, labels=None)
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        if stored["format"] != READING_FORMAT or stored["version"] != READING_VERSION:
            raise UsageError(
                f"{path}: expected {READING_FORMAT} in version {READING_VERSION}, got {stored['format']} in version "
                f"{stored['version']}: pip install --upgrade mistrnn."
            )
        reading = Reading(**{**stored["reading"], "columns": tuple(stored["reading"]["columns"])})
        # Models from before this was kept skip a file of that name wherever the labels were.
        kept = Kept(reading, stored["kind"], stored["labels"], stored.get("labels_elsewhere", False))
    except UsageError:
        raise
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"{path}: cannot be read ({error!r}): truncated or changed? Train or copy the model again."
        ) from error
    if kept.kind != kind or list(kept.reading.columns or ()) != names:
        raise UsageError(
            f"{path}: belongs to another model than the {CONFIG} beside it. Train or copy the model again."
        )
    return estimator, kept


def save_reading(folder: Path, kept: Kept) -> None:
    stored = {
        "format": READING_FORMAT,
        "version": READING_VERSION,
        "kind": kept.kind,
        "labels": kept.labels,
        "labels_elsewhere": kept.labels_elsewhere,
        "reading": asdict(kept.reading),
    }
    path = folder / READING
    try:
        write_whole(path, (json.dumps(stored, indent=1, ensure_ascii=False) + "\n").encode())
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}.") from error


def check_model_folder(out: Path, force: bool, *, search: bool = False) -> None:
    """Refuse a folder that holds something; with `force`, one in which something that is not ours would be overwritten.

    With `search`, the folder may hold a search to be resumed.
    """
    check_writable(out)
    if search:
        check_search_folder(out / SEARCH)
    if not out.exists() or not any(not search or path.name != SEARCH for path in _finished(out)):
        return
    if not force:
        again = " (a finished search is not run again)" if (out / SEARCH).exists() else ""
        raise UsageError(
            f"{out}: expected a new or an empty folder, got one with files; overwrite a model with --force{again}."
        )
    for name, wanted in ((CONFIG, MODEL_FORMAT), (READING, READING_FORMAT)):
        try:
            content = json.loads((out / name).read_text(encoding="utf-8"))
            ours = isinstance(content, dict) and content.get("format") == wanted
        except FileNotFoundError:
            name, ours = WEIGHTS, name != CONFIG or not (out / WEIGHTS).exists()
        except (OSError, ValueError):
            ours = False
        if not ours:
            raise UsageError(
                f"{out / name}: not written by `mist fit`, so it is not overwritten. Choose another folder."
            )
    check_report_folder(out / REPORT, force=True)


def _finished(out: Path) -> list[Path]:
    """Return what is in a folder, without what a killed write has left."""
    return [path for path in out.iterdir() if not path.name.startswith(HALF_WRITTEN)]


def check_search_folder(folder: Path) -> None:
    """Refuse a folder that holds something else than a search."""
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder}: expected a folder for the search, got a file. Choose another --out.")
    foreign = (
        sorted(path.name for path in folder.iterdir() if path.name not in (RACE, REFIT)) if folder.exists() else []
    )
    if foreign:
        raise UsageError(
            f"{folder}: expected a search, got other files ({', '.join(foreign[:3])}). Choose another --out."
        )


def clear_search_folder(folder: Path) -> None:
    """Remove a search that no other process works on, and nothing else that is there."""
    for stage in (RACE, REFIT):
        files = LocalFolder(folder / stage)
        if not files.place.is_dir():
            continue
        try:
            files.lock()
            for inside, pattern in (("", OWN_FILES), ("models", OWN_MODELS)):
                for name in files.names(inside):
                    if pattern.fullmatch(name.removesuffix(".part")):
                        files.remove(f"{inside}/{name}" if inside else name)
        except OSError as error:
            raise UsageError(f"cannot write to the folder {files.place}: {error.strerror}.") from error
        finally:
            files.unlock()


def check_writable(folder: Path) -> None:
    """Refuse a folder that cannot be made or written, before hours of training."""
    there = folder.absolute()
    while not there.exists() and there != there.parent:
        there = there.parent
    if not there.is_dir():
        raise UsageError(f"cannot write to the folder {folder}: {there} is a file.")
    if not os.access(there, os.W_OK | os.X_OK):
        raise UsageError(f"cannot write to the folder {folder}: Permission denied.")


def check_outside(out: Path, recordings: Path, what: str, option: str = "--out") -> None:
    """Refuse to write among the recordings: what is written there would be read as one the next time."""
    if recordings.is_file() and out.resolve() == recordings.resolve():
        raise UsageError(f"{out}: expected another place for {option}, because the recordings are there.")
    if recordings.is_dir() and out.resolve().is_relative_to(recordings.resolve()):
        raise UsageError(
            f"{out}: expected a {what} outside of {recordings}, because what is in there is read as recordings. Choose another "
            f"place for {option}."
        )
