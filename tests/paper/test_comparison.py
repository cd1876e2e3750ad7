"""Ours beside published: which study belongs to which row, how seeds are pooled, and what the verdict says."""

import statistics
from collections.abc import Iterable
from dataclasses import replace
from itertools import combinations, product
from typing import Any

import pytest

from mistrnn.errors import UsageError
from mistrnn.layers import layer_class
from mistrnn.paper import figure3, table1, table2, table3, table4
from mistrnn.paper.comparison import INSIDE, NOT_COMPARABLE, OUTSIDE, SeedRun, chosen_rows, resampled
from mistrnn.tasks._mnist_files import PUBLISHED
from mistrnn.training import Study

MIST = next(row for row in table1.ROWS if row.key == "mist-139")


def trials(errors: list[float | None]) -> tuple[dict[str, Any], ...]:
    return tuple(
        {
            "trial": k,
            "status": "diverged" if error is None else "ok",
            "val_error": error,
            "test_error": error,
            "learning_rate": 10.0 ** -(1 + k % 3),
        }
        for k, error in enumerate(errors)
    )


def seed_run(error: float, seed: int = 0, data: str | None = PUBLISHED, **changes: Any) -> SeedRun:
    study = MIST.with_settings(seed, changes.pop("trials", None), changes.pop("steps", None))
    study = replace(study, **changes.pop("other", {}))
    done = changes.pop("done", study.trials)
    return SeedRun(study, trials([error] * done), data)


def test_rows_are_the_papers() -> None:
    printed = [
        (row.key, round(100 * p.error, 2), round(100 * (p.deviation or 0), 2), p.log10_learning_rate)
        for row, p in ((row, row.published) for row in table1.ROWS)
    ]
    assert printed == [
        ("rnn-198", 12.9, 0.8, (-2.27, 0.10)),
        ("lstm-100", 10.4, 0.7, (-1.11, 0.11)),
        ("clockwork-256", 15.7, 1.2, (-1.91, 0.23)),
        ("mist-139", 5.5, 0.2, (-1.35, 0.08)),
        ("lstm-139", 8.8, 0.6, (-0.90, 0.26)),
        ("lstm-512", 7.6, 0.7, (-1.08, 0.18)),
        ("mist-512", 4.5, 0.1, (-1.19, 0.13)),
    ]
    for row in table1.ROWS:
        study = row.study
        assert (study.trials, study.steps, study.batch_size, study.optimizer) == (50, 15_000, 100, "sgd")
        assert study.learning_rate is None
    counts = {
        row.key: layer_class(row.study.layer)(1, row.study.hidden).parameter_count() + 10 * (row.study.hidden + 1)
        for row in table1.ROWS
    }
    assert counts["mist-139"] == 41_726
    assert counts["lstm-100"] == 41_810
    assert counts["rnn-198"] == 41_590
    assert counts["mist-512"] == 535_578
    assert counts["lstm-512"] == 1_057_802
    assert [row.study.task_settings for row in table1.CONTROL_ROWS] == [{"last_pixels": 200}] * 2


def test_the_other_tables_are_the_papers() -> None:
    def printed(rows: Any) -> list[Any]:
        return [
            (row.key, round(100 * p.error, 2), round(100 * p.deviation, 2), p.log10_learning_rate)
            for row, p in ((row, row.published) for row in rows)
        ]

    assert printed(table3.ROWS) == [
        ("rnn-197", 34.1, 0.3, (-1.09, 0.25)),
        ("lstm-100", 32.1, 0.2, (-0.63, 0.06)),
        ("clockwork-248", 38.2, 0.4, (-1.03, 0.31)),
        ("mist-139", 32.0, 0.3, (-0.91, 0.16)),
    ]
    assert printed(table4.ROWS) == [
        ("rnn-203", 49.2, 2.7, (-1.91, 0.18)),
        ("lstm-100", 38.8, 1.5, (-0.89, 0.12)),
        ("lstm-141", 37.8, 2.1, (-0.45, 0.17)),
        ("clockwork-256", 40.3, 4.8, (-1.09, 0.31)),
        ("mist-141", 29.0, 5.2, (-1.39, 0.21)),
    ]
    assert {row.study.steps for row in table3.ROWS} == {2_000}
    budget = 4 * 100 * (6 + 100 + 1) + 101 * 12
    for row in table4.STAND_IN_ROWS:
        count = layer_class(row.study.layer)(6, row.study.hidden).parameter_count() + 12 * (row.study.hidden + 1)
        assert 0.9 * budget < count <= budget


def test_table2_judges_only_whole_runs_over_all_users() -> None:
    assert {layer: (row[0], row[1].error, row[1].deviation) for layer, row in table2.ROWS.items()} == {
        "rnn": ("Simple RNN", 0.380, 0.062),
        "lstm": ("LSTM", 0.139, 0.030),
        "clockwork": ("Clockwork RNN", 0.225, 0.050),
        "mist": ("MIST RNN", 0.141, 0.039),
    }

    def verdict(error: float, users: int = 15, shortened: bool = False) -> str:
        return table2.verdict("lstm", table2.Result("", (error,) * users, (0.0,) * users), shortened=shortened)

    assert verdict(0.15) == "inside the published spread, 1.10 points higher"
    assert verdict(0.07) == "outside the published spread, 6.90 points lower"
    assert verdict(0.139, users=8) == "not comparable: 8 of 15 users"
    assert verdict(0.139, shortened=True) == "not comparable: fewer steps than published"


def test_a_row_owns_its_studies_whatever_their_seed_and_length() -> None:
    assert MIST.owns(MIST.with_settings(3, 7, 20))
    assert MIST.owns(Study(task="pmnist", layer="mist", hidden=139, precision="fp32", gradients_every=5))
    for other in (
        {"hidden": 140},
        {"learning_rate": 0.1},
        {"layer_options": {"layer_norm": True}},
        {"task_settings": {"last_pixels": 200}},
        {"optimizer": "adam"},
        {"batch_size": 50},
        {"truncate": 100},
    ):
        assert not MIST.owns(Study(**{"task": "pmnist", "layer": "mist", "hidden": 139, **other}))


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (0.0585, INSIDE, "inside the published spread, 0.35 points higher"),
        (0.0515, INSIDE, "inside the published spread, 0.35 points lower"),
        (0.0591, OUTSIDE, "outside the published spread, 0.41 points higher"),
        (0.0508, OUTSIDE, "outside the published spread, 0.42 points lower"),
    ],
)
def test_verdict_is_two_published_deviations_wide(error: float, kind: str, words: str) -> None:
    found = table1.comparison(MIST, [seed_run(error)])
    assert (found.kind, found.verdict) == (kind, words)
    assert found.difference == pytest.approx(error - 0.055)


@pytest.mark.parametrize(
    ("run", "reason"),
    [
        (seed_run(0.055, trials=20), "20 trials instead of 50"),
        (seed_run(0.055, steps=300), "300 steps instead of 15,000"),
        (seed_run(0.055, done=12), "seed 0 has finished 12 of 50 trials"),
        (seed_run(0.055, trials=200), "200 trials instead of 50"),
        (seed_run(0.055, steps=150_000), "150,000 steps instead of 15,000"),
        (seed_run(0.055, other={"precision": "bf16"}), "products in bfloat16"),
        (seed_run(0.055, other={"validate_every": 15_000}), "validation every 15,000 steps instead of 150"),
        (seed_run(0.055, data="other"), "on files that are not the published ones"),
    ],
)
def test_what_cannot_be_compared_says_why(run: SeedRun, reason: str) -> None:
    found = table1.comparison(MIST, [run])
    assert found.kind == NOT_COMPARABLE
    assert found.verdict == f"not comparable: {reason}"
    assert found.ours is not None


def test_a_row_run_in_part_counts_its_best_five_from_the_beginning() -> None:
    whole = seed_run(0.055)
    part = SeedRun(whole.study, trials([0.01 * k for k in range(1, 13)]), PUBLISHED)
    found = table1.comparison(MIST, [part])
    assert len(part.summary.top) == 5
    assert found.ours is not None
    assert found.ours[0] == pytest.approx(0.03)
    assert found.kind == NOT_COMPARABLE
    other = SeedRun(replace(whole.study, seed=1), part.trials, PUBLISHED)
    pooled = table1.comparison(MIST, [part, other])
    assert pooled.ours is not None
    assert pooled.ours[0] == pytest.approx(0.03, abs=0.005)
    small = SeedRun(replace(whole.study, seed=1, trials=12), part.trials, PUBLISHED)
    either = [table1.comparison(MIST, pair).ours for pair in ([part, small], [small, part])]
    assert either[0] == either[1]


def test_nothing_finished_and_nothing_published_are_said() -> None:
    lost = SeedRun(MIST.study, trials([None] * 50), PUBLISHED)
    assert table1.comparison(MIST, [lost]).verdict == "not comparable: no trial has been validated"
    control = table1.CONTROL_ROWS[1]
    found = table1.comparison(control, [SeedRun(control.study, trials([0.06] * 50), PUBLISHED)])
    assert found.verdict == "not comparable: published without a spread"
    assert found.difference == pytest.approx(0.0)


def test_a_seed_counts_once_and_a_lost_one_is_named() -> None:
    twice = table1.comparison(MIST, [seed_run(0.055), seed_run(0.055), seed_run(0.055, done=3)])
    assert len(twice.seeds) == 1
    assert twice.seeds[0].finished == 50
    assert twice.verdict == "not comparable: seed 0 is there 3 times, and one is counted"
    other = seed_run(0.06, other={"precision": "fp32"})
    for both in ([other, seed_run(0.055)], [seed_run(0.055), other]):
        result = table1.comparison(MIST, both)
        assert result.verdict == "not comparable: seed 0 is there 2 times, and the one in high is counted"
        assert result.ours is not None
        assert result.ours[0] == pytest.approx(0.055)
    lost = SeedRun(MIST.with_settings(1, None, None), trials([None] * 50), PUBLISHED)
    assert table1.comparison(MIST, [seed_run(0.055), lost]).verdict == "not comparable: all trials of seed 1 diverged"
    mixed = table1.comparison(MIST, [seed_run(0.055), seed_run(0.9, seed=1, steps=10)])
    assert mixed.ours is not None
    assert mixed.ours[0] == pytest.approx(0.055)  # the short run is another population
    assert mixed.verdict == "not comparable: 10 steps instead of 15,000"


def test_seeds_are_pooled_by_resampling_and_listed_one_by_one() -> None:
    runs = [
        SeedRun(MIST.with_settings(seed, None, None), trials([base + 0.0002 * k for k in range(50)]), PUBLISHED)
        for seed, base in ((1, 0.058), (0, 0.052))
    ]
    found = table1.comparison(MIST, runs)
    assert [run.study.seed for run in found.seeds] == [0, 1]
    assert [run.summary.test_error[0] for run in found.seeds] == pytest.approx([0.0524, 0.0584])
    assert found.ours is not None
    assert 0.0524 < found.ours[0] < 0.0584  # most of a sample's top 5 come from the better half
    assert found.ours == table1.comparison(MIST, runs).ours  # the same samples each time


def test_pooled_seeds_of_shortened_runs_scatter_as_such_runs_do() -> None:
    runs = [
        SeedRun(MIST.with_settings(seed, 2, 10), trials(errors)) for seed, errors in enumerate([[0.2, 0.9], [0.5, 0.6]])
    ]
    found = table1.comparison(MIST, runs)
    assert found.ours is not None
    pairs = [min(pair) for pair in combinations([0.2, 0.9, 0.5, 0.6], 2)]
    assert found.ours[0] == pytest.approx(statistics.fmean(pairs), abs=0.02)
    assert found.ours[1] > 0.1


def test_resampling_comes_to_the_exact_expectation() -> None:
    errors = [0.1, 0.2, 0.4, 0.5, 0.9, None]

    def best(pairs: Iterable[tuple[float | None, ...]]) -> list[float]:
        return [min(error for error in pair if error is not None) for pair in pairs if any(pair)]

    (mean, spread), _ = resampled(trials(errors), 2, resamples=40_000)
    assert mean == pytest.approx(statistics.fmean(best(combinations(errors, 2))), abs=0.005)
    assert spread == pytest.approx(statistics.pstdev(best(product(errors, errors))), abs=0.005)


def test_unknown_rows_are_named() -> None:
    assert chosen_rows(table1.ROWS, ["mist-139"]) == [MIST]
    assert chosen_rows(table1.ROWS, None) == list(table1.ROWS)
    with pytest.raises(UsageError, match=r"expected rows among rnn-198, lstm-100, .* got 'mist-140'"):
        chosen_rows(table1.ROWS, ["mist-140"])


def outcome(
    layer: str, delay: int, error: float | None, done: int = 50, *, control: bool = False, **shorter: int
) -> str:
    row = next(row for row in figure3.rows([delay], control=control) if row.study.layer == layer)
    run = SeedRun(row.with_settings(0, shorter.get("trials"), shorter.get("steps")), trials([error] * done))
    return figure3.outcome(row, [run]).verdict


def test_figure3_says_who_solves_it() -> None:
    sizes = [(row.study.layer, row.study.hidden) for row in figure3.rows([50])]
    assert sizes == [("rnn", 203), ("lstm", 100), ("clockwork", 256), ("mist", 141)]
    assert outcome("mist", 400, 0.0) == "as published: solved"
    assert outcome("mist", 50, 0.0, steps=1_000) == "as published: solved (1,000 steps instead of 100,000)"
    assert outcome("clockwork", 50, 0.04) == "as published: not solved"
    assert outcome("clockwork", 50, 0.0) == "other than published: solved, and the paper says not"
    assert outcome("clockwork", 50, 0.0, control=True) == "as published: solved"
    assert outcome("lstm", 50, 0.07) == "other than published: not solved, and the paper says it is"
    assert outcome("lstm", 100, 0.07) == "not comparable: the paper does not say"


def test_figure3_does_not_judge_what_is_not_whole() -> None:
    short = "not comparable: not solved (1,000 steps instead of 100,000)"
    assert outcome("lstm", 400, 0.07, steps=1_000) == short
    assert outcome("mist", 400, 0.07, steps=1_000) == short
    assert outcome("clockwork", 50, 0.07, 1, trials=1) == "not comparable: not solved (1 trials instead of 50)"
    assert outcome("clockwork", 50, 0.07, 3) == "not comparable: not solved (seed 0 has finished 3 of 50 trials)"
    long = "not comparable: solved (1,000,000 steps instead of 100,000)"
    assert outcome("lstm", 400, 0.0, steps=1_000_000) == long
    assert outcome("lstm", 400, None) == "not comparable: no trial has been validated"
    row = figure3.rows([50])[0]
    assert figure3.outcome(row, [SeedRun(row.study, ())]).verdict == "not comparable: no trial has been validated"
