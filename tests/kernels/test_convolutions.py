"""Random convolutions, compiled and composed, against a plain evaluation of their definition."""

from itertools import combinations

import pytest
import torch
from torch import Tensor

from mistrnn.kernels.cpu import convolutions as module
from mistrnn.kernels.cpu import library
from mistrnn.kernels.cpu.convolutions import Convolutions, convolved, exceeding, positive_counts
from mistrnn.models.random_convolutions import _random_channels

needs_library = pytest.mark.skipif(library.loaded is None, reason="no compiled code here")


def problem(steps: int, batch: int, channels: int, seed: int = 0) -> tuple[Tensor, Convolutions]:
    generator = torch.Generator().manual_seed(seed)
    dilations, each = [1, 3, 4], [2, 1, 3]
    table = _random_channels(3, channels, generator)
    thresholds = torch.randn(84 * sum(each), generator=generator).mul(3000).round()
    found = Convolutions(dilations, each, table, thresholds)
    seen = torch.randn(batch, channels, found.memory + steps, generator=generator).mul(1024).round()
    return seen, found


def by_definition(seen: Tensor, one: Convolutions, lengths: list[int]) -> Tensor:
    """Return the counts [B, F], in whole numbers of Python."""
    rows = []
    for b, length in enumerate(lengths):
        counts, place = [], 0
        for d, (dilation, each) in enumerate(zip(one.dilations, one.thresholds_each, strict=True)):
            for k, heavy in enumerate(combinations(range(9), 3)):
                channels = one.channels[d, k, 1 : 1 + int(one.channels[d, k, 0])].tolist()
                y = [
                    sum(
                        (2 if j in heavy else -1) * int(seen[b, c, one.memory + t - (8 - j) * dilation])
                        for j in range(9)
                        for c in channels
                    )
                    for t in range(length)
                ]
                for threshold in one.thresholds[place : place + each].tolist():
                    counts.append(sum(value > threshold for value in y))
                place += each
        rows.append(counts)
    return torch.tensor(rows, dtype=torch.float64)


@pytest.mark.parametrize("composed", [pytest.param(False, marks=needs_library), True])
def test_counts_are_those_of_the_definition(composed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if composed:
        monkeypatch.setattr(module, "_composed", lambda *tensors: True)
    seen, one = problem(6, 2, 3)
    hits = torch.zeros(2, len(one.thresholds), dtype=torch.float64)
    found = positive_counts(seen, one, torch.tensor([6, 4]), hits)
    assert torch.equal(found, by_definition(seen, one, [6, 4]))
    assert not hits.any()  # the caller's stay as they are


@needs_library
@pytest.mark.parametrize("level", range(3))
@pytest.mark.parametrize(("steps", "batch", "channels"), [(1, 1, 1), (17, 3, 2), (2500, 2, 1), (40, 5, 12)])
def test_compiled_counts_equal_composed_ones(
    level: int, steps: int, batch: int, channels: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert library.loaded is not None
    if level > library.loaded.level:
        pytest.skip("this machine lacks the instruction set")
    monkeypatch.setattr(library.loaded, "level", level)
    seen, one = problem(steps, batch, channels)
    lengths = torch.arange(batch) % steps + 1
    start = torch.rand(batch, len(one.thresholds), dtype=torch.float64).round()
    found = positive_counts(seen, one, lengths, start)
    assert torch.equal(found, start + torch.cat([above.sum(-1) for above in exceeding(seen, one, lengths)], 1))
    assert found.sum() > start.sum()


@needs_library
def test_threads_count_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WORTH_A_THREAD", 1)
    seen, one = problem(50, 7, 2)
    hits = torch.zeros(7, len(one.thresholds), dtype=torch.float64)
    before = torch.get_num_threads()
    try:
        found = []
        for threads in (1, 3):
            torch.set_num_threads(threads)
            found.append(positive_counts(seen, one, None, hits))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(*found)


@needs_library
def test_strided_input_counts_the_same() -> None:
    seen, one = problem(20, 4, 2)
    hits = torch.zeros(4, len(one.thresholds), dtype=torch.float64)
    strided = seen.permute(1, 2, 0).contiguous().permute(2, 0, 1)
    assert torch.equal(positive_counts(strided, one, None, hits), positive_counts(seen, one, None, hits))


def test_the_largest_inputs_are_summed_exactly() -> None:
    """Nine channels at the limit of what models/random_convolutions.py lets through."""
    _, one = problem(1, 1, 9)
    table = torch.cat([torch.full((3, 84, 1), 9), torch.arange(9).expand(3, 84, 9)], 2)
    one = one._replace(channels=table)
    seen = torch.full((1, 9, one.memory + 1), 65535.0)
    seen[..., ::2] = -65533.0
    for number in range(3):
        exact = convolved(seen.double(), one, number)
        assert torch.equal(convolved(seen, one, number).double(), exact)


@needs_library
@pytest.mark.parametrize("wrong", [-1, 2, 10**9])
def test_kernels_that_would_read_other_memory_are_refused(wrong: int) -> None:
    seen, one = problem(5, 1, 2)
    one.channels[0, 3, 1] = wrong
    with pytest.raises(ValueError, match="1 to 9 of 2 channels"):
        positive_counts(seen, one, None, torch.zeros(1, len(one.thresholds), dtype=torch.float64))
