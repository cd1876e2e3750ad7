"""How well the default classifier does, beside what a user of aeon would pick: `make bench-accuracy`.

Early cue is generated: noise of 600 steps, a little higher or lower in its first 10, which must be remembered to the end.
BasicMotions (6 channels), JapaneseVowels (12 channels, unequal lengths) and ACSF1 (1,460 steps) come inside aeon. Trained on
their training part, tested once on their test part, for several random states; nothing is chosen by what their test parts
say. (The default's patience was by early cues of several lengths, test cases among them: results/classification.)
aeon's deep classifiers need tensorflow; without it they are left out, and the table says so.
"""

import argparse
import json
import time
import warnings
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
from aeon.classification.convolution_based import RocketClassifier
from aeon.datasets import load_acsf1, load_basic_motions, load_japanese_vowels
from aeon.transformations.collection.unequal_length import Padder
from machine import heading

from mistrnn import SequenceClassifier, match_parameters


def early_cue(split: str) -> tuple[Any, Any]:
    """Return 300 cases to train on or 400 to test on, [cases, 1, 600], and their classes."""
    random, cases = np.random.RandomState(split == "test"), 400 if split == "test" else 300
    y = np.arange(cases) % 2
    x = random.randn(cases, 1, 600) / 2
    x[:, 0, :10] += np.where(y, 1.0, -1.0)[:, None]
    return x, y


SETS: dict[str, Callable[..., Any]] = {
    "Early cue": early_cue,
    "BasicMotions": load_basic_motions,
    "JapaneseVowels": load_japanese_vowels,
    "ACSF1": load_acsf1,
}
DEEP_EPOCHS = 300
PADDED = "padded with zeros to the longest, because it takes equal lengths only"


def mist(seed: int, x: Any, y: Any) -> Any:
    """Return the default."""
    return SequenceClassifier(random_state=seed)


def lstm(seed: int, x: Any, y: Any) -> Any:
    """Return the same with an LSTM of at most as many parameters."""
    parameters = SequenceClassifier(max_epochs=1).fit(x, y).parameter_count()
    units = match_parameters("lstm", parameters, input_size=x[0].shape[0], output_size=len(set(y)))
    return SequenceClassifier(layer="lstm", hidden_size=units, random_state=seed)


def rocket(seed: int, x: Any, y: Any) -> Any:
    """Return aeon's random convolutions."""
    return RocketClassifier(random_state=seed, n_jobs=-1)


def deep(name: str) -> Callable[[int, Any, Any], Any]:
    """Return how to make one of aeon's deep classifiers."""

    def make(seed: int, x: Any, y: Any) -> Any:
        from aeon.classification import deep_learning

        return getattr(deep_learning, name)(n_epochs=DEEP_EPOCHS, random_state=seed)

    return make


METHODS: dict[str, tuple[Callable[[int, Any, Any], Any], bool]] = {
    "mistrnn, MIST (the default)": (mist, True),
    "mistrnn, LSTM of the same size": (lstm, True),
    "aeon, ROCKET": (rocket, False),
    f"aeon, TimeCNN, {DEEP_EPOCHS} epochs": (deep("TimeCNNClassifier"), False),
    f"aeon, FCN, {DEEP_EPOCHS} epochs": (deep("FCNClassifier"), False),
}
"""Name -> (how to make it, whether it takes unequal lengths)."""


def measured(method: str, name: str, seed: int) -> dict[str, Any]:
    """Train and test once."""
    make, takes_unequal = METHODS[method]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # aeon will no longer bring ACSF1 along
        (x, y), (new_x, new_y) = SETS[name](split="train"), SETS[name](split="test")
    unequal = isinstance(x, list)
    if unequal and not takes_unequal:
        padder = Padder(padded_length=max(case.shape[1] for case in [*x, *new_x]))
        x, new_x = padder.fit_transform(x), padder.transform(new_x)
    model = make(seed, x, y)
    start = time.perf_counter()
    model.fit(x, y)
    seconds = time.perf_counter() - start
    accuracy = float(np.mean(model.predict(new_x) == new_y))
    note = PADDED if unequal and not takes_unequal else ""
    return {"method": method, "set": name, "seed": seed, "accuracy": accuracy, "seconds": seconds, "note": note}


def table(rows: list[dict[str, Any]]) -> str:
    """Return test accuracies in percent, mean ± deviation over the seeds; what did not run is said."""
    lines = [f"| method | {' | '.join(SETS)} |", f"| --- |{' --- |' * len(SETS)}"]
    for method in METHODS:
        cells = []
        for name in SETS:
            own = [row for row in rows if (row["method"], row["set"]) == (method, name)]
            found = [row["accuracy"] for row in own if row["accuracy"] is not None]
            if not found:
                cells.append(own[0]["note"] if own else "not run")
                continue
            spread = f" ± {100 * np.std(found, ddof=1):.1f}" if len(found) > 1 else ""
            padded = " (padded)" if any(row["note"] == PADDED for row in own) else ""
            ran = f", {len(found)} of {len(own)} ran" if len(found) < len(own) else ""
            cells.append(f"{100 * np.mean(found):.1f}{spread}{padded}{ran}")
        lines.append(f"| {method} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Run what is missing and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="every run as a line of JSON; what is there is not run again")
    options = parser.parse_args()
    rows = []
    if options.out and options.out.exists():
        rows = [json.loads(line) for line in options.out.read_text().splitlines()]
    rows = [row for row in rows if row["accuracy"] is not None]  # what did not run is tried again
    done = {(row["method"], row["set"], row["seed"]) for row in rows}
    for name in SETS:
        for method in METHODS:
            for seed in range(options.seeds):
                if (method, name, seed) in done:
                    continue
                try:
                    row = measured(method, name, seed)
                except Exception as error:  # a rival that does not run is part of the result
                    reason = str(error).strip().split("\n")[0][:120]
                    row = {
                        "method": method,
                        "set": name,
                        "seed": seed,
                        "accuracy": None,
                        "note": f"does not run: {reason}",
                    }
                rows.append(row)
                print(json.dumps(row), flush=True)
                if options.out:
                    with open(options.out, "a") as file:
                        file.write(json.dumps(row) + "\n")
    print()
    versions = ", ".join(f"{package} {_version(package)}" for package in ("aeon", "scikit-learn", "tensorflow-cpu"))
    print(heading("python benchmarks/accuracy.py", f"{versions}; {options.seeds} random states; test accuracy in %"))
    print()
    print(table(rows))


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


if __name__ == "__main__":
    main()
