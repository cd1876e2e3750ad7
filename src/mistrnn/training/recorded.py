"""Reading a study's folder, finished or still running, without touching anything in it; `store.py` says what it holds."""

import json
from pathlib import Path
from typing import Any

import safetensors
import torch
from safetensors.torch import load_file
from torch import Tensor

from mistrnn.errors import UsageError
from mistrnn.tasks import Task
from mistrnn.training.model import Model
from mistrnn.training.study import Study

FORMAT = 1


class Recorded:
    """What the folder of a study holds so far."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def settings(self) -> dict[str, Any]:
        """Return study.json: format, settings, data, about."""
        path = self.folder / "study.json"
        if not path.exists():
            raise UsageError(f"{self.folder}: expected the folder of a study, and there is no study.json in it.")
        stored = self._read_json(path)
        if stored.get("format") != FORMAT or not isinstance(stored.get("settings"), dict):
            raise UsageError(f"{path}: expected a study of format {FORMAT}, got {stored.get('format')!r}.")
        return stored

    def study(self) -> Study:
        """Return the study's settings."""
        try:
            return Study(**self.settings()["settings"])
        except TypeError as error:
            raise UsageError(
                f"{self.folder / 'study.json'}: settings that this version does not know ({error})."
            ) from error

    def trials(self) -> list[dict[str, Any]]:
        """Return the finished trials."""
        path = self.folder / "trials.jsonl"
        if not path.exists():
            return []
        try:
            rows = [json.loads(line) for line in path.read_text().splitlines()]
        except ValueError as error:
            raise UsageError(f"{path}: not a list of trials ({error}).") from error
        for number, row in enumerate(rows, start=1):
            if not isinstance(row, dict) or not {"trial", "status"} <= row.keys():
                raise UsageError(f"{path}, line {number}: expected a trial with its status.")
        return rows

    def curves(self) -> dict[str, Tensor]:
        """Return the learning curves of the finished trials as columns."""
        path = self.folder / "curves.safetensors"
        if not path.exists():
            empty = torch.zeros(0, dtype=torch.int64)
            return {"trial": empty, "step": empty, "train_loss": empty.double(), "val_error": empty.double()}
        return self._read_tensors(path)

    def gradients(self) -> dict[str, Tensor]:
        """Return the gradient norms of the finished trials: trial and step [N], norms [N, tau]; nothing if none are there."""
        path = self.folder / "gradients.safetensors"
        return self._read_tensors(path) if path.exists() else {}

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
        path = self.folder / "models" / f"trial-{trial:03}.safetensors"
        if not path.exists():
            raise UsageError(
                f"{path}: there is no model of trial {trial}: it is not finished, or has never been validated."
            )
        model = self.study().model(task)
        found = self._read_tensors(path)
        try:
            model.load_state_dict(found)
        except RuntimeError as error:
            raise UsageError(f"{path}: not a model of this study ({error}).") from error
        return model

    def _read_tensors(self, path: Path) -> dict[str, Tensor]:
        try:
            return load_file(path)
        except safetensors.SafetensorError as error:
            raise UsageError(f"{path}: not readable ({error}).") from error

    def _read_json(self, path: Path) -> dict[str, Any]:
        try:
            content = json.loads(path.read_text())
        except (OSError, ValueError) as error:
            raise UsageError(f"{path}: not readable as JSON ({error}).") from error
        if not isinstance(content, dict):
            raise UsageError(f"{path}: expected a JSON object, got {type(content).__name__}.")
        return content
