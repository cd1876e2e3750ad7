"""What is held out to validate on: groups stay whole, and the last case of a class is learnt."""

from typing import Any

import numpy as np
import pytest

from mistrnn import FrameLabeler, SequenceClassifier
from mistrnn.estimators._estimator import SequenceEstimator
from mistrnn.estimators._holding_out import drawn_cases, drawn_groups
from mistrnn.training.examples import Examples
from tests.estimators.data import NO_EPOCH, SMALL, slopes


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> list[Examples | None]:
    """The examples that the last fit, which ends before it begins, would train and validate on."""
    found: list[Examples | None] = []

    def remember(estimator: Any, train_on: Examples, validate_on: Examples | None, *rest: Any) -> Any:
        found[:] = [train_on, validate_on]
        return [], [NO_EPOCH]

    monkeypatch.setattr(SequenceEstimator, "_fit_one", remember)
    for kind in (SequenceEstimator, SequenceClassifier):
        monkeypatch.setattr(kind, "_completed", lambda *given: None)
    return found


def test_a_group_is_never_trained_and_validated_on(parts: Any) -> None:
    x, y = slopes(100)
    people = np.arange(100) // 10
    x[:, 0, 0] = people  # so that a case tells whose it is
    SequenceClassifier(early_stopping=True, validation_fraction=0.15).fit(x, y, groups=people)
    learnt, held = ({case[0, 0] for case in part.cases} for part in parts)
    assert learnt
    assert held
    assert not learnt & held
    assert learnt | held == set(range(10))
    with pytest.raises(
        ValueError, match=r"early_stopping=True and validation_fraction=0.15, got 100 cases in 1 groups"
    ):
        SequenceClassifier(early_stopping=True, validation_fraction=0.15).fit(x, y, groups=["me"] * 100)
    SequenceClassifier(validation_fraction=0.3).fit(x, y, groups=["me"] * 100)  # all are learnt
    assert parts[1] is None
    assert len(parts[0].cases) == 100
    with pytest.warns(UserWarning, match=r"\['c'\] is only in the groups that are validated on"):
        SequenceClassifier(early_stopping=True).fit(x, ["a", "b"] * 45 + ["c"] * 10, groups=[0] * 90 + [1] * 10)


def test_few_cases_that_cannot_be_split_are_said() -> None:
    x, y = slopes(40)
    with pytest.raises(ValueError, match=r"something to validate on, because early_stopping=True .* got 2 cases\."):
        SequenceClassifier(early_stopping=True).fit(x[:2], y[:2])
    with pytest.raises(ValueError, match=r"something to validate on, because n_trials=3 and .* got 2 cases\."):
        SequenceClassifier(n_trials=3).fit(x[:2], y[:2])


@pytest.mark.parametrize("names", [list("abcde"), [1, 2, 3, 4, 5], [0.5, 1.5, 2.5, 3.5, 4.5]])
def test_early_stopping_with_groups_keeps_the_epoch_of_the_lowest_validation_loss(names: list[Any]) -> None:
    x, y = slopes(50)
    groups = [names[k // 10] for k in range(50)]
    model = SequenceClassifier(**SMALL, max_epochs=12, early_stopping=True, patience=4).fit(x, y, groups=groups)
    losses = [epoch["validation_loss"] for epoch in model.history_]
    assert model.best_epoch_ == 1 + int(np.argmin(losses))
    assert model.score(x, y) > 0.9


@pytest.mark.parametrize("seed", range(20))
def test_groups_of_very_different_size_leave_enough_to_learn(seed: int) -> None:
    groups = np.r_[np.zeros(190), np.arange(1, 11)]
    same = np.ones((200, 1), dtype=bool)  # no classes
    held = drawn_groups(30, groups, same, np.random.RandomState(seed))
    assert sorted(groups[held]) == list(range(1, 11))
    pair = drawn_groups(15, np.repeat([0, 1], [60, 40]), same[:100], np.random.RandomState(seed))
    assert len(pair) == 40  # no group is small enough: the smaller one
    many = drawn_groups(15, np.arange(100) // 5, same[:100], np.random.RandomState(seed))
    assert len(many) == 15
    assert len(drawn_groups(15, np.zeros(100), same[:100], np.random.RandomState(seed))) == 0


@pytest.mark.parametrize("seed", range(20))
def test_the_last_case_of_a_class_is_always_learnt(seed: int) -> None:
    strata = np.r_[np.zeros(10), np.ones(9), [2]]
    classes = strata[:, None] == np.arange(3)
    held = drawn_cases(6, strata, classes, np.random.RandomState(seed))
    assert len(held) == len(set(held.tolist())) == 6
    assert 19 not in held
    assert 2 <= (strata[held] == 0).sum() <= 4
    assert len(drawn_cases(50, strata, classes, np.random.RandomState(seed))) == 17


def recordings(*rare: int) -> tuple[Any, Any]:
    """20 recordings whose steps are "a" or "b", and the first one "c" in these; each recording begins with its number."""
    x = np.random.RandomState(0).randn(20, 1, 6)
    y = np.where(x[:, 0] > 0, "a", "b")
    y[:, 1:3] = "a", "b"
    y[list(rare), 0] = "c"
    x[:, 0, 0] = np.arange(20)
    return x, y


@pytest.fixture
def split(parts: Any) -> Any:
    """Fits that end before they begin, and return the numbers of the recordings to train and to validate on."""

    def numbers(model: Any, *data: Any, **options: Any) -> list[list[int]]:
        model.fit(*data, **options)
        return [[int(case[0, 0]) for case in part.cases] for part in parts]

    return numbers


def labeler(seed: int = 0) -> FrameLabeler:
    return FrameLabeler(early_stopping=True, validation_fraction=0.15, random_state=seed)


@pytest.mark.parametrize("seed", range(20))
def test_the_only_recording_with_a_class_is_always_learnt(split: Any, seed: int) -> None:
    order = np.random.RandomState(seed).permutation(20).tolist()
    model = labeler(seed)
    assert split(model, *recordings(order[1]))[1] == sorted([order[0], *order[2:4]])
    assert split(model, *recordings(order[1], order[2]))[1] == sorted([*order[:2], order[3]])  # one of two is enough
    x, y = recordings(order[0], order[5])
    learnt, held = split(model, x, y, sample_weight=np.arange(20) != order[5])  # it is as good as absent
    assert order[0] in learnt
    assert len(held) == 3


@pytest.mark.parametrize("seed", range(20))
def test_a_labeler_validates_on_the_recordings_that_come_first_where_every_class_is_left(split: Any, seed: int) -> None:
    order = np.random.RandomState(seed).permutation(20).tolist()
    learnt, held = split(labeler(seed), *recordings(order[0], order[9]))
    assert held == sorted(order[:3])
    assert learnt == sorted(order[3:])


@pytest.mark.parametrize("seed", range(20))
def test_the_only_group_with_a_class_is_always_learnt(split: Any, seed: int) -> None:
    people, order = np.arange(20) // 2, np.random.RandomState(seed).permutation(10).tolist()
    x, y = recordings(2 * order[0], 2 * order[0] + 1)
    learnt, held = split(labeler(seed), x, y, groups=people)
    assert sorted({k // 2 for k in held}) == sorted(order[1:3])
    assert learnt == sorted({*range(20)} - {*held})
    of_case = np.where(people == order[0], "c", np.array(["a", "b"])[np.arange(20) % 2])
    classifier = SequenceClassifier(early_stopping=True, validation_fraction=0.15, random_state=seed)
    assert split(classifier, x, of_case, groups=people)[1] == held
    larger = np.where(np.arange(20) < 8, "small", "large")  # the smaller one alone has "c"
    assert split(classifier, x, np.r_[["c"] * 2, ["a", "b"] * 9], groups=larger)[1] == list(range(8, 20))


@pytest.mark.parametrize("of", ["cases", "groups"])
def test_where_every_recording_has_a_class_of_its_own_the_one_that_is_lost_is_named(split: Any, of: str) -> None:
    x, y = recordings()
    y = np.c_[[f"own {k}" for k in range(20)], y[:, 1:]]
    options = {} if of == "cases" else {"groups": np.arange(20)}
    message = rf"FrameLabeler: \['own \d+'\] is only in the {of} that are validated on, and will not be learnt"
    with pytest.warns(UserWarning, match=message) as caught:
        learnt, held = split(labeler(), x, y, **options)
    assert caught[0].filename == __file__  # the warning points at the caller's line
    assert len(held) == 1
    assert len(learnt) == 19
    with pytest.raises(ValueError, match=r"something to validate on, because early_stopping=True .* got 20 cases\."):
        labeler().fit(x, np.repeat(y[:, :1], 6, axis=1))  # nothing of any is learnt elsewhere


def test_validation_holds_every_class(parts: Any) -> None:
    x, _ = slopes(100)
    SequenceClassifier(early_stopping=True, validation_fraction=0.15, random_state=0).fit(x, np.arange(100) // 20)
    assert sorted(int(target) for target in parts[1].targets) == [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3 + [4] * 3
