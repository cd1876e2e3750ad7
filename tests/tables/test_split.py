"""Who is held out."""

from collections import Counter

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from mistrnn.errors import UsageError
from mistrnn.tables import hold_out


@hypothesis.given(
    st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("uvwxyz")), min_size=2, max_size=40),
    st.floats(0.05, 0.6),
    st.integers(0, 5),
    st.booleans(),
)
def test_no_group_is_on_both_sides_and_every_class_can_be_learnt(
    cases: list[tuple[str, str]], share: float, seed: int, grouped: bool
) -> None:
    contents = [Counter({label: 1}) for label, _ in cases]
    groups = [group for _, group in cases] if grouped else None
    try:
        held = hold_out(share, contents, groups, seed)  # type: ignore[arg-type]
    except UsageError:
        return
    assert held.any()
    assert not held.all()
    if groups is not None:
        assert not {g for g, h in zip(groups, held, strict=True) if h} & {
            g for g, h in zip(groups, held, strict=True) if not h
        }
    assert {label for (label, _), h in zip(cases, held, strict=True) if not h} == {label for label, _ in cases}
    np.testing.assert_array_equal(held, hold_out(share, contents, groups, seed))  # type: ignore[arg-type]


def test_classes_are_held_out_in_proportion() -> None:
    contents = [Counter({label: 1}) for label in "a" * 50 + "b" * 10]
    held = hold_out(0.2, contents, None, seed=3)  # type: ignore[arg-type]
    assert (held[:50].sum(), held[50:].sum()) == (10, 2)
    assert (held != hold_out(0.2, contents, None, seed=4)).any()  # type: ignore[arg-type]


def test_two_groups_are_one_on_each_side() -> None:
    contents = [Counter({label: 1}) for label in "abab"]
    held = hold_out(0.2, contents, ["u", "u", "v", "v"], seed=0)  # type: ignore[arg-type]
    assert held.tolist() in ([True, True, False, False], [False, False, True, True])


def test_groups_that_each_have_a_class_of_their_own_cannot_be_split() -> None:
    contents = [Counter({label: 1}) for label in "aabb"]
    with pytest.raises(UsageError, match="each group has a class that no other group has"):
        hold_out(0.2, contents, ["u", "u", "v", "v"], seed=0)  # type: ignore[arg-type]


def test_one_group_alone_cannot_be_split() -> None:
    contents = [Counter({"": 1}) for _ in range(4)]
    with pytest.raises(UsageError, match="expected several groups, because whole groups are held out, got one, 'u'"):
        hold_out(0.2, contents, ["u"] * 4, seed=0)  # type: ignore[arg-type]
