"""Small files of recordings, as people have them."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

SMALL = ["--hidden", 6, "--epochs", 4]
USERS, CLASSES, EACH = ("001", "002", "003"), ("01", "02"), 4


def frames() -> dict[str, pd.DataFrame]:
    """Return recordings by id: class 01 rises, 02 falls, and each row says so, with a gap at the start."""
    random = np.random.default_rng(0)
    found = {}
    for user in USERS:
        for label in CLASSES:
            for number in range(EACH):
                count = int(random.integers(20, 40))
                slope = np.linspace(-1, 1, count) * (1 if label == "01" else -1)
                frame = pd.DataFrame({"t": np.arange(count) / 10, "b": random.normal(size=count), "a": 50 + 10 * slope})
                frame["row_label"] = np.where(slope > 0, "high", "low")
                frame.loc[:2, "row_label"] = None
                frame["label"], frame["user"] = label, user
                found[f"{user}-{label}-{number}"] = frame
    return found


def labels_of(names: list[str]) -> pd.DataFrame:
    parts = [name.split("-") for name in names]
    return pd.DataFrame(
        {"file": [f"{name}.csv" for name in names], "label": [p[1] for p in parts], "user": [p[0] for p in parts]}
    )


def write_folder(place: Path, kind: str = "csv", columns: tuple[str, ...] = ("t", "b", "a")) -> Path:
    """Write a folder of recordings, and labels.csv in it."""
    place.mkdir()
    found = frames()
    for name, frame in found.items():
        if kind == "csv":
            frame[list(columns)].to_csv(place / f"{name}.csv", index=False)
        else:
            np.savez(place / f"{name}.npz", **{key: frame[key].to_numpy() for key in columns})
    labels_of(list(found)).to_csv(place / "labels.csv", index=False)
    return place


def write_long(path: Path) -> Path:
    parts = [frame.assign(rec=name) for name, frame in frames().items()]
    table = pd.concat(parts).sample(frac=1, random_state=0)  # in any order: t says which
    table.to_parquet(path)
    return path


def rows_of(path: Path) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def report_of(model: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((model / "report" / "report.json").read_text())
    return found
