"""Networks as stacked trials: trial k in a stack is trial k alone, whatever happens to the others."""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import torch

from mistrnn.models import SequenceNetwork, Standardisation
from mistrnn.training.examples import Augmentation, Examples, Frames
from mistrnn.training.fitting import WARM_UP, Course, NetworkTrials, Recipe, count_pieces, schedule, steps_per_epoch
from mistrnn.training.stacked import part_of
from tests.training.small_search import ARGUMENTS, CHANNELS, cases

CPU = torch.device("cpu")
COURSE = Course(steps=6, batch_size=4, validate_every=3, seed=5)
RECIPES = [
    Recipe(learning_rate=0.02, augmentation=Augmentation(0.1, 0.2, 0.2, 0.3, 0.2)),
    Recipe(learning_rate=0.005, weight_decay=1.0, dropout=0.4, label_smoothing=0.0, augmentation=Augmentation.off()),
    Recipe(learning_rate=0.05, dropout=0.0, augmentation=Augmentation(crop=0.5), initialization="normal"),
]
TRIALS = [4, 0, 7]


MEAN, SCALE = torch.full((CHANNELS,), 0.5, dtype=torch.float64), torch.full((CHANNELS,), 2.0, dtype=torch.float64)


def frames(examples: Examples) -> Frames:
    return Frames(examples, Standardisation(MEAN, SCALE), CPU)


def new_network(**arguments: Any) -> SequenceNetwork:
    network = SequenceNetwork(**arguments)
    network.standardisation = Standardisation(MEAN, SCALE)
    return network


def trials(
    chosen: Sequence[int] = (0, 1, 2),
    *,
    course: Course = COURSE,
    recipes: Sequence[Recipe] = RECIPES,
    examples: Examples | None = None,
    held: bool = True,
    **arguments: Any,
) -> NetworkTrials:
    own = {**ARGUMENTS, "dtype": torch.float64, **arguments}
    every_step = own.get("pooling", "mean") is None
    learn = examples or cases(every_step=every_step)
    compare = frames(cases(7, seed=1, every_step=every_step)) if held else None
    return NetworkTrials(
        partial(new_network, **own),
        [TRIALS[k] for k in chosen],
        [recipes[k] for k in chosen],
        course,
        frames(learn),
        compare,
        CPU,
    )


def trained(run: NetworkTrials) -> NetworkTrials:
    while not run.done:
        run.advance()
    return run


def close(found: Any, expected: Any) -> None:
    # Biases before a norm have no gradient but rounding, which AdamW scales up: in float64 it stays below its epsilon.
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-7)


def assert_same_trial(stack: NetworkTrials, record: int, alone: NetworkTrials, other: int = 0) -> None:
    for name, value in alone.best.items():
        close(stack.best[name][record], value[other])
    close(torch.tensor(stack.records[record].curve), torch.tensor(alone.records[other].curve))


@pytest.mark.parametrize("layer", ["mist", "lstm", "clockwork"])
def test_trial_in_a_stack_is_the_trial_alone(layer: str) -> None:
    own = {"layer": layer, "layer_options": None if layer != "clockwork" else {"periods": 2}}
    stack = trained(trials(**own))
    for k in range(3):
        assert_same_trial(stack, k, trained(trials([k], **own)))


@pytest.mark.parametrize("own", [{"pooling": None}, {"bidirectional": True}], ids=str)
def test_trial_of_another_shape_in_a_stack_is_the_trial_alone(own: dict[str, Any]) -> None:
    stack = trained(trials(**own))
    for k in range(3):
        assert_same_trial(stack, k, trained(trials([k], **own)))


@pytest.mark.parametrize("batch_size", [4, 40], ids=["several batches", "one batch of all"])
def test_trial_in_a_stack_trains_on_the_pieces_of_the_trial_alone(batch_size: int) -> None:
    course = Course(steps=6, batch_size=batch_size, validate_every=3, piece_length=5, seed=5)
    stack = trained(trials(course=course, pooling=None))
    for k in range(3):
        assert_same_trial(stack, k, trained(trials([k], course=course, pooling=None)))


def test_stack_draws_the_batches_and_masks_of_each_trial_alone() -> None:
    stack, alone = trials(), [trials([k]) for k in range(3)]
    for step in range(9):  # into the third epoch
        for run in (stack, *alone):
            run.step = step
        batch, masks = stack._next_batch()
        for k, run in enumerate(alone):
            own, own_masks = run._next_batch()
            steps = own.inputs.size(1)  # alone it may be padded less
            assert torch.equal(batch.inputs[k, :steps], own.inputs[0])
            assert not batch.inputs[k, steps:].any()
            assert torch.equal(batch.targets[k], own.targets[0])
            for mask, own_mask in zip(masks, own_masks, strict=True):
                assert torch.equal(mask[k], own_mask[0])


def test_epoch_goes_once_through_all_cases_in_another_order_each_time() -> None:
    run = trials([1])  # without augmentation
    seen: list[list[int]] = []
    for step in range(2 * 4):
        run.step = step
        run._next_batch()
        if step % 4 == 0:
            seen.append(run._orders[0][2].tolist())
    assert [sorted(order) for order in seen] == [list(range(14))] * 2
    assert seen[0] != seen[1]


def test_trial_that_diverges_disturbs_no_other() -> None:
    broken = [RECIPES[0], Recipe(learning_rate=1e30), RECIPES[2]]
    stack = trained(trials(recipes=broken))
    assert [record.status for record in stack.records] == ["ok", "diverged", "ok"]
    assert stack.records[1].diverged_step is not None
    assert stack.records[1].best_step is None
    for k in (0, 2):
        assert_same_trial(stack, k, trained(trials([k])))
    found = stack.measured()
    assert found[1]["val_error"] is None
    assert found[0]["val_error"] == stack.records[0].best_error


def test_retired_trial_keeps_its_best_and_disturbs_no_other() -> None:
    stack = trials()
    while not stack.advance():
        continue
    before = {name: value[1].clone() for name, value in stack.best.items()}
    stack.retire([TRIALS[1]])
    trained(stack)
    assert stack.records[1].stopped_step == 3
    for name, value in before.items():
        assert torch.equal(stack.best[name][1], value)
    for k in (0, 2):
        assert_same_trial(stack, k, trained(trials([k])))


@pytest.mark.parametrize("cut", [1, 3, 4])
def test_stack_goes_on_from_a_snapshot_bit_for_bit(cut: int) -> None:
    broken = [RECIPES[0], Recipe(learning_rate=1e30), RECIPES[2]]
    whole, first = trials(recipes=broken), trials(recipes=broken)
    while whole.step < cut:
        whole.advance()
        first.advance()
    again = trials(recipes=broken)
    again.restore(*first.snapshot())
    for run in (whole, again):
        trained(run)
    for name, value in whole.best.items():
        assert torch.equal(again.best[name], value)
    assert again.records == whole.records


def test_part_of_a_snapshot_goes_on_as_the_whole() -> None:
    stack = trials()
    for _ in range(4):
        stack.advance()
    part = trials([0, 2])
    part.restore(*part_of(*stack.snapshot(), [TRIALS[0], TRIALS[2]]))
    trained(part), trained(stack)
    assert_same_trial(stack, 0, part, 0)
    assert_same_trial(stack, 2, part, 1)


def test_network_of_a_record_computes_what_was_validated() -> None:
    run = trained(trials(course=Course(steps=4, batch_size=4, validate_every=4)))
    compare_on = cases(7, seed=1)
    for k, record in enumerate(run.records):
        network = run.network_of(k)
        assert not network.training
        assert network.dropout == RECIPES[k].dropout
        losses = []
        for case, target in zip(compare_on.cases, compare_on.targets, strict=True):
            scores, _ = network(torch.from_numpy(case).unsqueeze(1))
            losses.append(-scores[0].log_softmax(-1)[target].item())
        assert math.fsum(losses) / len(losses) == pytest.approx(record.best_error, rel=1e-5)
    assert run.best_losses(frames(compare_on)) == pytest.approx([record.best_error for record in run.records])
    assert [run.network_of(k).initialization for k in range(3)] == ["open", "open", "normal"]


def test_first_loss_is_that_of_the_smoothed_labels() -> None:
    recipe = Recipe(dropout=0.0, label_smoothing=0.3, augmentation=Augmentation.off())
    run = trials([0], recipes=[recipe] * 3)
    network, (batch, _) = run.network_of(0).train(), run._next_batch()
    _, _, losses = run._gradients_of_all()
    assert batch.lengths is not None
    scores, _ = network(batch.inputs[0] * 2.0 + 0.5, lengths=batch.lengths[0])  # as it was before it was standardised
    logs = scores.log_softmax(-1)
    expected = -0.7 * logs.gather(-1, batch.targets[0].unsqueeze(-1)).squeeze(-1) - 0.3 * logs.mean(-1)
    close(losses[0], expected.mean())


def test_numbers_are_trained_by_squared_errors() -> None:
    examples = cases()
    numbers = Examples(
        examples.cases, [torch.tensor([float(t), 1.0, -1.0]) for t in examples.targets], examples.weights, [1.0] * 14
    )
    course = Course(steps=30, batch_size=14, validate_every=10, loss="numbers")
    run = trained(trials(course=course, examples=numbers, held=False))
    for record, row in zip(run.records, run.measured(), strict=True):
        errors = [error for *_, error in record.curve]
        assert errors[-1] < errors[0]
        assert row["val_error"] is None, "there were no cases to validate on"
    found, expected = run.best_losses(frames(numbers)), []
    for k in range(3):
        network, total = run.network_of(k), 0.0
        for case, target in zip(numbers.cases, numbers.targets, strict=True):
            total += (network(torch.from_numpy(case).unsqueeze(1))[0][0] - target).square().mean().item()
        expected.append(total / 14)
    assert found == pytest.approx(expected, rel=1e-4)


def test_steps_without_a_label_do_not_count() -> None:
    plain, poisoned = cases(every_step=True), cases(every_step=True)
    weights = [torch.ones(len(case)) for case in plain.cases]
    for own, target in zip(weights, poisoned.targets, strict=True):
        own[2:5] = 0
        target[2:5] = 0
    runs = [
        trained(trials([1], examples=Examples(one.cases, one.targets, weights, one.case_weights), pooling=None))
        for one in (plain, poisoned)
    ]
    assert_same_trial(runs[0], 0, runs[1])


def test_only_matrices_decay() -> None:
    run = trials([1])
    decay = run.optimizer.weight_decay
    assert isinstance(decay, dict)
    kinds = {name: value.item() for name, value in decay.items()}
    assert {name for name, rate in kinds.items() if rate == 0} == {
        name for name, value in run.parameters.items() if value.dim() == 2
    }
    assert kinds["head.weight"] == RECIPES[1].weight_decay


def test_best_of_the_validations_is_kept_on_request() -> None:
    course = Course(steps=8, batch_size=4, validate_every=1, keep="best", seed=5)
    run = trained(trials(course=course, recipes=[Recipe(learning_rate=0.5)] * 3))
    for record in run.records:
        assert record.best_error == min(error for *_, error in record.curve)


def test_learning_rate_warms_up_and_falls_to_zero() -> None:
    factors = [schedule(step, 200) for step in range(1, 201)]
    peak = round(200 * WARM_UP)
    assert factors[:peak] == sorted(factors[:peak])
    assert factors[peak - 1] == 1.0
    assert factors[peak:] == sorted(factors[peak:], reverse=True)
    assert factors[-1] == 0.0
    assert schedule(1, 1) == 1.0


def test_pieces_and_minibatches_are_counted() -> None:
    assert (count_pieces([9, 10, 11]), count_pieces([9, 10, 11], 5)) == (3, 2 + 2 + 3)
    assert steps_per_epoch([9, 10, 11], 2) == 2
    assert steps_per_epoch([9, 10, 11], 2, 5) == 4
    generator = torch.Generator().manual_seed(0)
    examples = frames(cases(every_step=True))
    for _ in range(20):
        begins, lengths = examples.pieces(5, generator)
        assert len(begins) >= count_pieces(examples.lengths.tolist(), 5)
        assert lengths.sum() == examples.lengths.sum()
        assert int(lengths.max()) <= 5
