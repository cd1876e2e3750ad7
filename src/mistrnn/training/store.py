"""A study's folder. Every write is atomic: a kill, a crash or a full disk leaves the last complete file.

study.json              settings and versions
trials.jsonl            one line per finished trial
curves.safetensors      learning curves, as columns: trial, step, train_loss, val_error
models/trial-000.safetensors   each trial's parameters at its best validation
checkpoint.safetensors  the group of trials that is running, to resume from
"""

import errno
import fcntl
import json
import os
import shutil
from pathlib import Path
from typing import Any

import safetensors
import torch
from safetensors.torch import load_file, save
from torch import Tensor

from mistrnn.errors import UsageError
from mistrnn.training.study import Study

FORMAT = 1


class Store:
    """The folder of one study, held by one process at a time; use it as a context manager."""

    def __init__(self, folder: Path, study: Study, *, fresh: bool = False) -> None:
        self.folder = folder
        try:
            (folder / "models").mkdir(parents=True, exist_ok=True)
            self._lock = open(folder / "lock", "a+")  # noqa: SIM115 (closed in __exit__)
        except OSError as error:
            raise UsageError(f"cannot write to the folder {folder}: {error.strerror}.") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock.seek(0)
            owner = self._lock.read().strip()
            self._lock.close()
            raise UsageError(
                f"{folder} is in use by another process ({owner}); wait for it or use another folder."
            ) from None
        try:
            self._lock.truncate(0)
            self._lock.write(f"process {os.getpid()}")
            self._lock.flush()
            if fresh:
                self._clear()
            self._settle(study)
        except BaseException:
            self._lock.close()
            raise

    def __enter__(self) -> "Store":
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.close()

    def _clear(self) -> None:
        for name in ("study.json", "trials.jsonl", "curves.safetensors", "checkpoint.safetensors"):
            (self.folder / name).unlink(missing_ok=True)
        shutil.rmtree(self.folder / "models", ignore_errors=True)
        (self.folder / "models").mkdir()

    def _settle(self, study: Study) -> None:
        """Write the settings, or make sure that they are those of the study that is there."""
        path = self.folder / "study.json"
        for leftover in self.folder.rglob("*.part"):
            leftover.unlink()
        if not path.exists():
            if any((self.folder / name).exists() for name in ("trials.jsonl", "checkpoint.safetensors")):
                raise UsageError(
                    f"{self.folder} holds trials but no study.json; use another folder, or --fresh to start over."
                )
            self.write_json("study.json", {"format": FORMAT, "settings": study.as_dict(), "torch": torch.__version__})
            return
        stored = self._read_json(path)
        if stored.get("format") != FORMAT or not isinstance(stored.get("settings"), dict):
            raise UsageError(f"{path}: expected a study of format {FORMAT}, got {stored.get('format')!r}.")
        differences = study.differences(json.loads(json.dumps(stored["settings"])))
        if differences:
            raise UsageError(
                f"{self.folder} holds another study; what differs:\n  "
                + "\n  ".join(differences)
                + "\nUse another folder, or --fresh to start over."
            )

    def trials(self) -> list[dict[str, Any]]:
        """Return the finished trials."""
        path = self.folder / "trials.jsonl"
        if not path.exists():
            return []
        try:
            return [json.loads(line) for line in path.read_text().splitlines()]
        except ValueError as error:
            raise UsageError(f"{path}: not a list of trials ({error}).") from error

    def curves(self) -> dict[str, Tensor]:
        """Return the learning curves of the finished trials as columns."""
        path = self.folder / "curves.safetensors"
        if not path.exists():
            empty = torch.zeros(0, dtype=torch.int64)
            return {"trial": empty, "step": empty, "train_loss": empty.double(), "val_error": empty.double()}
        return load_file(path)

    def finish(
        self,
        rows: list[dict[str, Any]],
        curves: dict[int, list[tuple[int, float, float]]],
        models: dict[int, dict[str, Tensor]],
    ) -> None:
        """Add finished trials. trials.jsonl comes last: a trial that stands there is complete."""
        for trial, parameters in models.items():
            self._write(f"models/trial-{trial:03}.safetensors", save(parameters))
        points = {
            (trial, step): (loss, error)
            for trial, step, loss, error in zip(*(self.curves()[c].tolist() for c in COLUMNS), strict=True)
        }
        points |= {(trial, step): (loss, error) for trial, curve in curves.items() for step, loss, error in curve}
        ordered = sorted(points)
        columns = {
            "trial": torch.tensor([trial for trial, _ in ordered], dtype=torch.int64),
            "step": torch.tensor([step for _, step in ordered], dtype=torch.int64),
            "train_loss": torch.tensor([points[key][0] for key in ordered], dtype=torch.float64),
            "val_error": torch.tensor([points[key][1] for key in ordered], dtype=torch.float64),
        }
        self._write("curves.safetensors", save(columns))
        merged = {row["trial"]: row for row in self.trials()} | {row["trial"]: row for row in rows}
        lines = [json.dumps(merged[trial]) + "\n" for trial in sorted(merged)]
        self._write("trials.jsonl", "".join(lines).encode())
        (self.folder / "checkpoint.safetensors").unlink(missing_ok=True)

    def save_checkpoint(self, tensors: dict[str, Tensor], rest: dict[str, Any]) -> None:
        """Replace the checkpoint of the running group."""
        self._write("checkpoint.safetensors", save(tensors, metadata={"group": json.dumps(rest)}))

    def load_checkpoint(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """Return the checkpoint of a group that was running, if there is one."""
        path = self.folder / "checkpoint.safetensors"
        if not path.exists():
            return None
        try:
            with safetensors.safe_open(path, framework="pt") as file:
                rest: dict[str, Any] = json.loads(file.metadata()["group"])
                return {name: file.get_tensor(name) for name in file.keys()}, rest  # noqa: SIM118 (no iterator)
        except (safetensors.SafetensorError, KeyError, TypeError, ValueError) as error:
            raise UsageError(f"{path}: not a checkpoint ({error}); remove it to start its trials again.") from error

    def write_json(self, name: str, content: dict[str, Any]) -> None:
        """Replace a JSON file."""
        self._write(name, (json.dumps(content, indent=2) + "\n").encode())

    def _read_json(self, path: Path) -> dict[str, Any]:
        try:
            content = json.loads(path.read_text())
        except (OSError, ValueError) as error:
            raise UsageError(f"{path}: not readable as JSON ({error}).") from error
        if not isinstance(content, dict):
            raise UsageError(f"{path}: expected a JSON object, got {type(content).__name__}.")
        return content

    def _write(self, name: str, content: bytes) -> None:
        """Write beside the old file, make sure that it is on the disk, then take its place in one move."""
        path = self.folder / name
        temporary = path.with_name(path.name + ".part")
        try:
            with open(temporary, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except OSError as error:
            temporary.unlink(missing_ok=True)
            reason = "the disk is full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else error.strerror
            raise UsageError(
                f"cannot write {path}: {reason}. What was written before is intact; the same command resumes from there."
            ) from error


COLUMNS = ("trial", "step", "train_loss", "val_error")
