"""Saved models of the current version: python -m tests.estimators.make_saved writes them; those of older versions stay.

Each folder holds the model and expected.json: two cases, and what the model said of them.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np

from mistrnn import FrameLabeler, SequenceClassifier, SequenceRegressor
from mistrnn.estimators import _saved
from tests.estimators.data import data, numbers

SAVED = Path(__file__).parent / "saved"
SMALL: dict[str, Any] = {"hidden_size": 4, "kernel_size": 3, "max_epochs": 4, "random_state": 0}


def models() -> dict[str, Any]:
    """Unfitted models of every kind, with parameters of all sorts."""
    return {
        "classifier": SequenceClassifier(
            **SMALL, num_layers=2, pooling="last+max", augmentation={"jitter": 0.1, "crop": 0.1}, random_features=84
        ),
        "labeler": FrameLabeler(
            **SMALL, num_layers=1, layer="clockwork", layer_options={"periods": [1, 2]}, class_weight={"high": 2.0}
        ),
        "regressor": SequenceRegressor(
            **SMALL, num_layers=1, layer="lstm", layer_options={"layer_norm": True}, bidirectional=True, pooling="mean"
        ),
        "ensemble": SequenceClassifier(
            **SMALL, num_layers=1, layer="gru", pooling="mean+max", n_trials=3, n_best=2, random_features=168
        ),
        "network": SequenceClassifier(**SMALL, num_layers=1, random_features=0),
    }


def main() -> None:
    """Write the folders."""
    for name, model in models().items():
        x, y = data(type(model), cases=20, steps=6)
        folder = SAVED / f"version-{_saved.VERSION}" / name
        model.fit(x, y).save_pretrained(folder, force=True)
        seen = np.round(x[:2], 6)
        found = numbers(model, seen)
        expected = {
            "x": seen.tolist(),
            "found": found.tolist(),
            "classes": getattr(model, "classes_", np.array([])).tolist(),
        }
        (folder / "expected.json").write_text(json.dumps(expected) + "\n")


if __name__ == "__main__":
    main()
