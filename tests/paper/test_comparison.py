"""Ours beside published: which study belongs to which row, how seeds are pooled, and what the verdict says."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from mistrnn.errors import UsageError
from mistrnn.layers import layer_class
from mistrnn.paper import figure3, table1, table2, table3, table4
from mistrnn.paper.comparison import INSIDE, NOT_COMPARABLE, OUTSIDE, UNDECIDED, StudyResults, chosen_rows
from mistrnn.paper.estimates import Share
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


def study_results(error: float, seed: int = 0, data: str | None = PUBLISHED, **changes: Any) -> StudyResults:
    study = MIST.with_settings(seed, changes.pop("trials", None), changes.pop("steps", None))
    study = replace(study, **changes.pop("other", {}))
    done = changes.pop("done", study.trials)
    return StudyResults(study, trials([error] * done), data)


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
        assert 0.9 < count / budget <= 1 or row.key == "lstm-139"


def test_table2_judges_only_whole_runs_over_all_users() -> None:
    assert {layer: (row[0], row[1].error, row[1].deviation) for layer, row in table2.ROWS.items()} == {
        "rnn": ("Simple RNN", 0.380, 0.062),
        "lstm": ("LSTM", 0.139, 0.030),
        "peephole_lstm": ("LSTM with peepholes", 0.122, 0.027),  # the paper cites it from DiPietro et al. 2016
        "clockwork": ("Clockwork RNN", 0.225, 0.050),
        "mist": ("MIST RNN", 0.141, 0.039),
    }

    def verdict(error: float, users: int = 15, shortened: bool = False) -> str:
        return table2.verdict("lstm", table2.Result("", (error,) * users, (0.0,) * users), shortened=shortened)

    assert verdict(0.15) == "inside the published spread, 1.10 points higher"
    assert verdict(0.07) == "outside the published spread, 6.90 points lower"
    assert verdict(0.139, users=8) == "not comparable: 8 of 15 users"
    own = table2.Result("", (0.13,) * 11, (0.0,) * 11)
    published = table2.verdict("peephole_lstm", own, shortened=False, options=table2.OPTIONS_OF_2016)
    assert published == "inside the published spread, 0.80 points higher"
    for layer, options, theirs in (
        ("peephole_lstm", table2.PAPER_OPTIONS, "2016"),
        ("lstm", table2.OPTIONS_OF_2016, "the paper"),
    ):
        found = table2.verdict(layer, own, shortened=False, options=options)
        assert found == f"not comparable: the published number has the options of {theirs}"
    assert verdict(0.139, shortened=True) == "not comparable: fewer steps than published"


def test_a_row_owns_its_studies_whatever_their_seed_and_length() -> None:
    assert MIST.owns(MIST.with_settings(3, 7, 20), None)
    assert MIST.owns(Study(task="pmnist", layer="mist", hidden=139, precision="fp32", gradients_every=5), None)
    for other in (
        {"hidden": 140},
        {"learning_rate": 0.1},
        {"layer_options": {"layer_norm": True}},
        {"task_settings": {"last_pixels": 200}},
        {"optimizer": "adam"},
        {"batch_size": 50},
        {"truncate": 100},
    ):
        assert not MIST.owns(Study(**{"task": "pmnist", "layer": "mist", "hidden": 139, **other}), None)


def test_row_owns_studies_that_store_its_name_and_no_others() -> None:
    assert MIST.name == "table1/mist-139"
    assert MIST.owns(MIST.study, "table1/mist-139")
    assert not MIST.owns(MIST.study, "table1/mist-512")
    names = [
        row.name
        for rows in (
            table1.ROWS,
            table1.CONTROL_ROWS,
            table3.ROWS,
            table3.STAND_IN_ROWS,
            table4.ROWS,
            table4.STAND_IN_ROWS,
        )
        for row in rows
    ]
    names += [row.name for row in figure3.rows() + figure3.rows(control=True)]
    assert len(set(names)) == len(names)


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
    found = table1.comparison(MIST, [study_results(error)])
    assert (found.kind, found.verdict) == (kind, words)
    assert found.difference == pytest.approx(error - 0.055)


@pytest.mark.parametrize(
    ("results", "reason"),
    [
        (study_results(0.055, trials=19), "19 trials, and an interval needs 20"),
        (study_results(0.055, steps=300), "300 steps instead of 15,000"),
        (study_results(0.055, done=12), "12 trials, and an interval needs 20"),
        (study_results(0.055, steps=150_000), "150,000 steps instead of 15,000"),
        (study_results(0.055, other={"precision": "bf16"}), "products in bfloat16"),
        (study_results(0.055, other={"validate_every": 15_000}), "validation every 15,000 steps instead of 150"),
        (study_results(0.055, data="other"), "on files that are not the published ones"),
    ],
)
def test_what_cannot_be_compared_says_why(results: StudyResults, reason: str) -> None:
    found = table1.comparison(MIST, [results])
    assert found.kind == NOT_COMPARABLE
    assert found.verdict == f"not comparable: {reason}"
    assert found.ours is not None


def chosen(results: StudyResults, numbers: Iterable[int]) -> StudyResults:
    return replace(results, trials=tuple(results.trials[k] for k in numbers))


def test_first_trials_of_a_study_are_a_sample_and_chosen_ones_are_not() -> None:
    whole = replace(study_results(0.055), trials=trials([0.0005 * k + 0.04 for k in range(50)]))
    part = table1.comparison(MIST, [chosen(whole, range(30))])
    assert part.ours is not None
    assert part.ours.value == pytest.approx(0.0405)  # the best three of thirty
    assert part.ours.low is not None
    picked = table1.comparison(MIST, [chosen(whole, range(1, 31))])
    assert picked.verdict == "not comparable: seed 0 has finished 30 chosen trials of 50"
    assert picked.ours is not None
    assert picked.ours.value == pytest.approx(0.0415)  # its best five
    assert picked.ours.low is None


def test_verdict_of_fewer_trials_than_published_never_confirms() -> None:
    few = table1.comparison(MIST, [study_results(0.056, done=30)])
    assert few.verdict == "undecided, 0.10 points higher: 30 trials instead of 50"
    assert table1.comparison(MIST, [study_results(0.08, done=30)]).kind == OUTSIDE
    assert table1.comparison(MIST, [study_results(0.055, trials=200)]).kind == INSIDE


def test_verdict_of_an_interval_that_reaches_into_the_band_is_undecided() -> None:
    spread = [0.045 + 0.004 * k for k in range(45)] + [None] * 5
    found = table1.comparison(MIST, [StudyResults(MIST.study, trials(spread), PUBLISHED)])
    assert found.ours is not None
    assert found.ours.low is not None
    assert found.ours.high is not None
    assert found.ours.value == pytest.approx(0.053)
    worse = table1.comparison(MIST, [StudyResults(MIST.study, trials([e and e + 0.007 for e in spread]), PUBLISHED)])
    assert worse.kind == UNDECIDED
    assert worse.verdict == "undecided, 0.50 points higher: the 95% interval reaches into the published spread"


def test_nothing_finished_and_nothing_published_are_said() -> None:
    lost = StudyResults(MIST.study, trials([None] * 50), PUBLISHED)
    assert table1.comparison(MIST, [lost]).verdict == "not comparable: no trial has been validated"
    control = table1.CONTROL_ROWS[1]
    found = table1.comparison(control, [StudyResults(control.study, trials([0.06] * 50), PUBLISHED)])
    assert found.verdict == "not comparable: published without a spread"
    assert found.difference == pytest.approx(0.0)


def test_a_seed_counts_once_and_a_lost_one_is_named() -> None:
    twice = table1.comparison(MIST, [study_results(0.055), study_results(0.055), study_results(0.055, done=3)])
    assert len(twice.seeds) == 1
    assert twice.seeds[0].finished == 50
    assert twice.verdict == "not comparable: seed 0 is there 3 times, and one is counted"
    other = study_results(0.06, other={"precision": "fp32"})
    for both in ([other, study_results(0.055)], [study_results(0.055), other]):
        result = table1.comparison(MIST, both)
        assert result.verdict == "not comparable: seed 0 is there 2 times, and the one in high is counted"
        assert result.ours is not None
        assert result.ours.value == pytest.approx(0.055)
    lost = StudyResults(MIST.with_settings(1, None, None), trials([None] * 50), PUBLISHED)
    assert (
        table1.comparison(MIST, [study_results(0.055), lost]).verdict == "not comparable: all trials of seed 1 diverged"
    )
    mixed = table1.comparison(MIST, [study_results(0.055), study_results(0.9, seed=1, steps=10)])
    assert mixed.ours is not None
    assert mixed.ours.value == pytest.approx(0.055)  # the short run is another population
    assert mixed.verdict == "not comparable: 10 steps instead of 15,000"


def test_seeds_are_pooled_and_listed_one_by_one() -> None:
    seeds = [
        StudyResults(MIST.with_settings(seed, None, None), trials([base + 0.0002 * k for k in range(50)]), PUBLISHED)
        for seed, base in ((1, 0.058), (0, 0.052))
    ]
    found = table1.comparison(MIST, seeds)
    assert [one.study.seed for one in found.seeds] == [0, 1]
    assert [one.summary.test_error[0] for one in found.seeds] == pytest.approx([0.0524, 0.0584])
    assert found.ours is not None
    assert 0.0524 < found.ours.value < 0.0584  # most of a sample's top 5 come from the better half
    assert found.ours == table1.comparison(MIST, seeds).ours  # the same resamples each time


def test_unknown_rows_are_named() -> None:
    assert chosen_rows(table1.ROWS, ["mist-139"]) == [MIST]
    assert chosen_rows(table1.ROWS, None) == list(table1.ROWS)
    with pytest.raises(UsageError, match=r"expected rows among rnn-198, lstm-100, .* got 'mist-140'"):
        chosen_rows(table1.ROWS, ["mist-140"])


def outcome(
    layer: str, delay: int, error: float | None, done: int = 50, *, control: bool = False, **shorter: int
) -> str:
    row = next(row for row in figure3.rows([delay], control=control) if row.study.layer == layer)
    results = StudyResults(row.with_settings(0, shorter.get("trials"), shorter.get("steps")), trials([error] * done))
    return figure3.outcome(row, [results]).verdict


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
    assert outcome("clockwork", 50, 0.07, 8) == "undecided: 0 of 8 trials solve it, and the paper says not solved"
    long = "not comparable: solved (1,000,000 steps instead of 100,000)"
    assert outcome("lstm", 400, 0.0, steps=1_000_000) == long
    assert outcome("lstm", 400, None) == "not comparable: no trial has been validated"
    row = figure3.rows([50])[0]
    assert figure3.outcome(row, [StudyResults(row.study, ())]).verdict == "not comparable: no trial has been validated"


def solving(count: int, of: int = 50) -> tuple[dict[str, Any], ...]:
    return trials([0.0] * count + [0.05] * (of - count))


@pytest.mark.parametrize(
    ("count", "of", "solved"),
    [(0, 50, False), (0, 30, None), (1, 50, None), (2, 50, None), (3, 50, True), (5, 100, True)],
)
def test_row_is_solved_if_the_interval_of_its_share_says_so(count: int, of: int, solved: bool | None) -> None:
    assert figure3.is_solved(Share.of(count, of)) is solved


def test_figure3_leaves_one_solving_trial_undecided() -> None:
    row = next(row for row in figure3.rows([50]) if row.study.layer == "rnn")
    found = figure3.outcome(row, [StudyResults(row.study, solving(1))])
    assert found.verdict == "undecided: 1 of 50 trials solve it, and the paper says solved"


def test_trial_solves_once_on_both_sets_and_at_the_end_at_its_last_validation() -> None:
    study = figure3.rows([50])[0].study
    rows = list(solving(4, 4))
    rows[1] = {**rows[1], "test_error": 0.01}
    rows[2] = {**rows[2], "status": "diverged"}
    results = StudyResults(study, tuple(rows), last_errors={0: 0.0, 1: 0.0, 2: 0.0, 3: 0.02})
    once, at_the_end = figure3.solved_shares([results])
    assert (once.count, at_the_end.count, once.trials) == (3, 1, 4)
