"""The copy problem: what is its own."""

import pytest
import torch

from mistrnn.tasks import make_task


def test_sequence_is_symbols_blanks_go_blanks_and_target_is_late() -> None:
    task = make_task("copy", {"delay": 20})
    inputs, targets = task.batch("val", torch.tensor([7]))
    steps, wanted = inputs.argmax(-1)[:, 0].tolist(), targets[:, 0].tolist()
    symbols = steps[:2]
    assert all(0 <= symbol <= 9 for symbol in symbols)
    assert steps == [*symbols, *[10] * 19, 11, 10, 10]  # 19 blanks, go, 2 blanks
    assert wanted == [*[10] * 22, *symbols]
    assert (inputs.sum(-1) == 1).all()


@pytest.mark.parametrize("delay", [10, 50, 400])
def test_length_and_trivial_error_follow_from_the_delay(delay: int) -> None:
    task = make_task("copy", {"delay": delay})
    assert task.steps == delay * 12 // 10
    assert task.trivial_error == pytest.approx(1 / 12)
    assert task.sizes == {"train": 100_000, "val": 1_000, "test": 1_000}


@pytest.mark.parametrize("delay", [0, -10, 55])
def test_delay_that_is_no_positive_multiple_of_ten_is_refused(delay: int) -> None:
    with pytest.raises(
        ValueError,
        match=f"^copy: expected delay to be a positive multiple of 10, because delay / 10 symbols are copied, got {delay}.$",
    ):
        make_task("copy", {"delay": delay})
