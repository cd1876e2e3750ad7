"""A study as a record: its settings, trials and curves, and the parameters of its top trials."""

import shutil
from pathlib import Path

import torch
from safetensors.torch import save_file

from mistrnn.errors import UsageError
from mistrnn.training import Recorded, summarise

DTYPES = {"float32": torch.float32, "float16": torch.float16}
FILES = ("study.json", "trials.jsonl", "curves.safetensors", "gradients.safetensors")


def keep_record(study: Path, folder: Path, *, dtype: str = "float16", top: int | None = None) -> list[Path]:
    """Copy a finished study without its checkpoints, with the parameters of its top trials, and return the files.

    Args:
        study: the study's folder.
        folder: a new or empty folder.
        dtype: how parameters are stored: float16 takes half the space and can move an error in its last digits.
        top: the number of trials whose parameters are kept; a tenth of all if left out.
    """
    if dtype not in DTYPES:
        raise UsageError(f"expected dtype among {', '.join(DTYPES)}, got {dtype!r}.")
    if folder.exists() and any(folder.iterdir()):
        raise UsageError(f"{folder}: expected a new or an empty folder, because a record is never overwritten.")
    recorded = Recorded(study)
    trials, settings = recorded.trials(), recorded.study()
    if not trials:
        raise UsageError(f"{study}: expected finished trials, got none.")
    ranked = sorted(
        (row for row in trials if row["val_error"] is not None), key=lambda row: (row["val_error"], row["trial"])
    )
    count = len(summarise(trials, of=settings.trials).top) if top is None else top
    models = {row["trial"]: recorded.tensors_of(row["trial"]) for row in ranked[:count]}
    folder.mkdir(parents=True, exist_ok=True)
    files = [Path(shutil.copy(study / name, folder / name)) for name in FILES if (study / name).exists()]
    for trial, tensors in models.items():
        path = folder / "models" / f"trial-{trial:03}.safetensors"
        path.parent.mkdir(exist_ok=True)
        save_file({name: value.to(DTYPES[dtype]).contiguous() for name, value in tensors.items()}, path)
        files.append(path)
    return files
