"""A study's folder, on a disk or at an address. Every write is atomic: a kill or a full disk leaves the last complete file.

study.json                     settings, row of the paper, data, and what made it: command, commit, versions, machine
groups.json                    how many trials train at once
trials.jsonl                   one line per finished trial
curves.safetensors             learning curves, as columns: trial, step, train_loss, val_error
gradients.safetensors          gradient norms, if they were asked for: trial, step, norms [.., tau]
models/trial-000.safetensors   each trial's parameters at its best validation
checkpoint-000.safetensors     a group that is running or has crashed, by its first trial, to resume from
"""

import errno
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import safetensors
import torch
from safetensors.torch import save
from torch import Tensor

from mistrnn.errors import UsageError
from mistrnn.files import LOCK, LOCK_OWNER
from mistrnn.training.provenance import about_this_run
from mistrnn.training.recorded import COLUMNS, FORMAT, Recorded
from mistrnn.training.trainer import Experiment

OWN_FILES = re.compile(r"(study|groups)\.json|trials\.jsonl|(curves|gradients|checkpoint-\d+)\.safetensors")
CHECKPOINT = re.compile(r"checkpoint-(\d+)\.safetensors")
OWN_MODELS = re.compile(r"trial-\d+\.safetensors")


class Store(Recorded):
    """The folder of one study, held by one process at a time; use it as a context manager.

    Args:
        folder: a path, or an address that fsspec knows, such as s3://bucket/study.
        study: the settings.
        data_identity: a digest of the task's files.
        row: the row of the paper that the study is for, such as table1/mist-139.
        fresh: forget the study that is there.
    """

    def __init__(
        self,
        folder: Path | str,
        study: Experiment,
        data_identity: str | None = None,
        *,
        row: str | None = None,
        fresh: bool = False,
    ) -> None:
        super().__init__(folder)
        try:
            self._refuse_foreign_folder()
            self._files.make("models")
            self._files.lock()
            self._remove(half_written_only=not fresh)
            self._settle(study, data_identity, row)
        except BaseException as error:
            self._files.unlock()
            if isinstance(error, OSError):
                raise UsageError(f"cannot write to the folder {self.folder}: {error.strerror}.") from error
            raise

    def __enter__(self) -> "Store":
        return self

    def __exit__(self, *_: object) -> None:
        self._files.unlock()

    def _refuse_foreign_folder(self) -> None:
        """Raise if the folder holds files but no study: nothing is written there."""
        names = self._files.names()
        ours = {LOCK, f"{LOCK}.part", LOCK_OWNER, f"{LOCK_OWNER}.part", "models", "study.json.part"}
        foreign = sorted(set(names) - ours)
        if foreign and "study.json" not in names:
            raise UsageError(
                f"{self.folder} holds other things than a study ({', '.join(foreign[:3])}); use a new or an empty folder."
            )

    def _remove(self, *, half_written_only: bool) -> None:
        """Remove the remains of a killed write, or the whole study; other files stay."""
        for inside, pattern in (("", OWN_FILES), ("models", OWN_MODELS)):
            for found in self._files.names(inside):
                name = found.removesuffix(".part")
                if pattern.fullmatch(name) and (found != name or not half_written_only):
                    self._files.remove(f"{inside}/{found}" if inside else found)

    def _settle(self, study: Experiment, data_identity: str | None, row: str | None) -> None:
        """Write the settings of a new study, or compare them with the stored ones."""
        if not self._exists("study.json"):
            settings = {"format": FORMAT, "settings": study.as_dict(), "data": data_identity, "about": about_this_run()}
            if row is not None:
                settings["row"] = row
            self._write("study.json", (json.dumps(settings, indent=2) + "\n").encode())
            return
        stored = self.settings()
        differences = study.differences(stored["settings"])
        if stored.get("data") != data_identity:
            differences.append(f"data: {stored.get('data')!r} there, {data_identity!r} here")
        if differences:
            again = (
                "--fresh to start over"
                if study.word == "study"
                else "remove this one (mist tune --fresh) to start over"
            )
            raise UsageError(
                f"{self.folder} holds another {study.word}; what differs:\n  "
                + "\n  ".join(differences)
                + f"\nUse another folder, or {again}."
            )

    def note_continuation(self) -> None:
        """Note the command, the code and the machine that resume the study, unless they are those of the last note."""
        stored = self.settings()
        before = stored.get("continued", [])
        last = before[-1] if before else stored.get("about", {})
        now = about_this_run()
        if {**last, "began": None} != {**now, "began": None}:
            stored["continued"] = [*before, now]
            self._write("study.json", (json.dumps(stored, indent=2) + "\n").encode())

    def group_size(self) -> int | None:
        """Return how many trials of this study train at once, if that has been decided."""
        if not self._exists("groups.json"):
            return None
        size = self._read_json("groups.json").get("group_size")
        if not isinstance(size, int) or size < 1:
            raise UsageError(f"{self._files.at('groups.json')}: expected a group_size >= 1, got {size!r}.")
        return size

    def set_group_size(self, size: int) -> None:
        """Decide how many trials train at once."""
        self._write("groups.json", json.dumps({"group_size": size}).encode())

    def finish(
        self,
        rows: list[dict[str, Any]],
        curves: dict[int, list[tuple[int, float, float]]],
        models: dict[int, dict[str, Tensor]],
        gradients: Mapping[int, Sequence[tuple[int, Tensor]]] | None = None,
    ) -> None:
        """Add finished trials. trials.jsonl comes last: a trial that stands there is complete."""
        for trial, parameters in models.items():
            self._write(f"models/trial-{trial:03}.safetensors", save(parameters))
        points = [(trial, *point) for trial, curve in curves.items() for point in curve]
        kinds = (torch.int64, torch.int64, torch.float64, torch.float64)
        new = {
            name: torch.tensor([point[k] for point in points], dtype=kind)
            for k, (name, kind) in enumerate(zip(COLUMNS, kinds, strict=True))
        }
        self._write("curves.safetensors", save(_merged(self.curves(), new)))
        measured = [(trial, step, norms) for trial, own in (gradients or {}).items() for step, norms in own]
        if measured:
            new = {
                "trial": torch.tensor([trial for trial, _, _ in measured]),
                "step": torch.tensor([step for _, step, _ in measured]),
                "norms": torch.stack([norms for _, _, norms in measured]),
            }
            self._write("gradients.safetensors", save(_merged(self.gradients(), new)))
        merged = {row["trial"]: row for row in self.trials()} | {row["trial"]: row for row in rows}
        lines = [json.dumps(merged[trial], allow_nan=False) + "\n" for trial in sorted(merged)]
        self._write("trials.jsonl", "".join(lines).encode())

    def save_checkpoint(self, first: int, tensors: dict[str, Tensor], rest: dict[str, Any]) -> None:
        """Replace the checkpoint of the group that begins with this trial."""
        self._write(f"checkpoint-{first:03}.safetensors", save(tensors, metadata={"group": json.dumps(rest)}))

    def drop_checkpoint(self, first: int) -> None:
        """Remove the checkpoint of a finished group."""
        name = f"checkpoint-{first:03}.safetensors"
        try:
            self._files.remove(name)
        except OSError as error:
            raise UsageError(f"cannot remove {self._files.at(name)}: {error.strerror}.") from error

    def checkpoints(self) -> list[int]:
        """Return the first trials of all groups that have a checkpoint, in order."""
        try:
            found = [CHECKPOINT.fullmatch(name) for name in self._files.names()]
        except OSError as error:
            raise UsageError(f"{self.folder}: {error.strerror}.") from error
        return sorted(int(match[1]) for match in found if match)

    def load_checkpoint(self, first: int) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """Return the checkpoint of the group that begins with this trial, if there is one."""
        name = f"checkpoint-{first:03}.safetensors"
        if not self._exists(name):
            return None
        try:
            tensors, metadata = self._tensors_and_metadata(name)
            return tensors, json.loads(metadata["group"])
        except OSError as error:
            raise UsageError(f"{self._files.at(name)}: not readable ({error}).") from error
        except (safetensors.SafetensorError, KeyError, TypeError, ValueError) as error:
            raise UsageError(
                f"{self._files.at(name)}: not a checkpoint ({error}); remove it to start its trials again."
            ) from error

    def _write(self, name: str, content: bytes) -> None:
        try:
            self._files.write(name, content)
        except OSError as error:
            reason = "the disk is full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else error.strerror
            raise UsageError(
                f"cannot write {self._files.at(name)}: {reason}. What was written before is intact; the same command resumes "
                "from there."
            ) from error


def _merged(before: Mapping[str, Tensor], new: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the rows of both as columns in the order of trial and step; of two for the same, the last one stays.

    >>> old = {"trial": torch.tensor([0, 1]), "step": torch.tensor([5, 5]), "norms": torch.tensor([0.1, 0.2])}
    >>> new = {"trial": torch.tensor([1, 0]), "step": torch.tensor([5, 2]), "norms": torch.tensor([0.3, 0.4])}
    >>> _merged(old, new)["norms"]
    tensor([0.4000, 0.1000, 0.3000])
    """
    columns = {name: torch.cat([before[name], column]) if before else column for name, column in new.items()}
    order = columns["step"].argsort(stable=True)
    order = order[columns["trial"][order].argsort(stable=True)]
    trial, step = columns["trial"][order], columns["step"][order]
    is_last = torch.ones_like(order, dtype=torch.bool)
    is_last[:-1] = (trial[1:] != trial[:-1]) | (step[1:] != step[:-1])
    return {name: column[order[is_last]] for name, column in columns.items()}
