"""Cells: one step at a time, equal to their layers and to torch.nn's cells."""

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import nn

from mistrnn.layers import cell_modules
from mistrnn.layers.cell_modules import (
    ClockworkCell,
    GRUCell,
    LSTMCell,
    MISTCell,
    NARXCell,
    PeepholeLSTMCell,
    RecurrentCell,
    RNNCell,
)
from mistrnn.layers.state import HistoryState
from tests.layers.cases import as_tuple, close

CELLS: dict[str, tuple[type[RecurrentCell], dict[str, Any]]] = {
    "mist": (MISTCell, {"delays": [1, 3, 4]}),
    "narx": (NARXCell, {"delays": [1, 3]}),
    "clockwork": (ClockworkCell, {"periods": 3}),
    "peephole_lstm": (PeepholeLSTMCell, {}),
    "lstm": (LSTMCell, {}),
    "gru": (GRUCell, {}),
    "rnn": (RNNCell, {}),
    "relu": (RNNCell, {"nonlinearity": "relu"}),
    "projection": (LSTMCell, {"proj_size": 4}),
    "regularised": (MISTCell, {"delays": 3, "layer_norm": True, "zoneout": 0.25}),
}
every_cell = pytest.mark.parametrize("name", CELLS)


def new(name: str, **options: Any) -> RecurrentCell:
    kind, own = CELLS[name]
    return kind(3, 6, dtype=torch.float64, **own, **options)


def test_every_layer_has_a_cell() -> None:
    kinds = {kind for kind in vars(cell_modules).values() if isinstance(kind, type) and issubclass(kind, RecurrentCell)}
    assert kinds - {RecurrentCell} == {kind for kind, _ in CELLS.values()}


@every_cell
@pytest.mark.parametrize("backend", ["fused", "reference"])
def test_cell_step_by_step_equals_its_layer(name: str, backend: Any) -> None:
    torch.manual_seed(0)
    cell = new(name).eval()
    cell.backend = backend if name != "relu" else "reference"
    layer = cell.layer_class(3, 6, dtype=torch.float64, **CELLS[name][1]).eval()
    layer.load_state_dict({f"{key}_l0": value for key, value in cell.state_dict().items()})
    input = torch.randn(7, 2, 3, dtype=torch.float64)
    state, outputs = None, []
    for x in input:
        state = cell(x, state)
        outputs.append(as_tuple(state)[0])
    expected, final = layer(input)
    close(torch.stack(outputs), expected)
    close(state, tuple(part[0] for part in as_tuple(final)))
    expected.square().sum().backward()
    torch.stack(outputs).square().sum().backward()
    for key, parameter in cell.named_parameters():
        close(parameter.grad, layer.get_parameter(f"{key}_l0").grad, 1e-10)


@pytest.mark.parametrize(
    ("ours", "theirs", "options"),
    [
        (LSTMCell, nn.LSTMCell, {}),
        (GRUCell, nn.GRUCell, {}),
        (RNNCell, nn.RNNCell, {}),
        (RNNCell, nn.RNNCell, {"nonlinearity": "relu"}),
    ],
)
@pytest.mark.parametrize("bias", [True, False])
def test_cell_equals_torchs(ours: Any, theirs: Any, options: dict[str, Any], bias: bool) -> None:
    torch.manual_seed(0)
    module, cell = (kind(3, 6, bias, dtype=torch.float64, **options) for kind in (theirs, ours))
    cell.load_state_dict(module.state_dict())
    input, states = torch.randn(5, 2, 3, dtype=torch.float64), [None, None]
    for x in input:
        states = [module(x, states[0]), cell(x, hx=states[1])]
        close(states[1], states[0])
    close(cell(input[0, 0]), module(input[0, 0]))  # unbatched


@every_cell
def test_cell_survives_copies_pickles_and_moves(name: str) -> None:
    cell, x = new(name).eval(), torch.randn(2, 3, dtype=torch.float64)
    state = cell(x)
    for copied in (copy.deepcopy(cell), pickle.loads(pickle.dumps(cell)), cell.float().double()):
        assert copied(x, state)[0].shape == (2, 4 if name == "projection" else 6) or isinstance(state, torch.Tensor)
    assert not list(cell.children())


def test_state_of_a_cell_with_a_history_is_a_pair_that_is_carried() -> None:
    cell = MISTCell(3, 6, delays=[2, 5])
    h, history = cell(torch.randn(2, 3))
    assert isinstance(cell(torch.randn(2, 3), (h, history)), HistoryState)
    assert h.shape == (2, 6)
    assert history.shape == (5, 2, 6)
    h, history = cell(torch.randn(3))
    assert h.shape == (6,)


def test_reset_parameters_draws_anew() -> None:
    cell = MISTCell(3, 6)
    before = cell.weight_hh.detach().clone()
    cell.reset_parameters()
    assert not torch.equal(cell.weight_hh, before)


def test_arguments_of_a_stack_raise() -> None:
    with pytest.raises(TypeError, match="MISTCell: expected no num_layers, because a cell is one step of one layer"):
        MISTCell(3, 6, num_layers=2)


def test_input_of_the_wrong_size_raises() -> None:
    with pytest.raises(
        ValueError, match=r"LSTMCell: expected input \[B, 3\] or \[3\], because input_size=3, got \[2, 4\]"
    ):
        LSTMCell(3, 6)(torch.zeros(2, 4))
    with pytest.raises(RuntimeError, match="LSTMCell: expected input"):  # torch's type
        LSTMCell(3, 6)(torch.zeros(4))
    with pytest.raises(ValueError, match=r"LSTM: expected state's h \[1, 2, 6\]"):
        LSTMCell(3, 6)(torch.zeros(2, 3), (torch.zeros(2, 5), torch.zeros(2, 6)))
    state = LSTMCell(3, 6)(torch.zeros(2, 3))
    with pytest.raises(TypeError, match="expected one of state and hx"):
        LSTMCell(3, 6)(torch.zeros(2, 3), state, hx=state)
