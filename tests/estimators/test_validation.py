"""What is held out to validate on: groups stay whole, and the last case of a class is learnt."""

from typing import Any

import numpy as np
import pytest

from mistrnn import FrameLabeler, SequenceClassifier
from mistrnn.estimators import _fitting
from mistrnn.estimators._estimator import _drawn_cases, _drawn_groups
from mistrnn.estimators._fitting import Examples
from tests.estimators.data import slopes


def test_a_group_is_never_trained_and_validated_on(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = slopes(100)
    people = np.arange(100) // 10
    x[:, 0, 0] = people  # so that a case tells whose it is
    parts: list[Examples] = []
    monkeypatch.setattr(_fitting, "train", lambda network, learnt, held, *rest: parts.extend([learnt, held]) or [_END])
    SequenceClassifier(hidden_size=4, early_stopping=True).fit(x, y, groups=people)
    learnt, held = ({case[0, 0] for case in part.cases} for part in parts)
    assert learnt
    assert held
    assert not learnt & held
    with pytest.raises(ValueError, match="got 100 cases in 1 groups"):
        SequenceClassifier(early_stopping=True).fit(x, y, groups=["me"] * 100)
    parts.clear()
    SequenceClassifier(hidden_size=4, validation_fraction=0.3).fit(x, y, groups=["me"] * 100)  # "auto" does without
    assert parts[1] is None
    with pytest.warns(UserWarning, match=r"\['c'\] is only in the groups that are validated on"):
        SequenceClassifier(hidden_size=4, early_stopping=True).fit(
            x, ["a", "b"] * 45 + ["c"] * 10, groups=[0] * 90 + [1] * 10
        )


@pytest.mark.parametrize("seed", range(20))
def test_groups_of_very_different_size_leave_enough_to_learn(seed: int) -> None:
    groups = np.r_[np.zeros(190), np.arange(1, 11)]
    same = np.ones((200, 1), dtype=bool)  # no classes
    held = _drawn_groups(30, groups, same, np.random.RandomState(seed))
    assert sorted(groups[held]) == list(range(1, 11))
    pair = _drawn_groups(15, np.repeat([0, 1], [60, 40]), same[:100], np.random.RandomState(seed))
    assert len(pair) == 40  # no group is small enough: the smaller one
    many = _drawn_groups(15, np.arange(100) // 5, same[:100], np.random.RandomState(seed))
    assert len(many) == 15
    assert len(_drawn_groups(15, np.zeros(100), same[:100], np.random.RandomState(seed))) == 0


@pytest.mark.parametrize("seed", range(20))
def test_the_last_case_of_a_class_is_always_learnt(seed: int) -> None:
    strata = np.r_[np.zeros(10), np.ones(9), [2]]
    classes = strata[:, None] == np.arange(3)
    held = _drawn_cases(6, strata, classes, np.random.RandomState(seed))
    assert len(held) == len(set(held.tolist())) == 6
    assert 19 not in held
    assert 2 <= (strata[held] == 0).sum() <= 4
    assert len(_drawn_cases(50, strata, classes, np.random.RandomState(seed))) == 17


_END = _fitting.Epoch(1, 1, 0.1, 0.0, None, 1)


def recordings(*rare: int) -> tuple[Any, Any]:
    """20 recordings whose steps are "a" or "b", and the first one "c" in these; each recording begins with its number."""
    x = np.random.RandomState(0).randn(20, 1, 6)
    y = np.where(x[:, 0] > 0, "a", "b")
    y[:, 1:3] = "a", "b"
    y[list(rare), 0] = "c"
    x[:, 0, 0] = np.arange(20)
    return x, y


@pytest.fixture
def split(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Fits that end before they begin, and return the numbers of the recordings to train and to validate on."""
    parts: list[Examples | None] = []
    monkeypatch.setattr(_fitting, "train", lambda network, learnt, held, *rest: parts.extend([learnt, held]) or [_END])

    def numbers(model: Any, *data: Any, **options: Any) -> list[list[int] | None]:
        parts.clear()
        model.set_params(hidden_size=2).fit(*data, **options)
        return [None if part is None else [int(case[0, 0]) for case in part.cases] for part in parts]

    return numbers


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("early_stopping", ["auto", True])
def test_the_only_recording_with_a_class_is_always_learnt(split: Any, seed: int, early_stopping: Any) -> None:
    order = np.random.RandomState(seed).permutation(20).tolist()
    model = FrameLabeler(early_stopping=early_stopping, random_state=seed)
    assert split(model, *recordings(order[1]))[1] == sorted([order[0], *order[2:4]])
    assert split(model, *recordings(order[1], order[2]))[1] == sorted([*order[:2], order[3]])  # one of two is enough
    x, y = recordings(order[0], order[5])
    learnt, held = split(model, x, y, sample_weight=np.arange(20) != order[5])  # it is as good as absent
    assert order[0] in learnt
    assert len(held) == 3


@pytest.mark.parametrize("seed", range(20))
def test_a_labeler_validates_on_the_recordings_that_come_first_where_every_class_is_left(split: Any, seed: int) -> None:
    order = np.random.RandomState(seed).permutation(20).tolist()
    learnt, held = split(FrameLabeler(random_state=seed), *recordings(order[0], order[9]))
    assert held == sorted(order[:3])
    assert learnt == sorted(order[3:])


@pytest.mark.parametrize("seed", range(20))
def test_the_only_group_with_a_class_is_always_learnt(split: Any, seed: int) -> None:
    people, order = np.arange(20) // 2, np.random.RandomState(seed).permutation(10).tolist()
    x, y = recordings(2 * order[0], 2 * order[0] + 1)
    learnt, held = split(FrameLabeler(random_state=seed), x, y, groups=people)
    assert sorted({k // 2 for k in held}) == sorted(order[1:3])
    assert learnt == sorted({*range(20)} - {*held})
    of_case = np.where(people == order[0], "c", np.array(["a", "b"])[np.arange(20) % 2])
    classifier = SequenceClassifier(early_stopping=True, random_state=seed)
    assert split(classifier, x, of_case, groups=people)[1] == held
    larger = np.where(np.arange(20) < 8, "small", "large")  # the smaller one alone has "c"
    assert split(classifier, x, np.r_[["c"] * 2, ["a", "b"] * 9], groups=larger)[1] == list(range(8, 20))


def test_where_every_recording_has_a_class_of_its_own_one_is_lost_only_if_validation_is_asked_for(split: Any) -> None:
    x, y = recordings()
    y = np.c_[[f"own {k}" for k in range(20)], y[:, 1:]]
    for options, of in (({}, "cases"), ({"groups": np.arange(20)}, "groups")):
        learnt, held = split(FrameLabeler(random_state=0), x, y, **options)
        assert len(learnt) == 20
        assert held is None
        message = rf"FrameLabeler: \['own \d+'\] is only in the {of} that are validated on, and will not be learnt"
        with pytest.warns(UserWarning, match=message) as caught:
            learnt, held = split(FrameLabeler(early_stopping=True, random_state=0), x, y, **options)
        assert caught[0].filename == __file__  # the warning points at the caller's line
        assert len(held) == 1
        assert len(learnt) == 19
    with pytest.raises(ValueError, match=r"something to validate on, because early_stopping=True .* got 20 cases\."):
        FrameLabeler(early_stopping=True).fit(x, np.repeat(y[:, :1], 6, axis=1))  # nothing of any is learnt elsewhere


def test_validation_holds_every_class(monkeypatch: pytest.MonkeyPatch) -> None:
    x, _ = slopes(100)
    parts: list[Examples] = []
    monkeypatch.setattr(_fitting, "train", lambda network, learnt, held, *rest: parts.extend([learnt, held]) or [_END])
    SequenceClassifier(hidden_size=4, early_stopping=True, random_state=0).fit(x, np.arange(100) // 20)
    assert sorted(int(target) for target in parts[1].targets) == [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3 + [4] * 3
