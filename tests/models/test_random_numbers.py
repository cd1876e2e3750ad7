"""Zoneout and recurrent dropout inside a network: masks from given numbers, and trials that do not depend on each other."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from mistrnn.layers import LAYERS
from mistrnn.models import SequenceNetwork, Standardisation
from mistrnn.training.examples import Examples, Frames
from mistrnn.training.fitting import Course, NetworkTrials, Recipe

MASKS = {"zoneout": 0.3, "recurrent_dropout": 0.2}


def network(layer: str, **options: Any) -> SequenceNetwork:
    return SequenceNetwork(2, 3, layer=layer, hidden_size=8, kernel_size=3, dropout=0.0, layer_options=MASKS, **options)


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("layer", LAYERS)
def test_masks_follow_the_numbers_that_are_given(layer: str, bidirectional: bool) -> None:
    own, x = network(layer, bidirectional=bidirectional), torch.randn(9, 4, 2)
    numbers = [torch.rand(shape) for shape in own.uniform_shapes(9, 4)]
    assert len(numbers) == 2 * (2 if bidirectional else 1) * (1 + len(own.recurrent_layers()[0].cell.state))
    first, again = (own(x, layer_numbers=numbers)[0] for _ in range(2))
    assert torch.equal(first, again)
    assert not torch.equal(first, own(x, layer_numbers=[1 - number for number in numbers])[0])
    assert not torch.equal(own(x)[0], own(x)[0])  # drawn on the spot
    assert own.eval().uniform_shapes(9, 4)
    assert torch.equal(own(x)[0], own(x)[0])


@pytest.mark.parametrize("layer", LAYERS)
def test_a_trial_with_masks_in_a_stack_equals_the_trial_alone(layer: str) -> None:
    random, place = np.random.RandomState(0), torch.device("cpu")
    cases = [random.randn(6 + k % 9, 2) for k in range(24)]
    targets = [torch.tensor(k % 3) for k in range(24)]
    examples = Examples(cases, targets, [torch.tensor(1.0)] * 24, [1.0] * 24)
    zeros, ones = torch.zeros(2, dtype=torch.float64), torch.ones(2, dtype=torch.float64)
    frames = Frames(examples, Standardisation(zeros, ones), place)

    def gradients(trials: list[int]) -> Any:
        course = Course(steps=4, batch_size=4, validate_every=2)
        make, recipes = partial(network, layer), [Recipe()] * len(trials)
        return NetworkTrials(make, trials, recipes, course, frames, None, place)._gradients_of_all()

    stacked, alone = gradients([0, 1, 2]), gradients([1])
    for name, gradient in alone[0].items():
        torch.testing.assert_close(stacked[0][name][1], gradient[0], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(stacked[2][1], alone[2][0])
