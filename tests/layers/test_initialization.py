"""Named initializations: where parameters start, and how much gradient arrives from far back."""

import math
from typing import Any

import pytest
import torch

from mistrnn import GRU, LSTM, MIST, NARX, RNN, Clockwork
from mistrnn.analysis import gradient_norms
from mistrnn.layers import LAYERS
from mistrnn.layers.initialization import EXPECTED_STEPS, INITIALIZATIONS, OPEN_RESET_BIAS, UNIFORM, initialize

UNITS = 64


def started(kind: Any, name: str, steps: int | None = None, **options: Any) -> Any:
    torch.manual_seed(0)
    layer = kind(3, UNITS, **options)
    initialize(layer, name, steps=steps)
    return layer


@pytest.mark.parametrize("options", [{}, {"num_layers": 2, "bidirectional": True}], ids=str)
def test_open_sets_the_reset_bias_of_mist_alone(options: dict[str, Any]) -> None:
    layer, normal = started(MIST, "open", delays=4, **options), started(MIST, "normal", delays=4, **options)
    names = [name for name, _ in layer.named_parameters() if name.startswith("bias")]
    assert len(names) == (4 if options else 1)
    for name in names:
        bias = getattr(layer, name)
        assert (bias[4 : 4 + UNITS] == OPEN_RESET_BIAS).all()
        assert not bias[:4].any()
        assert not bias[4 + UNITS :].any()
    for name, value in normal.named_parameters():
        if name not in names:
            assert torch.equal(getattr(layer, name), value)


@pytest.mark.parametrize("steps", [None, 1000])
def test_open_lets_lstm_and_gru_remember_up_to_the_length_of_the_sequences(steps: int | None) -> None:
    longest = math.log((steps or EXPECTED_STEPS) - 1)
    lstm, gru = started(LSTM, "open", steps), started(GRU, "open", steps)
    forget, update = (layer.bias_ih_l0.detach()[UNITS : 2 * UNITS] for layer in (lstm, gru))
    for bias in (forget, update):
        assert float(bias.min()) >= 0
        assert 0.7 * longest < float(bias.max()) <= longest
    assert torch.equal(lstm.bias_ih_l0[:UNITS], -forget)
    assert not lstm.bias_ih_l0[2 * UNITS :].any()
    assert not lstm.bias_hh_l0.any()


def test_open_of_layers_without_gates_is_the_paper_s_start_and_clockwork_s_is_that_of_its_groups() -> None:
    for kind in (RNN, NARX):
        for mine, own in zip(started(kind, "open").parameters(), started(kind, "normal").parameters(), strict=True):
            assert torch.equal(mine, own)
    for mine, own in zip(
        started(Clockwork, "open").parameters(), started(Clockwork, "groups").parameters(), strict=True
    ):
        assert torch.equal(mine, own)


def test_uniform_weights_stay_within_their_bound_and_severed_ones_at_zero() -> None:
    normal, uniform = started(Clockwork, "normal"), started(Clockwork, "uniform")
    severed = normal.weight_hh_l0 == 0
    assert severed.any()
    assert torch.equal(uniform.weight_hh_l0 == 0, severed)
    for name, parameter in uniform.named_parameters():
        if "weight" in name:
            assert 0.9 * UNIFORM < float(parameter.detach().abs().max()) <= UNIFORM


@pytest.mark.parametrize("layer", list(LAYERS))
@pytest.mark.parametrize("name", INITIALIZATIONS)
def test_every_start_follows_from_torch_s_seed(layer: str, name: str) -> None:
    if name == "groups" and layer != "clockwork":
        with pytest.raises(ValueError, match=r"expected no initialization 'groups', because only Clockwork has groups"):
            started(LAYERS[layer], name)
        return
    first, again = (started(LAYERS[layer], name) for _ in range(2))
    for mine, own in zip(first.parameters(), again.parameters(), strict=True):
        assert torch.equal(mine, own)


def test_layer_without_biases_may_start_open() -> None:
    assert started(MIST, "open", bias=False).bias is False


def test_unknown_start_is_refused() -> None:
    with pytest.raises(ValueError, match="expected an initialization among normal, uniform, groups, open, got 'zero'"):
        started(MIST, "zero")


@pytest.mark.parametrize("kind", [MIST, LSTM, GRU, Clockwork])
def test_open_lets_more_gradient_arrive_from_the_beginning(kind: Any) -> None:
    steps, found = 200, {}
    for name in ("normal", "open"):
        layer = started(kind, name, steps)
        torch.manual_seed(1)
        norms = gradient_norms(layer, torch.randn(steps, 8, 3), lambda outputs: outputs[0][-1].square().sum()).h
        found[name] = float(norms[-1] / norms[0])
    assert found["open"] > 3 * found["normal"]
