"""What is said about X that is not as it should be, and what is done about it."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from mistrnn import FrameLabeler, SequenceClassifier, SequenceRegressor
from mistrnn.estimators._sequences import as_cases, batches, pad, statistics
from tests.estimators.data import slopes, unequal

X, Y = slopes()
MODEL = SequenceClassifier(hidden_size=4, max_epochs=1, random_state=0)


def with_value(value: float) -> Any:
    x = X.copy()
    x[3, 1, 7] = value
    return x


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (with_value(np.nan), "expected finite numbers, got nan in case 3, channel 1, step 7. Fill gaps"),
        (list(with_value(np.inf)), "expected finite numbers, got inf in case 3, channel 1, step 7"),
        ([*X[:39], X[0, :1]], "expected the same channels in every case, got 2 in case 0 and 1 in case 39"),
        ([*X[:39], X[0].T], "are the axes the other way round?"),
        ([*X[:39], np.empty((2, 0))], "expected case 39 to have at least one step"),
        ([*X[:39], np.empty((0, 7))], "at least one step and one channel"),
        ([*X[:39], np.zeros((2, 3, 4))], r"expected case 39 to be [channels, time], or [time] for one channel"),
        ([*X[:39], np.array([["a", "b"], ["c", "d"]])], "expected numbers, got <U1 in case 39"),
        (X + 1j, "expected real numbers, got complex ones in case 0"),
        (np.zeros((2, 3, 4, 5)), r"expected X to be [cases, channels, time]"),
        (iter(X), "expected X to be"),
        (np.zeros((0, 2, 15)), "expected at least one case, got none"),
        (np.ma.masked_greater(X, 1.0), "expected finite numbers, got nan"),
        (X * 1e200, "expected smaller numbers in channel 0: their squares overflow"),
    ],
)
def test_x_that_cannot_be_used_is_refused_with_its_place(x: Any, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        SequenceClassifier().fit(x, Y)


@pytest.mark.parametrize("nothing", [[], ()])
@pytest.mark.parametrize("kind", [SequenceClassifier, FrameLabeler, SequenceRegressor])
def test_no_cases_at_all_are_refused(kind: Any, nothing: Any) -> None:
    message = f"^{kind.__name__}: expected at least one case, got none\\.$"
    with pytest.raises(ValueError, match=message):
        kind().fit(nothing, [])
    labels = {FrameLabeler: X[:, 0] > 0, SequenceRegressor: X[:, 0, 0]}
    for x in (X, X[:, 0]):  # cases, and a table
        model = kind(hidden_size=2, max_epochs=1, random_state=0).fit(x, labels.get(kind, Y))
        with pytest.raises(ValueError, match=message):
            model.predict(nothing)
        with pytest.raises(ValueError, match=message):
            model.score(nothing, [])


def test_as_many_labels_as_cases_are_expected() -> None:
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        MODEL.fit(X, Y[:-1])
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        MODEL.fit(X, Y, groups=[1, 2])
    with pytest.raises(ValueError, match="requires y to be passed"):
        MODEL.fit(X, None)


def test_one_class_alone_is_refused() -> None:
    with pytest.raises(ValueError, match=r"expected at least 2 classes.*got one class: \['up'\]"):
        MODEL.fit(X, ["up"] * 40)
    with pytest.raises(ValueError, match="expected at least 2 classes"):
        FrameLabeler().fit(X, np.zeros((40, 15), dtype=int))


def test_labels_of_steps_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="expected 15 labels for case 0, one for each step"):
        FrameLabeler().fit(X, np.zeros((40, 14), dtype=int))
    with pytest.raises(ValueError, match="every step of every case is unlabelled"):
        FrameLabeler().fit(X, np.full((40, 15), np.nan))
    with pytest.raises(ValueError, match=r"expected classes as labels, got numbers such as 0\.5"):
        FrameLabeler().fit(X, np.full((40, 15), 0.5))
    with pytest.raises(ValueError, match=r"expected 15 labels for case 0, one for each step, got an array \[15, 2\]"):
        FrameLabeler().fit(X, [[np.zeros(2)] * 15] * 40)
    mixed = np.array([["a", 1] * 7 + ["a"]] * 40, dtype=object)
    with pytest.raises(ValueError, match="expected labels of one type, got int and str"):
        FrameLabeler().fit(X, mixed)
    with pytest.raises(ValueError, match="expected labels of one type, got int and str"):
        FrameLabeler().fit(X, [np.zeros(15, dtype=int), *[np.full(15, "a")] * 39])
    with pytest.raises(ValueError, match="expected classes as labels, got numbers such as inf"):
        FrameLabeler().fit(X, np.full((40, 15), np.inf))
    with pytest.raises(ValueError, match="expected labels for 40 cases, got 39"):
        FrameLabeler()._labels_of(list(X.transpose(0, 2, 1)), np.zeros((39, 15)))
    with pytest.raises(ValueError, match="expected piece_length to be a whole number"):
        FrameLabeler(piece_length=0).fit(X, np.zeros((40, 15)))


def test_another_number_of_channels_is_refused_in_predict() -> None:
    model = MODEL.fit(X, Y)
    with pytest.raises(ValueError, match="expected 2 channels, because it was fitted on as many, got 1"):
        model.predict(X[:, :1])
    with pytest.raises(ValueError, match="expected 2 channels"):
        model.predict(X[:, 0])


def test_a_table_after_cases_of_one_channel_may_have_any_length() -> None:
    model = SequenceClassifier(hidden_size=4, max_epochs=1).fit(X[:, :1], Y)
    assert not hasattr(model, "n_features_in_")
    np.testing.assert_array_equal(model.predict(X[:, 0, :7]), model.predict(X[:, :1, :7]))


def test_a_constant_channel_is_only_shifted() -> None:
    x = np.concatenate([X, np.full((40, 1, 15), 1e6)], axis=1)
    model = SequenceClassifier(hidden_size=8, max_epochs=30, random_state=0).fit(x, Y)
    assert model.network_.standardisation.scale[2] == 1
    assert model.network_.standardisation.mean[2] == 1e6
    assert model.score(x, Y) == 1


def test_channels_far_from_zero_keep_their_precision() -> None:
    far = X * 1e-3 + 1.7e9  # a float32 cannot tell these apart
    model = SequenceClassifier(hidden_size=8, max_epochs=30, random_state=0).fit(far, Y)
    assert model.score(far, Y) == 1
    live = model.stream()
    assert [live(row).label for row in far[0].T][-1] == Y[0]


def test_standardisation_can_be_left_out() -> None:
    model = SequenceClassifier(hidden_size=4, max_epochs=1, standardize=False).fit(X, Y)
    assert model.network_.standardisation.mean.tolist() == [0, 0]
    assert model.network_.standardisation.scale.tolist() == [1, 1]


def test_statistics_are_those_of_all_steps_together() -> None:
    cases = as_cases("test", unequal(X))
    together = np.concatenate(cases)
    mean, scale, arcsinh = statistics("test", cases, [1.0] * 40)
    assert arcsinh is None
    torch.testing.assert_close(mean, torch.from_numpy(together.mean(0)))
    torch.testing.assert_close(scale, torch.from_numpy(together.std(0)))
    weighted = statistics("test", cases, [3.0] + [1.0] * 39)
    torch.testing.assert_close(weighted[:2], statistics("test", [cases[0]] * 2 + cases, [1.0] * 42)[:2])


def counts(cases: int = 40, steps: int = 60) -> tuple[Any, Any]:
    """Cases with a channel of counts, most of them 0, and a normal one; the class is in the small counts."""
    random, y = np.random.RandomState(0), np.arange(cases) % 2
    small = random.poisson(np.where(y, 6.0, 2.0)[:, None], (cases, steps))
    spikes = np.where(random.rand(cases, steps) < 0.01, 20_000 * random.rand(cases, steps), 0)
    quiet = random.rand(cases, steps) < 0.6
    return np.stack([np.where(quiet, 0, small) + spikes, random.randn(cases, steps)], 1), y


def test_channels_with_heavy_tails_are_transformed_around_their_median() -> None:
    x, _ = counts()
    mean, scale, arcsinh = statistics("test", list(x.transpose(0, 2, 1)), [1.0] * 40)
    assert arcsinh is not None
    values = x[:, 0].ravel()
    center = np.median(values)
    assert arcsinh.center.tolist() == [center, 0]
    assert arcsinh.knee.tolist() == [np.median(np.abs(values - center)[values != center]), 0]
    transformed = np.arcsinh((values - center) / float(arcsinh.knee[0]))
    np.testing.assert_allclose(mean.numpy(), [transformed.mean(), x[:, 1].mean()], rtol=1e-12)
    np.testing.assert_allclose(scale.numpy(), [transformed.std(), x[:, 1].std()], rtol=1e-12)
    weighted = statistics("test", list(x.transpose(0, 2, 1)), [2.0] + [1.0] * 39)
    repeated = statistics("test", [x[0].T, *x.transpose(0, 2, 1)], [1.0] * 41)
    torch.testing.assert_close(weighted[:2], repeated[:2])
    assert weighted.arcsinh is not None
    torch.testing.assert_close(dict(weighted.arcsinh.named_buffers()), dict(repeated.arcsinh.named_buffers()))  # type: ignore[union-attr]


@pytest.mark.parametrize("random_features", [0, 84])
def test_classes_in_small_counts_next_to_spikes_are_learnt_streamed_and_saved(
    random_features: int, tmp_path: Path
) -> None:
    x, y = counts(80)
    model = SequenceClassifier(hidden_size=8, max_epochs=30, random_state=0, random_features=random_features)
    model.fit(x[:40], y[:40])
    assert model.score(x[40:], y[40:]) > 0.9
    live = model.stream()
    streamed = np.array([live(row).probabilities for row in x[50].T][-1])
    np.testing.assert_allclose(streamed, model.predict_proba(x[50:51])[0], atol=1e-5)
    model.save_pretrained(tmp_path)
    again = SequenceClassifier.from_pretrained(tmp_path)
    np.testing.assert_array_equal(again.predict_proba(x), model.predict_proba(x))
    with pytest.raises(ValueError, match="expected numbers less than 1e\\+30 deviations"):
        model.predict(np.full((1, 2, 5), 1e200))


def test_what_is_standardised_is_learnt_from_what_is_trained_on_alone() -> None:
    x = np.concatenate([X] * 4)
    model = SequenceClassifier(hidden_size=4, max_epochs=1, early_stopping=True, random_state=0).fit(x, list(Y) * 4)
    assert not np.allclose(model.network_.standardisation.mean.numpy(), x.mean((0, 2)), atol=1e-12)


def test_batches_hold_every_case_once_and_stay_small() -> None:
    cases = [np.zeros((length, 1)) for length in (3, 50, 7, 7, 21, 1)]
    found = batches(cases, most_cases=3, most_frames=60)
    assert sorted(np.concatenate(found).tolist()) == list(range(6))
    assert all(len(chosen) <= 3 for chosen in found)
    assert all(len(chosen) * max(len(cases[k]) for k in chosen) <= 60 for chosen in found)
    padded, lengths = pad([cases[k] for k in found[-1]])
    assert list(padded.shape) == [int(lengths.max()), len(found[-1]), 1]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"groups": pd.Series([1, 2, None, 3] * 10, dtype="Int64")},
            "expected a group for every case, got none for case 2",
        ),
        ({"groups": [(1, 2)] * 40}, "expected groups to be a list of names or numbers, got"),
        ({"groups": "a" * 40}, "expected groups to be a list of names or numbers, got 'aaa"),
        ({"y": np.array(["a", np.nan] * 20, dtype=object)}, "expected a label for every case, got none for case 1"),
        ({"y": np.array(["a", None] * 20, dtype=object)}, "expected a label for every case, got none for case 1"),
    ],
)
def test_groups_and_labels_that_are_none_are_named(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SequenceClassifier(max_epochs=1).fit(X, **{"y": Y, **given})


def test_weights_of_any_size_count_by_their_ratios() -> None:
    def fitted(weight: float) -> Any:
        return SequenceClassifier(hidden_size=2, max_epochs=1, random_state=0).fit(X, Y, np.full(40, weight))

    np.testing.assert_array_equal(fitted(1e308).predict_proba(X), fitted(1.0).predict_proba(X))


def test_unlabeled_may_be_nan_whatever_the_labels() -> None:
    words = np.where(X[:, 0] > 0, "high", "low").astype(object)
    words[:, 0] = np.nan
    model = FrameLabeler(unlabeled=np.nan, hidden_size=2, max_epochs=1).fit(X, words)
    assert model.classes_.tolist() == ["high", "low"]


@pytest.mark.parametrize(("marker", "classes"), [(-1, ["high", "low"]), ("?", [0, 1])])
def test_unlabeled_may_be_of_another_type_among_mixed_labels(marker: Any, classes: list[Any]) -> None:
    labels = np.where(X[:, 0] > 0, *classes).astype(object)
    labels[:, 0] = marker
    model = FrameLabeler(unlabeled=marker, hidden_size=2, max_epochs=1).fit(X, labels)
    assert model.classes_.tolist() == classes


@pytest.mark.parametrize("unlabeled", ["-1", [-1, 2], np.array([-1, 2])])
def test_unlabeled_must_be_of_the_type_of_the_labels(unlabeled: Any) -> None:
    labels = np.where(X[:, 0] > 0, 1, 0)
    with pytest.raises(ValueError, match="expected unlabeled to be"):
        FrameLabeler(unlabeled=unlabeled, max_epochs=1).fit(X, labels)


def test_targets_of_a_regression_must_be_finite_numbers() -> None:
    with pytest.raises(ValueError, match="y contains NaN"):
        SequenceRegressor().fit(X, [np.nan] * 40)
    with pytest.raises(ValueError, match="could not convert string to float"):
        SequenceRegressor().fit(X, Y)
    with pytest.raises(ValueError, match="expected smaller numbers in y: their sum overflows"):
        SequenceRegressor().fit(X, np.full(len(X), 1e308))


def test_a_gap_is_a_gap_and_a_label_is_a_label_whatever_numpy_makes_of_them() -> None:
    x = [np.random.RandomState(k).randn(1, 20) for k in range(6)]
    whole = [np.where(case[0] > 0, 1, 0) for case in x]
    plain = [row.tolist() for row in whole[:1]] + [[None, *row[1:].tolist()] for row in whole[1:]]
    of_numpy = [whole[0]] + [[None, *row[1:]] for row in whole[1:]]  # np.int64 beside None
    as_floats = [whole[0]] + [np.where(np.arange(20) == 0, np.nan, row) for row in whole[1:]]
    gaps_everywhere = FrameLabeler(hidden_size=4, max_epochs=1).fit(x[1:], as_floats[1:])
    assert gaps_everywhere.classes_.dtype.kind == "i"
    models = [FrameLabeler(hidden_size=4, max_epochs=3, random_state=0).fit(x, y) for y in (plain, of_numpy, as_floats)]
    for model, y in zip(models, (plain, of_numpy, as_floats), strict=True):
        assert model.classes_.tolist() == [0, 1]
        assert all((a == b).all() for a, b in zip(model.predict_proba(x), models[0].predict_proba(x), strict=True))
        assert model.score(x, y) == models[0].score(x, plain)
    words = [np.where(row > 0, "high", "low") for row in whole]
    some = [words[0]] + [[None, *row[1:]] for row in words[1:]]
    assert FrameLabeler(hidden_size=4, max_epochs=1).fit(x, some).classes_.tolist() == ["high", "low"]


@pytest.mark.parametrize("kind", [SequenceClassifier, FrameLabeler, SequenceRegressor])
def test_numbers_that_no_answer_would_come_of_are_refused_with_their_place(kind: Any) -> None:
    x = np.random.RandomState(0).randn(20, 2, 10) * 1e-10
    y = {FrameLabeler: np.where(x[:, 0] > 0, 1, 0), SequenceRegressor: x[:, 0, 0]}.get(kind, np.arange(20) % 2)
    model = kind(hidden_size=4, max_epochs=1, random_state=0).fit(x, y)
    far = x[:3].copy()
    far[2, 1, 7] = 1e25
    message = r"expected numbers less than 1e\+30 deviations from the mean of what was learnt"
    place = r"got 1e\+25 in case 2, channel 1, step 7"
    with pytest.raises(ValueError, match=f"{message}, {place}"):
        model.predict(far)
    stream, other = model.stream(), model.stream()
    rows = far[2].T
    answers = [stream(row) for row in rows[:7]]
    with pytest.raises(ValueError, match=message):
        stream(rows[7])
    assert stream.rows == 7
    assert [repr(other(row)) for row in rows[:7]] == [repr(answer) for answer in answers]
    assert repr(stream(rows[8])) == repr(other(rows[8]))  # the state is as it was


def test_a_case_may_be_a_list_of_channels_of_any_kind() -> None:
    rng = np.random.RandomState(0)
    cases = [rng.randn(2, 9), rng.randn(2, 6), rng.randn(2, 9), rng.randn(2, 6)]
    y = [0, 1, 0, 1]

    def answers(x: Any) -> Any:
        return SequenceClassifier(hidden_size=4, max_epochs=2, random_state=0).fit(x, y).predict_proba(x)

    expected = answers(cases)
    for x in (
        [list(case) for case in cases],
        [tuple(map(tuple, case)) for case in cases],
        [case.tolist() for case in cases],
    ):
        assert (answers(x) == expected).all()
    equal = [case[:, :6] for case in cases]
    assert (answers([list(case) for case in equal]) == answers(np.stack(equal))).all()


def test_a_case_without_a_group_is_named() -> None:
    x, groups = np.random.RandomState(0).randn(6, 5), ["a", "b", None, "a", "b", "a"]
    with pytest.raises(ValueError, match="expected a group for every case, got none for case 2"):
        SequenceClassifier(hidden_size=4, max_epochs=1, early_stopping=True).fit(x, [0, 1] * 3, groups=groups)


@pytest.mark.parametrize("gap", [float("nan"), np.float64("nan"), None, pd.NA])
@pytest.mark.parametrize("classes", [("high", "low"), (True, False), (1, 0)])
@pytest.mark.parametrize("kind", [list, tuple])
def test_gaps_in_lists_are_no_class_and_not_wrong(gap: Any, classes: tuple[Any, Any], kind: type) -> None:
    full = [[classes[0] if value > 0 else classes[1] for value in case] for case in X[:, 0]]
    y = [kind([gap, *row[1:]]) for row in full]
    model = FrameLabeler(hidden_size=2, max_epochs=1, random_state=0).fit(X, y)
    assert model.classes_.tolist() == sorted(classes)
    assert [type(label) for label in model.classes_.tolist()] == [type(classes[0])] * 2
    rights = [(np.array(row[1:]) == own[1:]).mean() for row, own in zip(model.predict(X), full, strict=True)]
    assert model.score(X, y) == pytest.approx(np.mean(rights))


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (["a", float("nan")], "expected a label for every case, got none for case 1"),
        (("a", None), "expected a label for every case, got none for case 1"),
        ([True, float("nan")], "expected a label for every case, got none for case 1"),
        ([1, float("nan")], "y contains NaN"),
        (["a", 1], "SequenceClassifier: expected labels of one type, got int and str"),
        ([np.str_("a"), np.int64(1)], "SequenceClassifier: expected labels of one type, got int and str"),
        (np.array(["a", 1], dtype=object), "SequenceClassifier: expected labels of one type, got int and str"),
        ([True, 1], "SequenceClassifier: expected labels of one type, got bool and int"),
    ],
)
def test_labels_of_cases_that_are_none_or_mixed_are_named(labels: Any, message: str) -> None:
    y = np.tile(labels, 20) if isinstance(labels, np.ndarray) else labels * 20
    with pytest.raises(ValueError, match=message):
        SequenceClassifier(max_epochs=1).fit(X, y)
    model = SequenceClassifier(hidden_size=2, max_epochs=1).fit(X, Y)
    with pytest.raises(ValueError, match=message):
        model.score(X, y)


def test_labels_of_steps_in_a_list_of_mixed_types_are_refused() -> None:
    with pytest.raises(ValueError, match="FrameLabeler: expected labels of one type, got int and str"):
        FrameLabeler().fit(X, [["a", 1] * 7 + ["a"]] * 40)
