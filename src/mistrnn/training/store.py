"""A study's folder. Every write is atomic: a kill, a crash or a full disk leaves the last complete file.

study.json                     settings, data and versions
groups.json                    how many trials train at once
trials.jsonl                   one line per finished trial
curves.safetensors             learning curves, as columns: trial, step, train_loss, val_error
gradients.safetensors          gradient norms, if they were asked for: trial, step, norms [.., tau]
models/trial-000.safetensors   each trial's parameters at its best validation
checkpoint-000.safetensors     a group that is running or has crashed, by its first trial, to resume from
"""

import contextlib
import errno
import fcntl
import json
import os
import platform
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import safetensors
import torch
from safetensors.torch import save
from torch import Tensor

from mistrnn import __version__
from mistrnn.errors import UsageError
from mistrnn.training.recorded import COLUMNS, FORMAT, Recorded
from mistrnn.training.study import Study

OWN_FILES = re.compile(r"(study|groups)\.json|trials\.jsonl|(curves|gradients|checkpoint-\d+)\.safetensors")
OWN_MODELS = re.compile(r"trial-\d+\.safetensors")


class Store(Recorded):
    """The folder of one study, held by one process at a time; use it as a context manager."""

    def __init__(self, folder: Path, study: Study, data_identity: str | None = None, *, fresh: bool = False) -> None:
        super().__init__(folder)
        try:
            self._refuse_foreign_folder()
            (folder / "models").mkdir(parents=True, exist_ok=True)
            self._lock = open(folder / "lock", "a+")  # noqa: SIM115 (closed in _let_go)
        except OSError as error:
            raise UsageError(f"cannot write to the folder {folder}: {error.strerror}.") from error
        try:
            self._take_lock()
            self._remove(half_written_only=not fresh)
            self._settle(study, data_identity)
        except OSError as error:
            self._let_go()
            raise UsageError(f"cannot write to the folder {folder}: {error.strerror}.") from error
        except BaseException:
            self._let_go()
            raise

    def __enter__(self) -> "Store":
        return self

    def __exit__(self, *_: object) -> None:
        self._let_go()

    def _let_go(self) -> None:
        with contextlib.suppress(OSError):  # a full disk may refuse even the last bytes of the lock file
            self._lock.close()

    def _refuse_foreign_folder(self) -> None:
        """Nothing is written into, or removed from, a folder that holds other things than a study."""
        if not self.folder.is_dir() or (self.folder / "study.json").exists():
            return
        foreign = sorted({path.name for path in self.folder.iterdir()} - {"lock", "models", "study.json.part"})
        if foreign:
            raise UsageError(
                f"{self.folder} holds other things than a study ({', '.join(foreign[:3])}); use a new or an empty folder."
            )

    def _take_lock(self) -> None:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock.seek(0)
            owner = self._lock.read().strip()
            raise UsageError(
                f"{self.folder} is in use by another process ({owner}); wait for it or use another folder."
            ) from None
        self._lock.truncate(0)
        self._lock.write(f"process {os.getpid()}")
        self._lock.flush()

    def _remove(self, *, half_written_only: bool) -> None:
        """Remove what a killed write left behind, or the whole study; only files that are the study's own."""
        for place, pattern in ((self.folder, OWN_FILES), (self.folder / "models", OWN_MODELS)):
            for path in place.iterdir():
                name = path.name.removesuffix(".part")
                if pattern.fullmatch(name) and (path.name != name or not half_written_only):
                    path.unlink()

    def _settle(self, study: Study, data_identity: str | None) -> None:
        """Write the settings, or make sure that they are those of the study that is there."""
        path = self.folder / "study.json"
        if not path.exists():
            about = {"mistrnn": __version__, "torch": torch.__version__, "python": platform.python_version()}
            about |= {
                "machine": platform.machine(),
                "system": platform.system(),
                "began": time.strftime("%Y-%m-%d %H:%M:%S%z"),
            }
            settings = {"format": FORMAT, "settings": study.as_dict(), "data": data_identity, "about": about}
            self._write("study.json", (json.dumps(settings, indent=2) + "\n").encode())
            return
        stored = self.settings()
        differences = study.differences(stored["settings"])
        if stored.get("data") != data_identity:
            differences.append(f"data: {stored.get('data')!r} there, {data_identity!r} here")
        if differences:
            raise UsageError(
                f"{self.folder} holds another study; what differs:\n  "
                + "\n  ".join(differences)
                + "\nUse another folder, or --fresh to start over."
            )

    def group_size(self) -> int | None:
        """Return how many trials of this study train at once, if that has been decided."""
        path = self.folder / "groups.json"
        if not path.exists():
            return None
        size = self._read_json(path).get("group_size")
        if not isinstance(size, int) or size < 1:
            raise UsageError(f"{path}: expected a group_size >= 1, got {size!r}.")
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
        if any((gradients or {}).values()):
            self._write("gradients.safetensors", save(self._with_gradients(gradients or {})))
        merged = {row["trial"]: row for row in self.trials()} | {row["trial"]: row for row in rows}
        lines = [json.dumps(merged[trial]) + "\n" for trial in sorted(merged)]
        self._write("trials.jsonl", "".join(lines).encode())

    def _with_gradients(self, gradients: Mapping[int, Sequence[tuple[int, Tensor]]]) -> dict[str, Tensor]:
        """Return the gradient norms that are there and new ones as columns."""
        before = self.gradients()
        rows = {
            (trial, step): norms
            for trial, step, norms in zip(
                *(before[name].tolist() if name in before else [] for name in ("trial", "step")),
                before.get("norms", []),
                strict=True,
            )
        }
        rows |= {(trial, step): norms for trial, points in gradients.items() for step, norms in points}
        ordered = sorted(rows)
        return {
            "trial": torch.tensor([trial for trial, _ in ordered]),
            "step": torch.tensor([step for _, step in ordered]),
            "norms": torch.stack([rows[key] for key in ordered]),
        }

    def save_checkpoint(self, first: int, tensors: dict[str, Tensor], rest: dict[str, Any]) -> None:
        """Replace the checkpoint of the group that begins with this trial."""
        self._write(f"checkpoint-{first:03}.safetensors", save(tensors, metadata={"group": json.dumps(rest)}))

    def drop_checkpoint(self, first: int) -> None:
        """Remove the checkpoint of a finished group."""
        (self.folder / f"checkpoint-{first:03}.safetensors").unlink(missing_ok=True)

    def checkpoints(self) -> list[int]:
        """Return the first trials of all groups that have a checkpoint."""
        found = (re.fullmatch(r"checkpoint-(\d+)\.safetensors", path.name) for path in self.folder.iterdir())
        return sorted(int(match[1]) for match in found if match)

    def load_checkpoint(self, first: int) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """Return the checkpoint of the group that begins with this trial, if there is one."""
        path = self.folder / f"checkpoint-{first:03}.safetensors"
        if not path.exists():
            return None
        try:
            with safetensors.safe_open(path, framework="pt") as file:
                rest: dict[str, Any] = json.loads(file.metadata()["group"])
                return {name: file.get_tensor(name) for name in file.keys()}, rest  # noqa: SIM118 (no iterator)
        except (safetensors.SafetensorError, KeyError, TypeError, ValueError) as error:
            raise UsageError(f"{path}: not a checkpoint ({error}); remove it to start its trials again.") from error

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
