"""Measure what a default model costs: a fit, a search and one step of a stream, each next to an alternative, in the same run.

`python benchmarks/accuracy/cost.py --data DIR` prints a table of seconds: the default fit; the loop that trains a plain nn.GRU
of 20,000 weights for as many minibatches; a search of 16 trials. Then the time of one step at batch 1 on one thread: the
compiled stream of the default network, and nn.GRU of equal size with its readout, called step by step.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from data import SETS, loaded
from methods import METHODS, Budget
from networks import nearest_width
from torch import nn

from mistrnn import SequenceClassifier

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from machine import heading

STEPS, REPEATS = 2_000, 5


def seconds_of(method: str, name: str, folder: Path | None, **arguments: Any) -> float:
    """Return how long a method trains on a set."""
    parts, one = loaded(name, folder), SETS[name]
    model = METHODS[method].make(one, parts.train, 0, Budget(**arguments))
    extra = {"groups": parts.train.groups} if METHODS[method].ours and parts.train.groups is not None else {}
    begin = time.perf_counter()
    model.fit(parts.train.x, parts.train.y, **extra)
    return time.perf_counter() - begin


def microseconds(step: Callable[[int], Any]) -> float:
    """Return the median over some repetitions of the mean time of a step."""
    for k in range(200):
        step(k)
    means = []
    for _ in range(REPEATS):
        begin = time.perf_counter()
        for k in range(STEPS):
            step(k)
        means.append(1e6 * (time.perf_counter() - begin) / STEPS)
    return statistics.median(means)


@torch.inference_mode()
def print_steps() -> None:
    """Print the time of one step."""
    torch.set_num_threads(1)
    rows = torch.randn(STEPS, 1, 6)
    x = np.random.RandomState(0).randn(24, 6, 600)
    model = SequenceClassifier(max_epochs=1, random_state=0).fit(x, np.arange(24) % 6)
    network = model.network_
    stream = network.stream()

    def gru_weights(width: int) -> int:
        return sum(p.numel() for p in (*nn.GRU(6, width).parameters(), *nn.Linear(width, 6).parameters()))

    width = nearest_width(gru_weights, network.parameter_count(), most=256)
    gru, readout, state = nn.GRU(6, width), nn.Linear(width, 6), torch.zeros(1, 1, width)

    def gru_step(k: int) -> None:
        nonlocal state
        output, state = gru(rows[k : k + 1], state)
        readout(output[0])

    whole = model.stream()
    arrays = rows[:, 0].double().numpy()
    print(f"\nOne step, batch 1, one thread, {network.parameter_count():,} weights (nn.GRU {gru_weights(width):,}):\n")
    print("| | us |\n| --- | ---: |")
    print(f"| network.stream() | {microseconds(lambda k: stream(rows[k])):.1f} |")
    print(f"| model.stream(), with checks and the label | {microseconds(lambda k: whole(arrays[k])):.1f} |")
    print(f"| nn.GRU and nn.Linear | {microseconds(gru_step):.1f} |")


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="data folder of the accuracy benchmark")
    parser.add_argument("--sets", default="ERing,NATOPS,ArrowHead,ItalyPowerDemand,JapaneseVowels")
    parser.add_argument("--no-search", action="store_true", help="leave out the searches")
    options = parser.parse_args()
    print(heading("python benchmarks/accuracy/cost.py", "seconds of one fit each, seed 0"))
    print("\n| set | default fit | nn.GRU loop | ratio | 16 trials | ratio to the fit |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for name in options.sets.split(","):
        fit = seconds_of("mist", name, options.data)
        gru = seconds_of("gru-steps" if SETS[name].frames else "gru-mean", name, options.data)
        cells = [f"{fit:.1f}", f"{gru:.1f}", f"{fit / gru:.2f}"]
        if not options.no_search:
            search = seconds_of("mist-16-trials", name, options.data)
            cells += [f"{search:.1f}", f"{search / fit:.2f}"]
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)
    print_steps()


if __name__ == "__main__":
    main()
