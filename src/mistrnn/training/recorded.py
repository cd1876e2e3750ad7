"""Read a study's folder, finished or still running, without writing to it; `store.py` lists its files."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import safetensors
import torch
from safetensors.torch import load
from torch import Tensor

from mistrnn.errors import UsageError
from mistrnn.files import folder_at
from mistrnn.tasks import Task
from mistrnn.training.model import Model
from mistrnn.training.study import Study

FORMAT = 1
COLUMNS = ("trial", "step", "train_loss", "val_error")

ROW: dict[str, Callable[[Any], bool]] = {
    "trial": lambda v: _is_whole(v) and v >= 0,
    "status": lambda v: v in ("ok", "diverged", "stopped", "crashed"),
    "learning_rate": lambda v: _is_number(v) and v > 0,
    "val_error": lambda v: v is None or _is_number(v),
    "test_error": lambda v: v is None or _is_number(v),
    "best_step": lambda v: v is None or _is_whole(v),
    "steps": lambda v: v is None or _is_whole(v),
    "parameters": lambda v: v is None or _is_whole(v),
    "seconds": lambda v: v is None or _is_number(v),
    "group": lambda v: _is_whole(v) and v >= 1,
    "device": lambda v: isinstance(v, str),
}
"""The keys of a line of trials.jsonl, and their checks."""


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return (_is_whole(value) or isinstance(value, float)) and math.isfinite(value)


def _what_is_wrong(row: Any) -> str | None:
    if not isinstance(row, dict):
        return "expected a trial with its status"
    for name, holds in ROW.items():
        if name not in row or not holds(row[name]):
            got = repr(row[name])[:40] if name in row else "nothing"
            return f"expected a trial with its status; its {name} is {got}"
    if row["val_error"] is None and row["test_error"] is not None:
        return "expected no test error without a validation error"
    return None


def _model_name(trial: int) -> str:
    return f"models/trial-{trial:03}.safetensors"


class Recorded:
    """The contents of a study's folder so far.

    Args:
        folder: a path, or an address that fsspec knows, such as s3://bucket/study.
    """

    def __init__(self, folder: Path | str) -> None:
        self._files = folder_at(folder)
        self.folder = self._files.place

    def settings(self) -> dict[str, Any]:
        """Return study.json: format, settings, data, about."""
        if not self._exists("study.json"):
            raise UsageError(f"{self.folder}: expected the folder of a study, and there is no study.json in it.")
        stored = self._read_json("study.json")
        if stored.get("format") != FORMAT or not isinstance(stored.get("settings"), dict):
            raise UsageError(
                f"{self._files.at('study.json')}: expected a study of format {FORMAT}, got {stored.get('format')!r}."
            )
        return stored

    def study(self) -> Study:
        """Return the study's settings."""
        if "search" in self.settings()["settings"]:
            raise UsageError(f"{self.folder}: expected a study, got one stage of a search for settings (`mist tune`).")
        try:
            return Study(**self.settings()["settings"])
        except UsageError as error:
            raise UsageError(f"{self._files.at('study.json')}: {error}") from error
        except (TypeError, ValueError, AttributeError) as error:
            raise UsageError(
                f"{self._files.at('study.json')}: settings that this version does not know ({error})."
            ) from error

    def row(self) -> str | None:
        """Return the row of the paper that the study is for, such as table1/mist-139, if its folder stores one."""
        name = self.settings().get("row")
        if name is not None and not isinstance(name, str):
            raise UsageError(f"{self._files.at('study.json')}: expected the name of a row, got {name!r}.")
        return name

    def trials(self) -> list[dict[str, Any]]:
        """Return the finished trials."""
        rows, problems = self.readable_trials()
        if problems:
            raise UsageError(problems[0])
        return rows

    def readable_trials(self) -> tuple[list[dict[str, Any]], list[str]]:
        """Return the finished trials whose lines can be read, and a message about each other line."""
        if not self._exists("trials.jsonl"):
            return [], []
        path = self._files.at("trials.jsonl")
        try:
            lines = self._files.read("trials.jsonl").decode(errors="replace").splitlines()
        except OSError as error:
            raise UsageError(f"{path}: {error.strerror}.") from error
        rows, problems, seen = [], [], set()
        for number, line in enumerate(lines, start=1):
            try:
                row = json.loads(line)
                wrong = _what_is_wrong(row) or (f"trial {row['trial']} once more" if row["trial"] in seen else "")
            except (ValueError, RecursionError) as error:
                wrong = f"not JSON ({error})"
            if wrong:
                problems.append(f"{path}, line {number}: {wrong}.")
            else:
                rows.append(row)
                seen.add(row["trial"])
        return rows, problems

    def curves(self) -> dict[str, Tensor]:
        """Return the learning curves of the finished trials as columns."""
        if not self._exists("curves.safetensors"):
            empty = torch.zeros(0, dtype=torch.int64)
            return {"trial": empty, "step": empty, "train_loss": empty.double(), "val_error": empty.double()}
        columns = self._read_tensors("curves.safetensors")
        if sorted(columns) != sorted(COLUMNS) or len({column.shape for column in columns.values()}) != 1:
            raise UsageError(
                f"{self._files.at('curves.safetensors')}: expected the columns {', '.join(COLUMNS)}, equally long, got "
                f"{', '.join(columns)}."
            )
        return columns

    def gradients(self) -> dict[str, Tensor]:
        """Return the gradient norms of the finished trials: trial and step [N], norms [N, tau]; nothing if none are there."""
        if not self._exists("gradients.safetensors"):
            return {}
        columns = self._read_tensors("gradients.safetensors")
        shapes = {name: list(column.shape) for name, column in columns.items()}
        norms = shapes.get("norms", [])
        if (
            sorted(columns) != ["norms", "step", "trial"]
            or len(norms) != 2
            or not shapes["trial"] == shapes["step"] == norms[:1]
        ):
            raise UsageError(
                f"{self._files.at('gradients.safetensors')}: expected trial [N], step [N] and norms [N, tau], got {shapes}."
            )
        return columns

    def best_trial(self) -> int:
        """Return the finished trial with the lowest validation error."""
        validated = [row for row in self.trials() if row.get("val_error") is not None]
        if not validated:
            raise UsageError(
                f"{self.folder}: expected a finished trial with a validation error, and there is none yet."
            )
        return int(min(validated, key=lambda row: (row["val_error"], row["trial"]))["trial"])

    def model(self, trial: int, task: Task) -> Model:
        """Return a trial's model as it was at its best validation, on the CPU."""
        model = self.study().model(task)
        found = self.tensors_of(trial)
        try:
            model.load_state_dict(found)
        except RuntimeError as error:
            path = self._files.at(_model_name(trial))
            raise UsageError(f"{path}: not a model of this study ({error}).") from error
        return model

    def tensors_of(self, trial: int) -> dict[str, Tensor]:
        """Return a trial's parameters as they were at its best validation, by name."""
        name = _model_name(trial)
        if not self._exists(name):
            raise UsageError(
                f"{self._files.at(name)}: there is no model of trial {trial}: it is not finished, or has never been "
                "validated."
            )
        return self._read_tensors(name)

    def _exists(self, name: str) -> bool:
        try:
            return self._files.exists(name)
        except OSError as error:
            raise UsageError(f"{self._files.at(name)}: {error.strerror}.") from error

    def _read_tensors(self, name: str) -> dict[str, Tensor]:
        try:
            return self._tensors_and_metadata(name)[0]
        except (safetensors.SafetensorError, OSError) as error:
            raise UsageError(f"{self._files.at(name)}: not readable ({error}).") from error

    def _tensors_and_metadata(self, name: str) -> tuple[dict[str, Tensor], dict[str, str]]:
        """Return the tensors and the metadata of a safetensors file; on a disk, without a second copy of the file in memory."""
        if isinstance(self.folder, Path):
            with safetensors.safe_open(self.folder / name, framework="pt") as file:
                tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (no iterator)
                return tensors, file.metadata() or {}
        content = self._files.read(name)
        tensors = load(content)
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        return tensors, header.get("__metadata__") or {}

    def _read_json(self, name: str) -> dict[str, Any]:
        path = self._files.at(name)
        try:
            content = json.loads(self._files.read(name))
        except (OSError, ValueError, RecursionError) as error:
            raise UsageError(f"{path}: not readable as JSON ({error}).") from error
        if not isinstance(content, dict):
            raise UsageError(f"{path}: expected a JSON object, got {type(content).__name__}.")
        return content
