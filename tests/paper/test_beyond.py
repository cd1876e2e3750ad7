"""Rows beyond the paper: their studies, paired differences and verdicts."""

from typing import Any

import pytest

from mistrnn.analysis import suggest_delays
from mistrnn.errors import UsageError
from mistrnn.paper import beyond
from mistrnn.paper.comparison import Row, StudyResults
from mistrnn.paper.estimates import difference


def results(
    row: Row, *, better: float = 0.0, trials: int = 25, steps: int | None = None, first: int = 0
) -> StudyResults:
    found = [
        {
            "trial": k,
            "status": "ok",
            "learning_rate": 0.01,
            "val_error": 0.3 + 0.01 * ((k * 7) % trials),
            "test_error": 0.3 + 0.01 * ((k * 7) % trials) - better,
            "best_step": 1,
        }
        for k in range(first, trials + first)
    ]
    return StudyResults(row.with_settings(0, None, steps), tuple(found))


@pytest.mark.parametrize("experiment", beyond.HORIZONS)
def test_rows_differ_from_the_plain_layer_in_one_option(experiment: str) -> None:
    rows = beyond.rows(experiment)
    assert [row.study.layer for row in rows] == ["mist"] * 5 + ["lstm"] * 4
    for layer, number in (("mist", 5), ("lstm", 4)):
        plain, *others = [row for row in rows if row.study.layer == layer]
        assert beyond.is_plain(plain)
        options = [set(row.study.layer_options) for row in others]
        assert options == [{"zoneout"}, {"recurrent_dropout"}, {"layer_norm"}, {"delays"}][: number - 1]
        for row in others:
            assert row.study.as_dict() | {"layer_options": {}} == plain.study.as_dict()
    assert len({row.name for row in rows}) == 9


@pytest.mark.parametrize("experiment", ["copy-100", "pmnist-last-200"])
def test_delays_are_those_with_the_shortest_paths(experiment: str) -> None:
    assert suggest_delays(beyond.HORIZONS[experiment], 8) == beyond.DELAYS[experiment]


def test_plain_rows_of_the_paper_keep_their_names() -> None:
    names = {experiment: beyond.rows(experiment)[0].name for experiment in beyond.HORIZONS}
    assert names == {
        "copy-100": "figure3/copy-100-mist",
        "copy-1000": "figure3/copy-1000-mist",
        "copy-2000": "figure3/copy-2000-mist",
        "pmnist": "table1/mist-139",
        "pmnist-last-200": "beyond/pmnist-last-200-mist-plain",
        "timit-sample": "table3-stand-in/mist-139",
        "hapt": "table4-stand-in/mist-139",
    }


def verdict(variant: dict[str, Any], plain: dict[str, Any] | None = None) -> str:
    rows = beyond.rows("copy-100")
    found = [(rows[1], [results(rows[1], **variant)])]
    if plain is not None:
        found.insert(0, (rows[0], [results(rows[0], **plain)]))
    return beyond.outcomes(found)[-1].verdict


def test_verdict_follows_from_the_interval_of_the_difference() -> None:
    assert verdict({"better": 0.05}, {}) == "lower error"
    assert verdict({"better": -0.05}, {}) == "higher error"
    assert verdict({"better": 0.0}, {}) == "undecided"


def test_rows_that_cannot_be_compared_say_why() -> None:
    assert verdict({}) == "not comparable: the layer without the option has not been run"
    assert verdict({"first": 3}, {}) == "not comparable: chosen trials"
    assert verdict({"steps": 10}, {}) == "not comparable: other numbers of steps"
    assert verdict({"trials": 12}, {}) == "not comparable: too few trials in common"


def test_outcome_has_estimate_difference_and_solving_trials() -> None:
    rows = beyond.rows("copy-100")
    plain, variant = beyond.outcomes([(row, [results(row, better=0.1 * k)]) for k, row in enumerate(rows[:2])])
    assert (plain.difference, plain.verdict) == (None, "-")
    assert variant.difference is not None
    assert variant.difference.value == pytest.approx(-0.1)
    assert variant.ours is not None
    assert variant.solved is not None
    assert (variant.solved.count, variant.solved.trials) == (0, 25)
    hapt = beyond.rows("hapt")[0]
    assert beyond.outcomes([(hapt, [results(hapt)])])[0].solved is None


def test_unknown_experiment_is_refused() -> None:
    with pytest.raises(UsageError, match=r"expected an experiment among copy-100, .*, got 'copy-7'"):
        beyond.rows("copy-7")


def trials(errors: list[float | None], shift: float = 0.0) -> dict[int, dict[str, Any]]:
    return {
        k: {"trial": k, "val_error": error, "test_error": None if error is None else error + shift}
        for k, error in enumerate(errors)
    }


def test_difference_pairs_trials_and_ranks_diverged_ones_last() -> None:
    errors: list[float | None] = [0.1 + 0.01 * k for k in range(30)]
    own = difference(trials([None, *errors[1:]], 0.2), trials(errors), 30)
    assert own is not None
    # The best tenth: trials 1 to 3 of one sweep, 0 to 2 of the other.
    assert own.value == pytest.approx(0.21)
    assert own.low is not None
    assert own.high is not None
    assert 0.2 <= own.low <= own.value <= own.high


def test_difference_without_common_or_validated_trials_is_none() -> None:
    assert difference(trials([0.1]), {5: {"trial": 5, "val_error": 0.1, "test_error": 0.1}}) is None
    assert difference(trials([None] * 3), trials([0.1] * 3)) is None
    few = difference(trials([0.1, 0.2]), trials([0.3, 0.4]))
    assert few is not None
    assert (few.value, few.low) == (pytest.approx(-0.2), None)
