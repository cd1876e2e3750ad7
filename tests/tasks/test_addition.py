"""The addition problem: what is its own."""

import pytest
import torch

from mistrnn.tasks import make_task


def test_one_value_in_each_half_is_marked_and_their_sum_is_the_target() -> None:
    task = make_task("addition", {"length": 30})
    inputs, targets = task.batch("train", torch.arange(200), torch.float64)
    values, markers = inputs.unbind(-1)  # [T, B]
    assert (markers[:15].sum(0) == 1).all()
    assert (markers[15:].sum(0) == 1).all()
    torch.testing.assert_close((values * markers).sum(0), targets)
    assert values.min() >= 0
    assert values.max() < 1
    assert markers.argmax(0).unique().numel() == 15  # every place of the first half occurs


@pytest.mark.parametrize("length", [0, -2, 7])
def test_length_that_has_no_two_halves_is_refused(length: int) -> None:
    with pytest.raises(ValueError, match=f"^addition: expected length to be a positive even number, .* got {length}.$"):
        make_task("addition", {"length": length})
