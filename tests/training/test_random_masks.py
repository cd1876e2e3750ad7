"""Random masks: the generator against its definition, and masks that follow from key and place alone."""

import pytest
import torch

from mistrnn.layers.masks import MaskDraw
from mistrnn.training import random_masks
from mistrnn.training.random_masks import TrialMasks, mixed

WORD = 2**64
KEYS = torch.tensor([[5, -9], [2**62, 1]])


def reference(state: int, count: int) -> list[int]:
    """SplitMix64 as published, in whole numbers."""
    found = []
    for _ in range(count):
        state = (state + 0x9E3779B97F4A7C15) % WORD
        z = state
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % WORD
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB % WORD
        found.append(z ^ (z >> 31))
    return found


def masks(*draws: MaskDraw, places: list[list[int]] | None = None, batch: int = 3) -> TrialMasks:
    rows = torch.tensor(places) if places else torch.arange(batch).expand(2, -1)
    return TrialMasks(draws, KEYS[:, : len(draws)], rows, batch)


@pytest.mark.parametrize("state", [0, 1234567, 2**63 - 1, -1, -(2**63)])
def test_words_are_those_of_splitmix64(state: int) -> None:
    found = [word % WORD for word in mixed(torch.arange(5), torch.tensor([state])).tolist()]
    assert found == reference(state % WORD, 5)


@pytest.mark.parametrize("probability", [0.0, 1e-6, 0.05, 0.5, 0.93, 1.0])
def test_masks_are_true_with_their_probability(probability: float) -> None:
    (mask,) = masks(MaskDraw(probability, 501, every_step=True), batch=20).piece(0, 50)
    assert mask.shape == (2, 50, 20, 501)
    count = mask[0].numel()
    deviation = (probability * (1 - probability) / count) ** 0.5
    for trial in mask:
        assert trial.double().mean().item() == pytest.approx(probability, abs=5 * deviation + 2**-16)


def test_masks_are_independent_of_each_other() -> None:
    draw = MaskDraw(0.5, 64, every_step=True)
    every = masks(draw, draw, batch=20).piece(0, 40)
    flat = torch.stack([mask.flatten(1) for mask in every]).flatten(0, 1).double()  # [draw and trial, numbers]
    shifted = torch.cat([flat, flat.roll(1, 1), flat.roll(64, 1), flat.roll(20 * 64, 1)])
    correlation = torch.corrcoef(shifted) - torch.eye(len(shifted))
    assert correlation.abs().max() < 5 / flat.size(1) ** 0.5


@pytest.mark.parametrize("words_at_once", [1, 7, 100])
def test_pieces_and_shares_of_a_batch_have_the_masks_of_the_whole(
    words_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    draws = MaskDraw(0.4, 10, every_step=True), MaskDraw(0.4, 6, every_step=False)
    at_every_step, for_all = masks(*draws).piece(0, 9)
    assert at_every_step.shape == (2, 9, 3, 10)
    assert for_all.shape == (2, 3, 6)
    monkeypatch.setitem(random_masks.WORDS_AT_ONCE, "cpu", words_at_once)
    piece, again = masks(*draws).piece(4, 7)
    assert torch.equal(piece, at_every_step[:, 4:7])
    assert torch.equal(again, for_all)
    share, own = masks(*draws, places=[[2, 0], [1, 2]]).piece(0, 9)
    assert torch.equal(share[0], at_every_step[0][:, [2, 0]])
    assert torch.equal(own[1], for_all[1][[1, 2]])


def test_empty_share_has_empty_masks() -> None:
    rows = torch.zeros(2, 0, dtype=torch.int64)
    (mask,) = TrialMasks([MaskDraw(0.4, 10, every_step=True)], KEYS, rows, 3).piece(0, 9)
    assert mask.shape == (2, 9, 0, 10)


@pytest.mark.gpu
def test_masks_on_the_gpu_are_those_on_the_cpu() -> None:
    own = masks(MaskDraw(0.4, 10, every_step=True))
    there = TrialMasks(own.draws, own.keys.cuda(), own.places.cuda(), own.batch)
    assert torch.equal(there.piece(0, 9)[0].cpu(), own.piece(0, 9)[0])
