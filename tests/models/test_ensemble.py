"""Several networks that answer as one: the mean of probabilities or of numbers, with the interface of one."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from mistrnn.models import Ensemble, SequenceNetwork
from mistrnn.models.ensemble import combined
from tests.models.test_network import CHANNELS, SCORES, close, inputs, new


def members() -> list[SequenceNetwork]:
    return [new(), new("lstm", num_layers=1, hidden_size=4), new("clockwork", pooling="last", kernel_size=1)]


def test_classes_are_the_mean_of_probabilities() -> None:
    networks, x, lengths = members(), inputs(), torch.tensor([9, 4, 1, 7, 2])
    scores, _ = Ensemble(networks)(x, lengths=lengths)
    expected = torch.stack([network(x, lengths=lengths)[0].softmax(-1) for network in networks]).mean(0)
    close(scores.exp(), expected)


def test_numbers_are_the_mean_of_numbers() -> None:
    networks, x = members(), inputs()
    close(Ensemble(networks, "numbers")(x)[0], torch.stack([network(x)[0] for network in networks]).mean(0))


@pytest.mark.parametrize("answer", ["classes", "numbers"])
def test_one_member_answers_as_it_is(answer: Any) -> None:
    network = new()
    assert torch.equal(Ensemble([network], answer)(inputs())[0], network(inputs())[0])


def test_improbable_classes_do_not_overflow() -> None:
    far = torch.tensor([[1e4, 0.0], [0.0, 1e4]])
    found = combined([far, far], "classes", [0.5, 0.5])
    assert torch.isfinite(found).all()
    torch.testing.assert_close(found, far.log_softmax(-1))
    both = combined([far, far.flip(0)], "classes", [0.5, 0.5])
    torch.testing.assert_close(both, torch.full((2, 2), math.log(0.5)))


@pytest.mark.parametrize("every_step", [False, True])
def test_chunks_with_the_state_handed_on_are_the_whole(every_step: bool) -> None:
    pooling = None if every_step else "mean+max"
    ensemble = Ensemble([new(pooling=pooling), new("gru", pooling=pooling, hidden_size=4)])
    x = inputs(12)
    whole, expected = ensemble(x)
    assert len(expected) == len(ensemble.state_names)
    assert [part.shape for part in expected] == [part.shape for part in ensemble.initial_state(5)]
    state: Any = None
    pieces: list[Tensor] = []
    for begin, end in ((0, 2), (2, 3), (3, 12)):
        scores, state = ensemble(x[begin:end], state)
        pieces.append(scores)
    close(torch.cat(pieces) if every_step else pieces[-1], whole)
    for part, own in zip(state, expected, strict=True):
        close(part, own)


def test_scores_at_every_step_are_those_of_the_sequence_up_to_there() -> None:
    ensemble = Ensemble(members()[:2])
    scores, state = ensemble(inputs(), every_step=True, keep_state=False)
    assert state == ()
    for step in range(9):
        close(scores[step], ensemble(inputs()[: step + 1])[0])


def test_ensemble_has_the_attributes_of_its_members() -> None:
    networks = members()
    ensemble = Ensemble(networks)
    assert ensemble.networks == networks
    assert (ensemble.input_size, ensemble.output_size) == (CHANNELS, SCORES)
    assert (ensemble.every_step, ensemble.bidirectional) == (False, False)
    assert ensemble.parameter_count() == sum(network.parameter_count() for network in networks)
    assert torch.equal(ensemble.standardisation.mean, networks[0].mean)
    assert torch.equal(ensemble.standardisation.scale, networks[0].scale)
    assert ensemble.state_names[0] == "member0_block0_conv"
    assert len(set(ensemble.state_names)) == len(ensemble.state_names)


def test_members_that_do_not_belong_together_are_refused() -> None:
    with pytest.raises(ValueError, match="Ensemble: expected at least one member, got none"):
        Ensemble([])
    for other, name in (
        (SequenceNetwork(CHANNELS + 1, SCORES), "input_size"),
        (SequenceNetwork(CHANNELS, SCORES + 1), "output_size"),
        (new(pooling=None), "every_step"),
        (new(bidirectional=True), "bidirectional"),
    ):
        with pytest.raises(ValueError, match=f"Ensemble: expected members of the same {name}, got "):
            Ensemble([new(), other])
