"""A small search on made cases: python -m tests.training.small_search FOLDER STEP|WRITE NUMBER runs it and kills itself.

STEP n: SIGKILL after n optimisation steps of this process. WRITE n: SIGKILL inside its n-th write, when the new file is
half on the disk. NEVER 0: run to the end.
"""

import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from mistrnn.models import Standardisation
from mistrnn.training.examples import Augmentation, Examples
from mistrnn.training.fitting import Recipe
from mistrnn.training.search import Search, SearchData
from mistrnn.training.tuning import Follow, Tuned, tune

CHANNELS, CLASSES = 2, 3
RECIPE = Recipe(learning_rate=0.02, augmentation=Augmentation(0.1, 0.2, 0.2, 0.2, 0.2))
SHAPES: list[dict[str, Any]] = [{}, {"hidden_size": 5, "num_layers": 2}]
SEARCH = Search(
    trials=6, stage="race", steps=8, validate_every=2, batch_size=4, seed=3, recipe=RECIPE, shapes=SHAPES
)  # fmt: skip
REFIT = replace(SEARCH, stage="refit", steps=5, validate_every=5)
ARGUMENTS: dict[str, Any] = {
    "input_size": CHANNELS,
    "output_size": CLASSES,
    "layer": "mist",
    "hidden_size": 4,
    "num_layers": 1,
    "kernel_size": 3,
    "layer_options": {"delays": 3},
}
BEST = 2


def cases(count: int = 14, *, seed: int = 0, every_step: bool = False) -> Examples:
    """Cases of unequal length whose class is the pace at which they rise."""
    random = np.random.RandomState(seed)
    kinds = np.arange(count) % CLASSES
    values = [
        np.linspace(0, kind, length)[:, None] + random.randn(length, CHANNELS)
        for kind, length in zip(kinds, random.randint(9, 16, count), strict=True)
    ]
    targets = [torch.full([len(own)] * every_step, int(kind)) for kind, own in zip(kinds, values, strict=True)]
    return Examples(values, targets, [torch.ones(target.shape) for target in targets], [1.0] * count)


def data(held: bool = True, **arguments: Any) -> SearchData:
    mean, scale = torch.zeros(CHANNELS, dtype=torch.float64), torch.full((CHANNELS,), 2.0, dtype=torch.float64)
    own = {**ARGUMENTS, **arguments}
    every_step = "pooling" in own and own["pooling"] is None
    compare_on = cases(7, seed=1, every_step=every_step) if held else None
    return SearchData(cases(every_step=every_step), compare_on, Standardisation(mean, scale), own)


def run(
    folder: Path,
    *,
    race: Search = SEARCH,
    refit: Search = REFIT,
    stages: tuple[SearchData, SearchData] | None = None,
    n_best: int = BEST,
    follow: Follow | None = None,
    engine: Any = None,
) -> Tuned:
    race_data, refit_data = stages or (data(), data(held=False))
    return tune((race, race_data), (refit, refit_data), n_best, folder, device="cpu", engine=engine, follow=follow)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def main(folder: str, when: Literal["STEP", "WRITE", "NEVER"], number: int) -> None:
    torch.set_num_threads(1)
    steps = writes = 0

    def after_step(*_: object) -> None:
        nonlocal steps
        steps += 1
        if when == "STEP" and steps == number:
            die()

    sync = os.fsync

    def dying_sync(descriptor: int) -> None:
        nonlocal writes
        writes += 1
        if when == "WRITE" and writes == number:
            os.ftruncate(descriptor, os.fstat(descriptor).st_size // 2)
            die()
        sync(descriptor)

    os.fsync = dying_sync
    run(Path(folder), follow=Follow(report=after_step, checkpoint_seconds=0.0))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))  # type: ignore[arg-type]
