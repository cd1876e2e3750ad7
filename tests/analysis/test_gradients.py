"""Gradient norms against explicit products of Jacobians, for our layers, torch.nn's and a user's own."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import jacrev
from torch.utils.checkpoint import checkpoint

from mistrnn.analysis import gradient_norms, reach
from mistrnn.layers import MIST, RNN, RecurrentLayer
from mistrnn.layers.state import state_from_tensors, state_tensors
from tests.analysis.modules import Unrolled, Wrapped
from tests.layers.cases import REGULARISERS, every_layer, seeded, small

STEPS, BATCH = 12, 3


def by_jacobians(layer: RecurrentLayer, input: Tensor, weights: Tensor) -> dict[str, Tensor]:
    """The norms from the Jacobian of the whole state at each step, multiplied one by one: no probes, no backward pass.

    The layer takes one step at a time with its state handed on, so that all of the past is in the state, newest last.
    """
    count = len(layer.cell.state)
    found: dict[str, list[Tensor]] = {name: [] for name in layer.cell.state}
    for b in range(input.size(1)):
        states: list[tuple[Tensor, ...]] = []
        for x in input[:, b : b + 1]:
            before = state_from_tensors(states[-1], layer.cell.keeps_history) if states else None
            states.append(state_tensors(layer(x.unsqueeze(0), before)[1]))

        def step(before: tuple[Tensor, ...], t: int, b: int, states: Any) -> tuple[Tensor, ...]:
            given = (*before, *states[t - 1][count:])  # the clock is no part of it
            after = layer(input[t : t + 1, b : b + 1], state_from_tensors(given, layer.cell.keeps_history))[1]
            return state_tensors(after)[:count]

        derivative = [torch.zeros_like(part) for part in states[-1][:count]]
        derivative[0].view(-1, layer.hidden_size)[-1] = weights[b]
        for t in range(len(input) - 1, -1, -1):
            for k, name in enumerate(layer.cell.state):
                found[name].append(derivative[k].reshape(-1, layer.hidden_size)[-1].norm())
            if t:
                jacobians = jacrev(step)(states[t - 1][:count], t, b, states)
                derivative = [
                    sum(torch.tensordot(derivative[to], jacobians[to][k], derivative[to].dim()) for to in range(count))
                    for k in range(count)
                ]
    return {name: torch.stack(values).view(input.size(1), -1).mean(0) for name, values in found.items()}


@every_layer
@pytest.mark.parametrize("backend", ["fused", "reference"])
def test_norms_equal_products_of_jacobians(name: str, backend: Any) -> None:
    with seeded(3):
        layer = small(name)
        input, weights = torch.randn(STEPS, BATCH, 3).double(), torch.randn(BATCH, 6).double()
    layer.backend = backend
    found = gradient_norms(layer, input, lambda result: (result[0][-1] * weights).sum())
    layer.backend = "reference"
    expected = by_jacobians(layer, input, weights)
    assert list(found.states) == list(layer.cell.state)
    for state, norms in found.states.items():
        torch.testing.assert_close(norms, expected[state], rtol=1e-10, atol=1e-14)
    assert torch.equal(found.h, found.states["h"])


@every_layer
def test_norms_with_every_option_are_those_of_a_run_step_by_step(name: str) -> None:
    with seeded(4):
        layer = small(name, num_layers=2, **REGULARISERS["all"]).eval()
        input = torch.randn(STEPS, BATCH, 3).double()
    found = gradient_norms(layer, input, lambda result: result[0][-1].square().sum())
    layer.backend = "reference"
    expected = gradient_norms(layer, input, lambda result: result[0][-1].square().sum())
    assert [state.split(".")[0] for state in found.states] == sorted(state.split(".")[0] for state in found.states)
    for state, norms in found.states.items():
        torch.testing.assert_close(norms, expected.states[state], rtol=1e-10, atol=1e-14)
    assert torch.equal(found.h, found.states["l1.h"])


def graph_nodes(value: Tensor) -> int:
    seen: set[Any] = set()
    waiting = [value.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            waiting.extend(following for following, _ in node.next_functions)
    return len(seen)


@every_layer
def test_there_is_no_graph_of_single_steps(name: str) -> None:
    layer, sizes = small(name), []

    def loss(result: Any) -> Tensor:
        value = result[0][-1].sum()
        sizes.append(graph_nodes(value))
        return value

    for steps in (4, 40):
        gradient_norms(layer, torch.randn(steps, 2, 3).double(), loss)
    assert sizes[0] == sizes[1] < 40


@pytest.mark.parametrize("kind", [MIST, nn.GRU])
def test_activation_checkpointing_changes_nothing(kind: Any) -> None:
    class Saved(Wrapped):
        def forward(self, input: Tensor) -> Tensor:
            output = checkpoint(lambda x: self.layer(x)[0], input, use_reentrant=self.reentrant)
            return self.readout(output[-1])

    with seeded(7):
        model, input = Saved(kind(3, 5)), torch.randn(STEPS, BATCH, 3, requires_grad=True)
    plain = Wrapped(model.layer)
    plain.readout = model.readout
    model.reentrant = False
    expected, found = (gradient_norms(m, input, lambda scores: scores.sum()) for m in (plain, model))
    torch.testing.assert_close(found.h, expected.h)
    model.reentrant = True
    with pytest.raises(ValueError, match="reentrant activation checkpointing hides them: use_reentrant=False"):
        gradient_norms(model, input, lambda scores: scores.sum())


def test_compiled_models_are_measured() -> None:
    for inside in (MIST(3, 5, delays=2), nn.GRUCell(3, 5)):
        model = Unrolled(inside) if isinstance(inside, nn.GRUCell) else Wrapped(inside)
        input = torch.randn(4, 2, 3)
        expected = gradient_norms(model, input, lambda scores: scores.sum())
        compiled = torch.compile(model, backend="eager", fullgraph=True)
        compiled(input)
        torch.testing.assert_close(gradient_norms(compiled, input, lambda scores: scores.sum()).h, expected.h)


def test_the_first_direction_of_a_bidirectional_layer_is_watched() -> None:
    layer, input = small("gru", bidirectional=True), torch.randn(7, 2, 3).double()
    found = gradient_norms(layer, input, lambda result: result[0][-1, :, :6].sum())
    assert list(found.states) == ["h"]
    one_way = small("gru")
    one_way.load_state_dict({k: v for k, v in layer.state_dict().items() if not k.endswith("_reverse")})
    torch.testing.assert_close(found.h, gradient_norms(one_way, input, lambda result: result[0][-1].sum()).h)


def test_norms_far_below_the_roots_of_the_smallest_numbers_are_seen() -> None:
    layer = RNN(1, 4)
    with torch.no_grad():
        layer.weight_hh_l0.copy_(0.05 * torch.eye(4))
    norms = gradient_norms(layer, torch.zeros(25, 1, 1), lambda result: result[0][-1].sum()).h
    torch.testing.assert_close(norms, 2 * 0.05 ** torch.arange(25).double(), rtol=1e-4, atol=0.0)
    assert norms[-1] < 1e-30


def test_each_sequence_has_its_own_end() -> None:
    layer, input, lengths = small("mist"), torch.randn(9, 3, 3).double(), torch.tensor([9, 4, 6])

    def loss(output: Tensor) -> Tensor:
        return output.gather(0, (lengths - 1).view(1, -1, 1).expand(1, -1, 6)).square().sum()

    class Given(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
            return self.layer(x, lengths=lengths)[0]

    found = gradient_norms(Given(), (input, lengths), loss, at=lengths - 1)
    alone = [
        gradient_norms(layer, input[:n, b : b + 1], lambda result: result[0][-1].square().sum()).h
        for b, n in enumerate(lengths.tolist())
    ]
    for tau in range(9):
        own = [norms[tau] for norms in alone if tau < len(norms)]
        torch.testing.assert_close(found.h[tau], torch.stack(own).mean())


def test_an_earlier_loss_counts_from_its_own_step() -> None:
    layer, input = small("narx"), torch.randn(9, 2, 3).double()
    early = gradient_norms(layer, input, lambda result: result[0][5].sum(), at=5)
    cut = gradient_norms(layer, input[:6], lambda result: result[0][-1].sum())
    torch.testing.assert_close(early.h, cut.h)


def test_unbatched_packed_and_batch_first_input() -> None:
    layer = small("lstm", batch_first=True)
    input = torch.randn(2, 7, 3).double()
    batched = gradient_norms(layer, input, lambda result: result[0][:, -1].sum())
    alone = [gradient_norms(layer, sequence, lambda result: result[0][-1].sum()).h for sequence in input]
    torch.testing.assert_close(batched.h, torch.stack(alone).mean(0))
    packed = nn.utils.rnn.pack_sequence(list(input))
    again = gradient_norms(layer, packed, lambda result: result[1][0].sum())
    torch.testing.assert_close(again.h, batched.h)


@pytest.mark.parametrize("sort", [True, False])
def test_packed_sequences_count_from_their_own_last_steps(sort: bool) -> None:
    layer = small("mist", delays=[1, 2])
    sequences = [torch.randn(length, 3).double() for length in ((9, 7, 4) if sort else (4, 9, 7))]

    def loss(result: Any) -> Tensor:
        return result[1].h.square().sum()

    found = gradient_norms(layer, nn.utils.rnn.pack_sequence(sequences, enforce_sorted=sort), loss).h
    alone = [gradient_norms(layer, sequence.unsqueeze(1), loss).h for sequence in sequences]
    for tau, norm in enumerate(found):
        reaching = [norms[tau] for norms in alone if tau < len(norms)]
        torch.testing.assert_close(norm, torch.stack(reaching).mean())


def test_a_model_that_makes_other_sequences_of_packed_ones_counts_from_their_last_step() -> None:
    class EverySecond(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = small("mist", delays=[1, 2])

        def forward(self, packed: nn.utils.rnn.PackedSequence) -> Any:
            return self.layer(nn.utils.rnn.pad_packed_sequence(packed)[0][::2])

    sequences = [torch.randn(length, 3).double() for length in (8, 6, 4)]
    found = gradient_norms(EverySecond(), nn.utils.rnn.pack_sequence(sequences), lambda result: result[0][-1].sum())
    assert len(found.h) == 4


def test_reach_is_the_last_tau_with_its_share() -> None:
    assert reach(torch.tensor([1.0, 0.2, 0.004, 0.02, 0.001])) == 3
    assert reach(torch.tensor([1.0, 0.2, 0.004, 0.02, 0.001]), share=0.5) == 0
    assert reach(torch.zeros(4)) == -1
    with pytest.raises(ValueError, match="expected a share above 0 and at most 1, got 0"):
        reach(torch.ones(3), share=0)
    for wrong in (torch.tensor([1.0, float("nan")]), torch.zeros(0)):
        with pytest.raises(ValueError, match="expected norms that are finite numbers, at least one of them"):
            reach(wrong)


def test_bad_input_is_named() -> None:
    layer, input = MIST(3, 4), torch.randn(6, 2, 3)

    def total(result: Any) -> Tensor:
        return result[0].sum()

    with pytest.raises(
        ValueError, match=r"expected hidden states to watch, and Linear holds no layer .* watch=model.cell"
    ):
        gradient_norms(nn.Linear(3, 4), input, total)
    with pytest.raises(ValueError, match=r"expected the loss to be a scalar Tensor, got shape \[6, 2, 4\]"):
        gradient_norms(layer, input, lambda result: result[0])
    with pytest.raises(ValueError, match="expected the loss to be a scalar Tensor, got float"):
        gradient_norms(layer, input, lambda result: 1.0)  # type: ignore[arg-type,return-value]
    with pytest.raises(ValueError, match="expected a loss that depends on the states, but it does not"):
        gradient_norms(layer, input, lambda result: torch.zeros(()))
    free = nn.Parameter(torch.ones(()))
    with pytest.raises(ValueError, match="expected a loss that depends on the states, but it does not"):
        gradient_norms(layer, input, lambda result: 2 * free)
    for at in (6, torch.tensor([1, 2, 3]), torch.tensor(1.5)):
        with pytest.raises(ValueError, match="expected `at` to be a step from 0 to 5, or one for each of 2 sequences"):
            gradient_norms(layer, input, total, at=at)
    gradient_norms(layer, input, total, at=torch.tensor([3, 4], dtype=torch.int32))
    for nothing in (input[:0], input[:, :0]):
        with pytest.raises(ValueError, match="expected at least one step of one sequence, got"):
            gradient_norms(layer, nothing, total)
    with pytest.raises(ValueError, match="expected at least one module to watch, got an empty list"):
        gradient_norms(layer, input, total, watch=[])
    with (
        torch.inference_mode(),
        pytest.raises(RuntimeError, match=r"expected to be called outside torch.inference_mode"),
    ):
        gradient_norms(layer, input, total)

    class Doubled(nn.LSTM):
        def forward(self, input: Tensor, hx: Any = None) -> Any:
            return super().forward(2 * input, hx)

    for own in (Doubled(3, 4), nn.RNNBase("GRU", 3, 4)):
        with pytest.raises(ValueError, match=r"expected torch.nn.RNN, LSTM or GRU as they are, got"):
            gradient_norms(own, input, total, watch=own)
    twice = nn.Sequential()
    twice.layer = layer
    twice.forward = lambda x: layer(x)[0][-1].sum() + layer(x[:, :1])[0][-1].sum()  # type: ignore[method-assign]
    with pytest.raises(
        ValueError, match="expected h to run piece after piece of the same sequences, got batches of 1, 2"
    ):
        gradient_norms(twice, input, lambda value: value)
    with pytest.raises(ValueError, match="expected to watch a part of the model, got another GRU"):
        gradient_norms(layer, input, total, watch=nn.GRU(3, 4))
    unused = nn.Sequential(nn.Linear(3, 4))
    unused.layer = layer
    unused.forward = lambda x: x.sum()  # type: ignore[method-assign]
    with pytest.raises(ValueError, match="expected the model to run layer, but it did not"):
        gradient_norms(unused, input, lambda value: value)
    model = nn.Sequential(nn.Linear(3, 4))
    with pytest.raises(
        ValueError, match=r"expected Linear to return its new hidden state \[B, H\], .* got \[6, 2, 4\]"
    ):
        gradient_norms(model, input, lambda value: value.sum(), watch=model[0])
