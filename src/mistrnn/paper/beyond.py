"""Beyond the paper: zoneout, recurrent dropout, layer normalisation and other delays, which the paper leaves to future work.

The studies are those of figure 3, table 1 and the stand-ins of tables 3 and 4, with one option more. The options were fixed
before the first run and are the same everywhere; nothing is published for these rows. A variant is compared with the same layer
without the option. Both have the same learning rates and data orders, so trials are compared in pairs, and the 95% interval is
a bootstrap over pairs. The verdict is "lower error" or "higher error" if the whole interval of the difference lies on one side
of zero, and else "undecided".

Hardware and time: made for a GPU (the copy problem with delays of 1,000 and 2,000 has sequences of up to 2,400 steps). On CPU
cores shorten it: `--experiment copy-100 --trials 20 --steps 1000`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mistrnn.errors import UsageError
from mistrnn.layers import LAYERS
from mistrnn.paper import figure3, table1, table3, table4
from mistrnn.paper.comparison import NOT_COMPARABLE, UNDECIDED, Published, Row, StudyResults
from mistrnn.paper.estimates import Estimate, Share, difference, top_tenth

TABLE, PLAIN = "beyond", "plain"
COMPARED = ("mist", "lstm")
NOTHING_PUBLISHED = Published(float("nan"), None)
VARIANTS: dict[str, dict[str, Any]] = {
    "zoneout": {"zoneout": 0.1},
    "recurrent-dropout": {"recurrent_dropout": 0.1},
    "layer-norm": {"layer_norm": True},
}
DELAYS = {
    "copy-100": (1, 4, 6, 15, 27, 35, 45, 52),
    "copy-1000": (1, 6, 15, 55, 91, 223, 256, 324),
    "copy-2000": (1, 8, 13, 46, 102, 332, 474, 686),
    "pmnist": (1, 3, 14, 24, 84, 136, 212, 252),
    "pmnist-last-200": (1, 3, 11, 16, 28, 52, 82, 89),
    "timit-sample": (1, 5, 12, 28, 53, 100, 117, 138),
    "hapt": (1, 5, 12, 28, 53, 100, 117, 138),
}
"""By experiment, the eight delays with the shortest paths over its sequences: `suggest_delays(HORIZONS[name], 8)`."""
HORIZONS = {
    "copy-100": 110,
    "copy-1000": 1_100,
    "copy-2000": 2_200,
    "pmnist": 784,
    "pmnist-last-200": 200,
    "timit-sample": 400,
    "hapt": 400,
}
LOWER, HIGHER = "lower error", "higher error"


@dataclass(frozen=True)
class Outcome:
    """One variant of a layer, and its difference to the layer without it."""

    row: Row
    seeds: tuple[StudyResults, ...]
    ours: Estimate | None
    """The mean test error of the top tenth."""
    difference: Estimate | None
    """Its error less that of the plain layer; None for the plain layer, or without its trials."""
    solved: Share | None
    """Of the copy problem: trials whose best parameters solve it."""
    verdict: str


def _plain_rows(experiment: str) -> list[Row]:
    """Return the rows of MIST and LSTM without options; where the paper has them, with their own names."""
    if experiment not in HORIZONS:
        raise UsageError(f"expected an experiment among {', '.join(HORIZONS)}, got {experiment!r}.")
    if experiment.startswith("copy-"):
        found = figure3.rows([int(experiment.removeprefix("copy-"))])
        return [row for layer in COMPARED for row in found if row.study.layer == layer]
    table: dict[str, Sequence[Row]] = {"timit-sample": table3.STAND_IN_ROWS, "hapt": table4.STAND_IN_ROWS}
    by_key = {row.key: row for row in table.get(experiment, table1.ROWS)}
    rows = [by_key[key] for key in ("mist-139", "lstm-100")]
    if experiment == "pmnist-last-200":
        return [
            replace(
                row,
                table=TABLE,
                key=f"{experiment}-{row.study.layer}-{PLAIN}",
                study=replace(row.study, task_settings={"last_pixels": 200}),
            )
            for row in rows
        ]
    return rows


def rows(experiment: str) -> list[Row]:
    """Return a row for each layer and variant."""
    found = []
    for plain in _plain_rows(experiment):
        layer = plain.study.layer
        variants: Mapping[str, dict[str, Any]] = VARIANTS
        if layer == "mist":
            variants = {**VARIANTS, "delays": {"delays": list(DELAYS[experiment])}}
        label = f"{LAYERS[layer].__name__} {plain.study.hidden}"
        found.append(replace(plain, label=f"{label}, {PLAIN}", published=NOTHING_PUBLISHED))
        for variant, options in variants.items():
            study = replace(plain.study, layer_options=options)
            key = f"{experiment}-{layer}-{variant}"
            found.append(Row(TABLE, key, f"{label}, {variant}", study, NOTHING_PUBLISHED))
    return found


def is_plain(row: Row) -> bool:
    """Whether a row has no option."""
    return not row.study.layer_options


def outcomes(found: Sequence[tuple[Row, Sequence[StudyResults]]]) -> list[Outcome]:
    """Return the outcome of each row, beside the plain row of its layer if that is among them."""
    plain = {row.study.layer: seeds for row, seeds in found if is_plain(row)}
    return [_outcome(row, seeds, plain.get(row.study.layer, ())) for row, seeds in found]


def _outcome(row: Row, seeds: Sequence[StudyResults], plain: Sequence[StudyResults]) -> Outcome:
    size = row.study.trials
    ours = top_tenth([trial for one in seeds for trial in one.finished_trials], size)
    solved = figure3.solved_shares(seeds)[0] if row.study.task == "copy" else None
    if is_plain(row):
        return Outcome(row, tuple(seeds), ours, None, solved, "-")
    if (why := _why_not(seeds, plain)) is not None:
        return Outcome(row, tuple(seeds), ours, None, solved, f"{NOT_COMPARABLE}: {why}")
    pairs = difference(_by_trial(seeds), _by_trial(plain), size)
    if pairs is None or pairs.low is None or pairs.high is None:
        verdict = f"{NOT_COMPARABLE}: too few trials in common"
    else:
        verdict = LOWER if pairs.high < 0 else HIGHER if pairs.low > 0 else UNDECIDED
    return Outcome(row, tuple(seeds), ours, pairs, solved, verdict)


def _why_not(seeds: Sequence[StudyResults], plain: Sequence[StudyResults]) -> str | None:
    """Return why a variant cannot be compared with the plain layer; None if it can."""
    if not plain:
        return "the layer without the option has not been run"
    if not all(one.is_random_sample for one in (*seeds, *plain)):
        return "chosen trials"
    if len({one.study.total_steps for one in (*seeds, *plain)}) > 1:
        return "other numbers of steps"
    return None


def _by_trial(seeds: Sequence[StudyResults]) -> dict[tuple[int, int], dict[str, Any]]:
    return {(one.study.seed, trial["trial"]): trial for one in seeds for trial in one.finished_trials}
