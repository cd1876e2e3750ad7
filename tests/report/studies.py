"""Folders of studies without training: what a real one holds, made up from a seed."""

import json
import random
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from mistrnn.training import Study


def write_study(
    folder: Path,
    study: Study,
    *,
    finished: int | None = None,
    diverged: int = 2,
    points: int = 20,
    gradients: bool = False,
    data: str | None = None,
    version: str = "0.1.0",
    name_of_device: str = "cpu",
    level: float = 0.1,
) -> Path:
    """Write a study with invented results: errors around `level`, best at middling learning rates."""
    draw = random.Random(str(study.as_dict()))
    folder.mkdir(parents=True)
    about = {"mistrnn": version, "torch": "2.13.0", "python": "3.11.7", "machine": "x86_64", "system": "Linux"}
    settings = {"format": 1, "settings": study.as_dict(), "data": data, "about": about}
    (folder / "study.json").write_text(json.dumps(settings))
    rows: list[dict[str, Any]] = []
    columns: dict[str, list[float]] = {"trial": [], "step": [], "train_loss": [], "val_error": []}
    steps = [round(study.total_steps * (k + 1) / points) for k in range(points)]
    for trial in range(study.trials if finished is None else finished):
        lost = trial < diverged
        error = level * (1 + draw.random()) if not lost or trial else None
        for k, step in enumerate(steps if error is not None else []):
            columns["trial"].append(trial)
            columns["step"].append(step)
            columns["train_loss"].append(1.0)
            columns["val_error"].append((error or 0.0) + 0.9 * (1 - (k + 1) / points))
        rows.append(
            {
                "trial": trial,
                "status": "diverged" if lost else "ok",
                "learning_rate": study.learning_rate_of(trial),
                "val_error": error,
                "test_error": None if error is None else 1.01 * error,
                "best_step": None if error is None else steps[-1],
                "steps": 7 if lost else study.total_steps,
                "parameters": 41_726,
                "seconds": 12.5,
                "group": study.trials,
                "device": name_of_device,
            }
        )
    (folder / "trials.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    integers = ("trial", "step")
    save_file(
        {k: torch.tensor(v, dtype=torch.int64 if k in integers else torch.float64) for k, v in columns.items()},
        folder / "curves.safetensors",
    )
    if gradients:
        norms = torch.exp(-torch.arange(50).double() / 10).repeat(4, 1)
        save_file(
            {"trial": torch.tensor([0, 0, 1, 1]), "step": torch.tensor([0, 5, 0, 5]), "norms": norms},
            folder / "gradients.safetensors",
        )
    return folder
