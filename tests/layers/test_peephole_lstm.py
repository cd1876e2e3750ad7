"""PeepholeLSTM: the properties of its peepholes; the contract tests cover the rest."""

import math

import pytest
import torch

from mistrnn import LSTM, PeepholeLSTM
from mistrnn.layers.initialization import UNIFORM, initialize
from tests.layers.cases import close, randomised, seeded, small

pytestmark = pytest.mark.usefixtures("backend")


def sigmoid(z: float) -> float:
    return 1 / (1 + math.exp(-z))


def test_peephole_lstm_without_peepholes_equals_lstm() -> None:
    layer = small("peephole_lstm", num_layers=2, bidirectional=True, layer_norm=True)
    twin = LSTM(3, 6, 2, bidirectional=True, layer_norm=True, dtype=torch.float64)
    state = {name: value for name, value in layer.state_dict().items() if "weight_ch" not in name}
    twin.load_state_dict(state)
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            if "weight_ch" in name:
                parameter.zero_()
    input = torch.randn(7, 2, 3, dtype=torch.float64)
    (output, final), (expected, expected_final) = layer(input), twin(input)
    close(output, expected)
    close(final, expected_final)


def test_peephole_lstm_of_one_unit_follows_the_equations_by_hand() -> None:
    """Only peepholes and the candidate count: i and f read the previous memory cell, o the new one."""
    layer = PeepholeLSTM(1, 1, bias=False, dtype=torch.float64)
    with torch.no_grad():
        layer.weight_ih_l0.copy_(torch.tensor([[0.0], [0.0], [1.0], [0.0]]))
        layer.weight_hh_l0.zero_()
        layer.weight_ch_l0.copy_(torch.tensor([[0.5], [-0.7], [0.9]], dtype=torch.float64))
    before, x = 0.8, 0.6
    i, f = sigmoid(0.5 * before), sigmoid(-0.7 * before)
    c = f * before + i * math.tanh(x)
    h = sigmoid(0.9 * c) * math.tanh(c)
    state = (torch.zeros(1, 1, 1, dtype=torch.float64), torch.full((1, 1, 1), before, dtype=torch.float64))
    _, (final_h, final_c) = layer(torch.full((1, 1, 1), x, dtype=torch.float64), state)
    assert final_c.item() == pytest.approx(c, abs=1e-15)
    assert final_h.item() == pytest.approx(h, abs=1e-15)


def test_peephole_gradients_of_the_first_step_from_zeros_reach_the_output_gate_alone() -> None:
    layer = small("peephole_lstm")
    layer(torch.randn(1, 2, 3, dtype=torch.float64))[0].sum().backward()
    from_i, from_f, from_o = layer.weight_ch_l0.grad.unbind(0)
    assert not from_i.any()
    assert not from_f.any()
    assert from_o.all()


def test_peepholes_after_a_reset_read_an_empty_memory_cell() -> None:
    layer = small("peephole_lstm")
    input = torch.randn(6, 2, 3, dtype=torch.float64)
    reset = torch.zeros(6, 2, dtype=torch.bool)
    reset[4] = True
    close(layer(input, reset=reset)[0][4:], layer(input[4:])[0])


def test_peepholes_in_training_read_the_memory_cell_without_recurrent_dropout() -> None:
    layer = small("peephole_lstm", recurrent_dropout=0.5)
    with torch.no_grad():
        layer.weight_hh_l0.zero_()
    input = torch.randn(6, 2, 3, dtype=torch.float64)
    close(layer(input)[0], layer.eval()(input)[0])


def test_peephole_lstm_has_three_parameters_more_per_unit_than_lstm() -> None:
    assert PeepholeLSTM(3, 5).parameter_count() == LSTM(3, 5).parameter_count() + 3 * 5


def test_forget_bias_starts_at_one() -> None:
    assert PeepholeLSTM(3, 4).bias_l0.tolist() == [0.0] * 4 + [1.0] * 4 + [0.0] * 8


def test_initializations_of_peephole_lstm_draw_peepholes_and_open_gates() -> None:
    layer = PeepholeLSTM(3, 50)
    with seeded(0):
        initialize(layer, "uniform")
        drawn = layer.weight_ch_l0.detach().abs()
        assert 0.9 * UNIFORM < drawn.max() <= UNIFORM
        initialize(layer, "open", steps=100)
    bias_i, bias_f, bias_g, bias_o = layer.bias_l0.detach().split(50)
    assert (bias_f > 0).all()
    assert torch.equal(bias_i, -bias_f)
    assert not bias_g.any()
    assert not bias_o.any()


def test_stream_of_peephole_lstm_equals_the_whole_run() -> None:
    layer = randomised(PeepholeLSTM(3, 21, 2, dtype=torch.float64)).eval()
    input = torch.randn(9, 4, 3, dtype=torch.float64)
    stream = layer.stream(4)
    close(torch.stack([stream(x) for x in input]), layer(input)[0])
