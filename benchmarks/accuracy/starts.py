"""Compare the named initializations: the gradient that arrives from far back at the start of training, and solved cues.

`python benchmarks/accuracy/starts.py` prints a table of the gradient that a loss at the last of 600 steps has at the first
step, relative to that at the last one. With `--fit N` it also trains the default classifier on the cue of 600 steps with N
random states for each initialization, and counts the accuracies above 95%.
"""

import argparse
import statistics

import torch
from data import loaded
from run import accuracy_of

from mistrnn import GRU, LSTM, MIST, RNN, Clockwork, SequenceClassifier
from mistrnn.analysis import gradient_norms
from mistrnn.layers import RecurrentLayer
from mistrnn.layers.initialization import initialize

STEPS, UNITS, BATCH = 600, 32, 16
LAYERS: dict[str, tuple[type[RecurrentLayer], dict[str, object]]] = {
    "MIST, delays 1 to 512": (MIST, {"delays": 10}),
    "MIST, delays 1 to 128": (MIST, {"delays": 8}),
    "LSTM": (LSTM, {}),
    "GRU": (GRU, {}),
    "Clockwork": (Clockwork, {}),
    "RNN": (RNN, {}),
}


def arriving(kind: type[RecurrentLayer], options: dict[str, object], name: str, seed: int) -> float:
    """Return the norm of the gradient at the first step over that at the last one."""
    torch.manual_seed(seed)
    layer = kind(UNITS, UNITS, dtype=torch.float64, **options)
    initialize(layer, name, steps=STEPS)
    weights = torch.randn(BATCH, UNITS, dtype=torch.float64)
    norms = gradient_norms(
        layer, torch.randn(STEPS, BATCH, UNITS, dtype=torch.float64), lambda found: (found[0][-1] * weights).sum()
    ).h
    return float(norms[-1] / norms[0])


def solved(name: str, seeds: int) -> list[float]:
    """Return the test accuracies of the default classifier on the cue."""
    parts = loaded("cue-600", None)
    found = []
    for seed in range(seeds):
        model = SequenceClassifier(initialization=name, random_state=seed).fit(parts.train.x, parts.train.y)
        found.append(accuracy_of(model.predict(parts.test.x), parts.test.y, frames=False))
        print(f"cue-600, {name}, seed {seed}: {found[-1]:.1%}", flush=True)
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fit", type=int, default=0, metavar="N", help="random states of the default classifier")
    options = parser.parse_args()
    names = ("normal", "open")
    print(f"| layer ({UNITS} units, {STEPS} steps) | " + " | ".join(names) + " |\n| --- | ---: | ---: |")
    for title, (kind, arguments) in LAYERS.items():
        cells = [statistics.median(arriving(kind, arguments, name, seed) for seed in range(5)) for name in names]
        print(f"| {title} | " + " | ".join(f"{cell:.1e}" for cell in cells) + " |")
    if options.fit:
        for name in names:
            good = sum(accuracy > 0.95 for accuracy in solved(name, options.fit))
            print(f"{name}: {good} of {options.fit} above 95%")


if __name__ == "__main__":
    main()
