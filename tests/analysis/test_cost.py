"""The cost of a step: products as torch counts them, effective ones of Clockwork, element operations, bytes."""

from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from mistrnn.analysis import step_cost
from mistrnn.analysis.cost import milliseconds
from mistrnn.layers import GRU, LSTM, MIST, NARX, RNN, Clockwork, RecurrentLayer
from tests.layers.cases import every_layer, small

T, B = 5, 2


def counted(layer: RecurrentLayer) -> float:
    """Multiply-adds of a step of one sequence, as torch's counter sees a run of the reference."""
    layer.backend = "reference"
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        layer(torch.randn(T, B, layer.input_size, dtype=next(layer.parameters()).dtype))
    return counter.get_total_flops() / 2 / T / B


@every_layer
@pytest.mark.parametrize(
    "options",
    [{}, {"num_layers": 3}, {"num_layers": 2, "bidirectional": True}, {"layer_norm": True}, {"zoneout": 0.1}, {"bias": False}],
    ids=str,
)  # fmt: skip
def test_multiply_adds_are_those_of_torchs_counter(name: str, options: dict[str, Any]) -> None:
    layer = small(name, **options)
    assert step_cost(layer).multiply_adds == counted(layer)


@pytest.mark.parametrize(
    ("layer", "products", "elementwise"),
    [
        (RNN(3, 10), 10 * 13, 10 + 10),  # a sum, a tanh
        (
            LSTM(3, 10),
            40 * 13,
            40 + 30 + 10 + 20 + 10 + 10 + 10,
        ),  # sums, sigmoids, tanh, products and their sum, tanh, o_t
        (GRU(3, 10), 30 * 13, 20 + 20 + 40 + 40),
        (MIST(3, 10, delays=4), 24 * 13, 8 + 20 + 80 + 10 + 20),
        (NARX(3, 10, delays=4), 10 * (3 + 40), 10 + 10),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, RecurrentLayer) else "",
)
def test_operations_are_those_of_the_equations(layer: RecurrentLayer, products: int, elementwise: int) -> None:
    found = step_cost(layer)
    assert found.multiply_adds == found.effective_multiply_adds == products
    assert found.elementwise == elementwise


def test_mist_needs_fewer_multiply_adds_than_an_lstm_of_its_units_and_as_many_with_its_parameters() -> None:
    lstm, same_units, same_parameters = (step_cost(layer) for layer in (LSTM(1, 100), MIST(1, 100), MIST(1, 139)))
    assert same_units.multiply_adds / lstm.multiply_adds == pytest.approx(0.52, abs=0.005)
    assert same_parameters.multiply_adds / lstm.multiply_adds == pytest.approx(0.99, abs=0.005)


def test_effective_multiply_adds_of_clockwork_are_those_of_ticking_groups() -> None:
    found = step_cost(Clockwork(3, 6, periods=[1, 2, 3]))
    # Groups of 2 units: the fastest reads all groups at every step, the next two of them at every second, …
    assert found.effective_multiply_adds == pytest.approx(2 * (3 + 6) / 1 + 2 * (3 + 4) / 2 + 2 * (3 + 2) / 3)
    assert found.multiply_adds == 6 * 9
    assert found.parameters == 6 * 3 + 6 + 24


def test_bytes_count_weights_and_the_states_that_are_read_and_written() -> None:
    lstm, mist, narx = (
        step_cost(layer) for layer in (LSTM(3, 10), MIST(3, 10, delays=[2, 5]), NARX(3, 10, delays=[2, 5]))
    )
    assert lstm.weight_bytes == 4 * 40 * 14
    assert lstm.state_bytes == 4 * (3 + 20 + 20)
    assert mist.state_bytes == 4 * (3 + 30 + 10)  # h_{t-1}, h_{t-2}, h_{t-5}
    assert narx.state_bytes == 4 * (3 + 20 + 10)
    assert step_cost(LSTM(3, 10).double()).weight_bytes == 2 * lstm.weight_bytes


def test_times_are_positive_and_the_backward_pass_adds_to_them() -> None:
    found = milliseconds({"rnn": RNN(1, 32), "lstm": LSTM(1, 32)}, steps=50, batch=20)
    for forward, both in found.values():
        assert 0 < forward < both
