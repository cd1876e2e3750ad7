"""Write the tables of results/accuracy/README.md from runs.jsonl: `python benchmarks/accuracy/table.py`."""

import argparse
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from data import DEVELOPMENT, JUDGEMENT, SETS, DataSet
from methods import METHODS, Method
from run import RUNS, Job, recorded

BEGIN, END = "<!-- tables: written by benchmarks/accuracy/table.py -->", "<!-- end of tables -->"
OURS, ALONE = "mist", "mist-network"
SOLVED = 0.95
Rows = dict[Job, dict[str, Any]]
Cell = Callable[[str, str], str]


def values(rows: Rows, method: str, name: str, key: str = "accuracy") -> list[float]:
    """Return one number for each seed that ran."""
    return [row[key] for job, row in sorted(rows.items()) if job[:2] == (method, name) and row["accuracy"] is not None]


def mean(rows: Rows, method: str, name: str) -> float | None:
    """Return the mean accuracy over the seeds, or None if none ran."""
    found = values(rows, method, name)
    return float(np.mean(found)) if found else None


def spread(found: list[float]) -> str:
    """Return percent: mean ± standard deviation."""
    deviation = f" ± {100 * np.std(found, ddof=1):.1f}" if len(found) > 1 else ""
    return f"{100 * np.mean(found):.1f}{deviation}"


def missing(rows: Rows, method: str, name: str) -> str:
    """Return why there is no number."""
    errors = [row["error"] for job, row in rows.items() if job[:2] == (method, name)]
    if not METHODS[method].applies_to(SETS[name]):
        return "-"
    return "failed" if errors else "not run"


def accuracy_cell(rows: Rows, method: str, name: str) -> str:
    """Return mean ± deviation, the number of seeds, and the seeds that failed."""
    found = values(rows, method, name)
    if not found:
        return missing(rows, method, name)
    failed = sum(job[:2] == (method, name) and row["accuracy"] is None for job, row in rows.items())
    return f"{spread(found)} ({len(found)})" + (f", {failed} failed" if failed else "")


def seconds_cell(rows: Rows, method: str, name: str) -> str:
    """Return the mean seconds of a fit on one CPU thread."""
    on_cpu = {job: row for job, row in rows.items() if row.get("device", "cpu") == "cpu"}
    found = values(on_cpu, method, name, "seconds")
    return f"{np.mean(found):.1f}" if found else missing(rows, method, name)


def solved_cell(rows: Rows, method: str, name: str) -> str:
    """Return how many seeds solved a cue."""
    found = values(rows, method, name)
    if not found:
        return missing(rows, method, name)
    return f"{sum(accuracy > SOLVED for accuracy in found)} of {len(found)}"


def weights_cell(rows: Rows, method: str, name: str) -> str:
    """Return the number of weights."""
    found = [count for count in values(rows, method, name, "parameters") if count is not None]
    return f"{np.mean(found):,.0f}" if found else "-"


def grid(sets: list[DataSet], cell: Callable[[Rows, str, str], str], rows: Rows) -> str:
    """Return a table with a line for each method that applies."""
    lines = [f"| method | {' | '.join(one.name for one in sets)} |", f"| --- |{' ---: |' * len(sets)}"]
    for name, method in METHODS.items():
        if any(method.applies_to(one) for one in sets):
            lines.append(f"| {method.title} | {' | '.join(cell(rows, name, one.name) for one in sets)} |")
    return "\n".join(lines)


def of(half: str, *kinds: str) -> list[DataSet]:
    """Return the sets of a half."""
    return [one for one in SETS.values() if one.half == half and one.kind in kinds]


def complete(rows: Rows, sets: list[DataSet], chosen: Iterable[tuple[str, Method]]) -> dict[str, list[float]]:
    """Return the mean accuracies of each method that ran on all of the sets."""
    found = {name: [mean(rows, name, one.name) for one in sets] for name, _ in chosen}
    return {name: [v for v in own if v is not None] for name, own in found.items() if sets and None not in own}


def ranks(accuracies: dict[str, list[float]]) -> dict[str, float]:
    """Return the mean rank of each method over the sets, 1 for the best; equal methods share the mean of their ranks."""
    if not accuracies:
        return {}
    table = np.array(list(accuracies.values())).T  # [sets, methods]
    above = (table[:, None, :] > table[:, :, None]).sum(2)
    equal = (table[:, None, :] == table[:, :, None]).sum(2)
    return dict(zip(accuracies, (above + (equal + 1) / 2).mean(0).tolist(), strict=True))


def means(sets: list[DataSet], rows: Rows) -> str:
    """Return mean accuracy over whole-sequence sets, and mean rank among recurrent methods."""
    there = [one for one in sets if any(values(rows, name, one.name) for name in METHODS)]
    every = complete(rows, there, METHODS.items())
    recurrent = [(name, method) for name, method in METHODS.items() if sets and method.is_recurrent_on(sets[0])]
    rank = ranks(complete(rows, there, recurrent))
    title = f"mean accuracy, {len(there)} sets of whole sequences"
    lines = [f"| method | {title} | mean rank among {len(rank)} recurrent methods |", "| --- | ---: | ---: |"]
    for name, method in METHODS.items():
        if method.applies != "frames":
            average = f"{100 * np.mean(every[name]):.1f}" if name in every else "not complete"
            lines.append(f"| {method.title} | {average} | {f'{rank[name]:.2f}' if name in rank else '-'} |")
    return "\n".join(lines)


def winners(half: str, rows: Rows) -> str:
    """Return a line for each set: the best of all, the best recurrent method, and where MIST stands."""
    lines = []
    for one in of(half, "sequences", "frames"):
        found = {
            name: value
            for name, method in METHODS.items()
            if method.applies_to(one) and (value := mean(rows, name, one.name)) is not None
        }
        if not found:
            continue
        recurrent = {name: value for name, value in found.items() if METHODS[name].is_recurrent_on(one)}
        words = f"- {one.name}: best {named(found)}; best recurrent {named(recurrent) if recurrent else 'not run'}"
        lines.append(f"{words}; {standing(found)}.")
    return "\n".join(lines)


def named(found: dict[str, float]) -> str:
    """Return the best methods and their accuracy."""
    best = max(found.values())
    return f"{' and '.join(METHODS[name].title for name in found if found[name] == best)} ({100 * best:.1f})"


def standing(found: dict[str, float]) -> str:
    """Return whether the default wins."""
    if OURS not in found:
        return "the default not run"
    own = found[OURS]
    if own == max(found.values()):
        return "the default wins" if list(found.values()).count(own) == 1 else "the default is among the best"
    return f"the default is {100 * (max(found.values()) - own):.1f} points behind the best"


def losses(rows: Rows) -> str:
    """Return the sets on which another recurrent network is ahead of MIST's, in one sentence."""
    lost: list[str] = []
    played = 0
    for one in SETS.values():
        found = {name: mean(rows, name, one.name) for name, method in METHODS.items() if method.is_recurrent_on(one)}
        there = {name: value for name, value in found.items() if value is not None}
        own = OURS if one.frames else ALONE
        if one.kind == "cue" or own not in there or len(there) < 2:
            continue
        played += 1
        if there[own] < max(there.values()):
            lost.append(one.name)
    if not played:
        return "MIST has not been run on the real sets yet."
    if not lost:
        return f"MIST's network alone has the highest mean among the recurrent methods on all {played} real sets."
    count = f"{len(lost)} of {played} real sets"
    return f"Another recurrent method has a higher mean than MIST's network alone on {count}: {', '.join(lost)}."


def tables(rows: Rows) -> str:
    """Return all tables."""
    parts = [losses(rows)]
    for half in (DEVELOPMENT, JUDGEMENT):
        parts += [f"## {half.capitalize()} half", "Test accuracy in %, mean ± standard deviation (seeds)."]
        parts += [grid(of(half, "sequences"), accuracy_cell, rows)]
        parts += [
            "A label for each step, accuracy over the labelled steps.",
            grid(of(half, "frames"), accuracy_cell, rows),
        ]
        parts += [means(of(half, "sequences"), rows), winners(half, rows)]
    both = of(DEVELOPMENT, "sequences") + of(JUDGEMENT, "sequences")
    parts += ["## Both halves", means(both, rows)]
    cues = of(DEVELOPMENT, "cue") + of(JUDGEMENT, "cue")
    parts += [f"## Cues: seeds with an accuracy above {100 * SOLVED:.0f}%", grid(cues, solved_cell, rows)]
    for half in (DEVELOPMENT, JUDGEMENT):
        sets = of(half, "sequences", "frames", "cue")
        parts += [f"## Seconds of a fit, {half} half", grid(sets, seconds_cell, rows)]
        parts += [f"## Weights, {half} half", grid(sets, weights_cell, rows)]
    return "\n\n".join(part for part in parts if part)


def main() -> int:
    """Write the tables between the markers of the README."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=Path, default=RUNS)
    parser.add_argument("--readme", type=Path, help="file with the markers; else README.md in the folder of the runs")
    options = parser.parse_args()
    readme = options.readme or options.runs.parent / "README.md"
    text = readme.read_text() if readme.exists() else f"# Test accuracy\n\n{BEGIN}\n{END}\n"
    if BEGIN not in text or END not in text:
        print(f"{readme}: expected the lines {BEGIN!r} and {END!r}.", file=sys.stderr)
        return 1
    before, rest = text.split(BEGIN, 1)
    after = rest.split(END, 1)[1]
    readme.write_text(f"{before}{BEGIN}\n\n{tables(recorded(options.runs))}\n\n{END}{after}")
    print(readme)
    return 0


if __name__ == "__main__":
    sys.exit(main())
