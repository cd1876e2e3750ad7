"""Planted mistakes: each is a way to get a layer slightly wrong, and the tolerance rule must catch every one.

The right layer, the torch.nn twins and the chunked run must pass the same rule in the same place: a rule that refuses
everything would catch all mistakes too.
"""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mistrnn.layers import RecurrentLayer, backends, recurrence
from mistrnn.layers.clockwork import reference as clockwork_reference
from mistrnn.layers.gru import reference as gru_reference
from mistrnn.layers.lstm import reference as lstm_reference
from mistrnn.layers.mist import reference as mist_reference
from mistrnn.layers.peephole_lstm import reference as peephole_lstm_reference
from mistrnn.layers.recurrence import StateHistory
from mistrnn.layers.sequence_mask import SequenceMask
from tests.layers.cases import NAMES, as_tuple, every_layer, random_state, seeded, small
from tests.tolerance import violations

pytestmark = pytest.mark.usefixtures("reference_backend")  # mistakes are planted in the reference backend

STEPS, BATCH, LENGTHS = 12, 3, [12, 9, 5]
Run = Callable[[RecurrentLayer, Tensor, Any, Tensor], tuple[Tensor, Any]]


def whole(layer: RecurrentLayer, input: Tensor, state: Any, reset: Tensor) -> tuple[Tensor, Any]:
    return layer(input, state, lengths=LENGTHS, reset=reset)


def in_chunks(layer: RecurrentLayer, input: Tensor, state: Any, reset: Tensor) -> tuple[Tensor, Any]:
    outputs = []
    for begin in range(0, STEPS, 2):
        lengths = [min(max(length - begin, 0), 2) for length in LENGTHS]
        output, state = layer(input[begin : begin + 2], state, lengths=lengths, reset=reset[begin : begin + 2])
        outputs.append(output)
    return torch.cat(outputs), state


def measure(
    name: str,
    dtype: torch.dtype,
    run: Run = whole,
    mutate: Callable[[Any], None] = lambda layer: None,
    training: bool = True,
    **options: Any,
) -> dict[str, Tensor]:
    """Outputs, states and gradients of a layer in a dtype, all from the same numbers and masks."""
    with seeded(11):
        layer = small(name, input_size=3, hidden_size=6, **options)
        input = torch.randn(STEPS, BATCH, 3, dtype=torch.float64)
        state = as_tuple(random_state(layer, BATCH))
        reset = torch.rand(STEPS, BATCH) < 0.15
        reset[2, 0] = True  # one at least, before any sequence ends
        probe = torch.randn(STEPS, BATCH, 6, dtype=torch.float64).to(dtype)
    layer.to(dtype).train(training)
    input = input.to(dtype).requires_grad_()
    parts = tuple(part.to(dtype).requires_grad_() if part.is_floating_point() else part for part in state)
    mutate(layer)
    with seeded(12):
        output, final = run(layer, input, parts if len(parts) > 1 else parts[0], reset)
    measured = {"output": output}
    measured |= {f"state {k}": part for k, part in enumerate(as_tuple(final)) if part.is_floating_point()}
    loss = (output * probe).sum() + sum(part.sum() for part in measured.values())
    loss.backward()
    measured["input.grad"] = input.grad
    measured |= {f"initial {k}.grad": part.grad for k, part in enumerate(parts) if part.is_floating_point()}
    measured |= {f"{key}.grad": parameter.grad for key, parameter in layer.named_parameters()}
    return {key: value.detach() for key, value in measured.items()}


def broken(name: str, run: Run = whole, mutate: Callable[[Any], None] = lambda layer: None, **options: Any) -> Any:
    """What the rule says about a (mutated) float32 run, against the right one in float32 and in float64."""
    candidate = measure(name, torch.float32, run, mutate, **options)
    return violations(candidate, measure(name, torch.float32, **options), measure(name, torch.float64, **options))


@every_layer
@pytest.mark.parametrize("options", [{}, {"zoneout": 0.3, "layer_norm": True, "training": False}])
def test_right_layer_in_chunks_passes_the_rule(name: str, options: dict[str, Any]) -> None:
    assert broken(name, run=in_chunks, **options) == {}


@pytest.mark.parametrize(("name", "kind"), [("rnn", nn.RNN), ("lstm", nn.LSTM), ("gru", nn.GRU)])
def test_torch_twin_passes_the_rule(name: str, kind: type[nn.RNNBase]) -> None:
    """An independent implementation in float32 is neither refused nor needed."""
    results = []
    with seeded(3):
        exact: Any = small(name, input_size=3, hidden_size=6)
        input = torch.randn(30, 4, 3, dtype=torch.float64)
    for layer in (exact, type(exact).from_torch(exact.to_torch()).float(), exact.to_torch().float()):
        x = input.detach().to(layer.weight_hh_l0.dtype).requires_grad_()
        output = layer(x)[0]
        output.square().sum().backward()
        results.append({"output": output.detach(), "input.grad": x.grad, "weight.grad": layer.weight_hh_l0.grad})
    assert violations(results[2], results[1], results[0]) == {}


# Each mistake: (layers that can make it, options that make it matter, how it is planted, how it is run).
MUTANTS: dict[str, tuple[Sequence[str], dict[str, Any], Callable[[pytest.MonkeyPatch, Any], None], Run]] = {}


def mutant(names: Sequence[str], run: Run = whole, **options: Any) -> Callable[[Any], Any]:
    def register(plant: Any) -> Any:
        MUTANTS[plant.__name__] = (names, options, plant, run)
        return plant

    return register


@mutant(["mist", "narx"])
def delay_off_by_one(patch: pytest.MonkeyPatch, layer: Any) -> None:
    # delays [1, 3, 4]: the state keeps its size, one delay reads the neighbour.
    layer.delays = (1, 2, 4)


@mutant(NAMES)
def dropped_bias(patch: pytest.MonkeyPatch, layer: Any) -> None:
    project = backends.project
    dropped = lambda x, weights: project(x, {**weights, "bias": weights["bias"] - weights["bias"].detach()})  # noqa: E731
    patch.setattr(backends, "project", dropped)


@mutant(NAMES)
def bias_counted_twice_in_one_unit(patch: pytest.MonkeyPatch, layer: Any) -> None:
    project = backends.project

    def twice(x: Tensor, weights: Any) -> Tensor:
        first = torch.zeros_like(weights["bias"])
        first[0] = 1.0
        return project(x, weights) + first * weights["bias"]

    patch.setattr(backends, "project", twice)


@mutant(["rnn", "lstm", "gru"])
def second_bias_dropped(patch: pytest.MonkeyPatch, layer: Any) -> None:
    single = type(layer)._single_biases
    patch.setattr(type(layer), "_single_biases", lambda self, bias_ih, bias_hh: single(self, bias_ih, 0 * bias_hh))


@mutant(["mist"])
def mixture_weights_do_not_sum_to_one(patch: pytest.MonkeyPatch, layer: Any) -> None:
    softmax = torch.softmax
    patch.setattr(mist_reference.torch, "softmax", lambda *a, **k: softmax(*a, **k) * 1.0001)


@mutant(["mist"])
def reset_gate_reads_the_wrong_way(patch: pytest.MonkeyPatch, layer: Any) -> None:
    sigmoid = torch.sigmoid
    patch.setattr(mist_reference.torch, "sigmoid", lambda z: 1 - sigmoid(z))


@mutant(NAMES, zoneout=0.3)
def zoneout_mask_reused(patch: pytest.MonkeyPatch, layer: Any) -> None:
    draw = layer.draw_zoneout
    layer.draw_zoneout = lambda *a: tuple(mask[:1].expand_as(mask) for mask in draw(*a))


@mutant(NAMES, zoneout=0.3)
def zoneout_keeps_what_it_should_change(patch: pytest.MonkeyPatch, layer: Any) -> None:
    draw = layer.draw_zoneout
    layer.draw_zoneout = lambda *a: tuple(~mask for mask in draw(*a))


@mutant(NAMES, zoneout=0.3)
def zoneout_stops_the_gradient_of_the_kept_value(patch: pytest.MonkeyPatch, layer: Any) -> None:
    read = StateHistory.__call__

    def detached(step: Any, x: Tensor, past: StateHistory, zoneout: Any, probes: Any = ()) -> tuple[Tensor, ...]:
        new = step(x, past)
        new = tuple(torch.where(zoneout[k], read(past, 1, k).detach(), value) for k, value in enumerate(new))
        past.append(new)
        return new

    patch.setattr(recurrence, "advance", detached)


@mutant(["lstm", "peephole_lstm"], zoneout=0.3)
def zoneout_of_h_and_c_share_a_mask(patch: pytest.MonkeyPatch, layer: Any) -> None:
    draw = layer.draw_zoneout
    layer.draw_zoneout = lambda *a: (draw(*a)[0],) * 2


@mutant(NAMES, recurrent_dropout=0.3)
def recurrent_dropout_not_scaled(patch: pytest.MonkeyPatch, layer: Any) -> None:
    draw = layer.draw_dropout
    layer.draw_dropout = lambda *a: (draw(*a) > 0).to(torch.float32)


@mutant(["mist"], recurrent_dropout=0.3)
def recurrent_dropout_forgets_the_last_matrix(patch: pytest.MonkeyPatch, layer: Any) -> None:
    calls = []

    def every_other(x: Tensor, mask: Tensor | None) -> Tensor:
        calls.append(x)
        return x if mask is None or len(calls) % 2 == 0 else x * mask

    patch.setattr(mist_reference, "drop", every_other)


@mutant(NAMES, layer_norm=True)
def layer_norm_with_the_wrong_epsilon(patch: pytest.MonkeyPatch, layer: Any) -> None:
    norm = torch.nn.functional.layer_norm
    patch.setattr(recurrence.F, "layer_norm", lambda *a, **k: norm(*a, **{**k, "eps": 1e-3}))


@mutant(NAMES, layer_norm=True)
def layer_norm_without_its_gain(patch: pytest.MonkeyPatch, layer: Any) -> None:
    norm = torch.nn.functional.layer_norm
    patch.setattr(recurrence.F, "layer_norm", lambda *a, **k: norm(*a, **{**k, "weight": 0 * k["weight"] + 1}))


@mutant(["mist", "narx"])
def reset_leaks_through_the_longer_delays(patch: pytest.MonkeyPatch, layer: Any) -> None:
    read = StateHistory.__call__

    def leaky(self: StateHistory, delay: int, component: int = 0) -> Tensor:
        return read(self, delay, component) if delay == 1 else self._components[component][-delay]

    patch.setattr(StateHistory, "__call__", leaky)


@mutant(NAMES)
def reset_one_step_late(patch: pytest.MonkeyPatch, layer: Any) -> None:
    run = backends.run
    patch.setattr(backends, "run", lambda *a, **k: run(*a, **{**k, "age": k["age"] + 1}))


@mutant(["mist", "narx"], run=in_chunks)
def chunks_forget_history_before_the_last_chunk(patch: pytest.MonkeyPatch, layer: Any) -> None:
    last = SequenceMask.last

    def forgetful(self: SequenceMask, initial: Tensor, states: Tensor) -> Tensor:
        return last(self, torch.zeros_like(initial) * initial, states)

    patch.setattr(SequenceMask, "last", forgetful)


@mutant(NAMES)
def state_taken_at_the_end_of_the_padding(patch: pytest.MonkeyPatch, layer: Any) -> None:
    last = SequenceMask.last
    patch.setattr(
        SequenceMask,
        "last",
        lambda self, *a: last(SequenceMask(self.steps, self.batch, self.device, None, self.reset), *a),
    )


@mutant(NAMES)
def output_past_the_length_not_cleared(patch: pytest.MonkeyPatch, layer: Any) -> None:
    patch.setattr(SequenceMask, "clear_padding", lambda self, x: x)


@mutant(["clockwork"])
def clock_counts_from_one(patch: pytest.MonkeyPatch, layer: Any) -> None:
    run = backends.run
    patch.setattr(backends, "run", lambda *a, **k: run(*a, **{**k, "clock": k["clock"] + 1}))


@mutant(["clockwork"])
def clock_not_handed_on(patch: pytest.MonkeyPatch, layer: Any) -> None:
    run = backends.run
    patch.setattr(backends, "run", lambda *a, **k: run(*a, **{**k, "clock": k["clock"] - k["clock"][:1]}))


@mutant(["clockwork"])
def fast_groups_feed_slow_ones(patch: pytest.MonkeyPatch, layer: Any) -> None:
    patch.setattr(clockwork_reference, "severed", lambda periods: periods.unsqueeze(1) > periods + 1)


@mutant(["lstm"])
def forget_and_input_gates_exchanged(patch: pytest.MonkeyPatch, layer: Any) -> None:
    split = torch.split

    def exchanged(*a: Any, **k: Any) -> Any:
        i, f, g, o = split(*a, **k)
        return f, i, g, o

    patch.setattr(lstm_reference.torch, "split", exchanged)


@mutant(["peephole_lstm"])
def peepholes_of_input_and_forget_gates_exchanged(patch: pytest.MonkeyPatch, layer: Any) -> None:
    right = peephole_lstm_reference.peephole_lstm
    patch.setattr(
        "mistrnn.layers.peephole_lstm.cell.peephole_lstm", lambda w_hh, w_ch, *more: right(w_hh, w_ch[[1, 0, 2]], *more)
    )


@mutant(["peephole_lstm"])
def output_gate_without_its_peephole(patch: pytest.MonkeyPatch, layer: Any) -> None:
    right = peephole_lstm_reference.peephole_lstm

    def blind(weight_hh: Tensor, weight_ch: Tensor, *more: Any) -> Any:
        return right(weight_hh, torch.cat([weight_ch[:2], weight_ch[2:] * 0]), *more)

    patch.setattr("mistrnn.layers.peephole_lstm.cell.peephole_lstm", blind)


@mutant(["gru"])
def reset_gate_does_not_reach_the_hidden_bias(patch: pytest.MonkeyPatch, layer: Any) -> None:
    gru = gru_reference.gru

    def outside(weight_hh: Tensor, bias: Any, bias_hn: Any, gain: Any, dropout: Any) -> Any:
        step = gru(weight_hh, bias, None, gain, dropout)
        shift = torch.cat([torch.zeros(2 * bias_hn.size(0), dtype=bias_hn.dtype), bias_hn])
        return lambda x, past: step(x + shift, past)

    patch.setattr("mistrnn.layers.gru.cell.gru", outside)


@mutant(NAMES)
def last_step_without_a_gradient(patch: pytest.MonkeyPatch, layer: Any) -> None:
    run = backends.run

    def cut(*a: Any, **k: Any) -> tuple[Tensor, ...]:
        states = run(*a, **k)
        return tuple(torch.cat([s[:-1], s[-1:].detach()]) for s in states)

    patch.setattr(backends, "run", cut)


CASES = [(mistake, name) for mistake, (names, *_) in MUTANTS.items() for name in names]


@pytest.mark.parametrize(("mistake", "name"), CASES)
def test_mistake_is_caught_by_the_rule(mistake: str, name: str) -> None:
    _, options, plant, run = MUTANTS[mistake]
    plain, exact = measure(name, torch.float32, **options), measure(name, torch.float64, **options)
    with pytest.MonkeyPatch.context() as patch:
        candidate = measure(name, torch.float32, run, lambda layer: plant(patch, layer), **options)
    assert violations(candidate, plain, exact)
