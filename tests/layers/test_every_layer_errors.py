"""Bad input to any layer gets an error that names the class, the argument, what was expected and why, and what came."""

import re
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_sequence

from mistrnn import GRU, LSTM, MIST, NARX, RNN, Clockwork
from mistrnn.layers import LAYERS, RecurrentLayer, layer_class, match_parameters
from tests.layers.cases import every_layer


def plain(name: str, **options: Any) -> RecurrentLayer:
    return LAYERS[name](32, 8, **options)


def message(text: str) -> str:
    """The whole message, to the letter."""
    return "^" + re.escape(text) + "$"


def test_wrong_feature_count_names_the_expectation_and_its_reason() -> None:
    with pytest.raises(
        ValueError,
        match=message(
            "MIST: expected input [T, B, 32], because input_size=32 and batch_first=False, got [50, 128, 31]."
        ),
    ):
        MIST(32, 64)(torch.zeros(50, 128, 31))


@every_layer
@pytest.mark.parametrize(
    ("shape", "batch_first", "expected"),
    [
        ([5, 2, 31], False, "input [T, B, 32], because input_size=32 and batch_first=False, got [5, 2, 31]."),
        ([2, 5, 31], True, "input [B, T, 32], because input_size=32 and batch_first=True, got [2, 5, 31]."),
        ([5, 31], False, "unbatched input [T, 32], because input_size=32, got [5, 31]."),
        ([32], False, "input [T, B, 32], because input_size=32 and batch_first=False, got [32]."),
        ([1, 5, 2, 32], False, "input [T, B, 32], because input_size=32 and batch_first=False, got [1, 5, 2, 32]."),
    ],
)
def test_input_of_wrong_shape_is_refused(name: str, shape: list[int], batch_first: bool, expected: str) -> None:
    layer = plain(name, batch_first=batch_first)
    with pytest.raises(ValueError, match=message(f"{type(layer).__name__}: expected {expected}")):
        layer(torch.zeros(shape))


@every_layer
def test_input_of_wrong_type_dtype_or_device_is_refused(name: str) -> None:
    layer = plain(name)
    own = type(layer).__name__
    with pytest.raises(TypeError, match=f"^{own}: expected input to be a Tensor or a PackedSequence, got list"):
        layer([[0.0] * 32])
    with pytest.raises(
        TypeError,
        match=f"^{own}: expected input of torch.float32, the dtype of the parameters, got torch.float64",
    ):
        layer(torch.zeros(5, 2, 32, dtype=torch.float64))
    with pytest.raises(TypeError, match=f"^{own}: expected input of torch.float32, .* got torch.int64"):
        layer(torch.zeros(5, 2, 32, dtype=torch.int64))
    with pytest.raises(ValueError, match=f"^{own}: expected input on cpu, because the parameters are there, got meta"):
        layer(torch.zeros(5, 2, 32, device="meta"))


@every_layer
@pytest.mark.parametrize(
    ("lengths", "error", "expected"),
    [
        ([5.0, float("nan")], TypeError, "lengths to be ints, because they count steps, got [5.0, nan]."),
        ([5, -1], ValueError, "lengths between 0 and 5, because the input has 5 steps, got -1 for sequence 1."),
        ([6, 5], ValueError, "lengths between 0 and 5, because the input has 5 steps, got 6 for sequence 0."),
        ([5], ValueError, "lengths [2], because the input has 2 sequences, got [1]."),
        ([[5, 5]], ValueError, "lengths [2], because the input has 2 sequences, got [1, 2]."),
        ([True, False], TypeError, "lengths to be ints, because they count steps, got [True, False]."),
    ],
)
def test_bad_lengths_are_refused(name: str, lengths: Any, error: type[Exception], expected: str) -> None:
    layer = plain(name)
    for given in (lengths, torch.tensor(lengths)):
        with pytest.raises(error, match=message(f"{type(layer).__name__}: expected {expected}")):
            layer(torch.zeros(5, 2, 32), lengths=given)


@every_layer
@pytest.mark.parametrize("lengths", ["ab", [None, 2], [[1], [2, 3]], [5, "5"]])
def test_lengths_that_are_no_numbers_are_refused(name: str, lengths: Any) -> None:
    layer = plain(name)
    expected = f"{type(layer).__name__}: expected lengths to be a Tensor or a list of ints, got {lengths!r}."
    with pytest.raises(TypeError, match=message(expected)):
        layer(torch.zeros(5, 2, 32), lengths=lengths)


@every_layer
def test_packed_sequences_of_wrong_shape_are_refused(name: str) -> None:
    layer = plain(name)
    own = type(layer).__name__
    for width, got in (([31], "[T, 31]"), ([], "[T]"), ([32, 2], "[T, 32, 2]")):
        packed = pack_sequence([torch.zeros(3, *width), torch.zeros(2, *width)])
        expected = f"{own}: expected packed sequences [T, 32] each, because input_size=32, got {got}."
        with pytest.raises(ValueError, match=message(expected)):
            layer(packed)


def test_delays_by_count_that_no_memory_holds_are_refused() -> None:
    with pytest.raises(
        ValueError,
        match=message(
            "MIST: expected delays <= 20 as a count, because 64 of them would grow beyond 524288; give a list to choose "
            "them, got 64."
        ),
    ):
        MIST(3, 4, delays=64)


@every_layer
def test_lengths_where_there_is_nothing_to_measure_are_refused(name: str) -> None:
    layer = plain(name)
    own = type(layer).__name__
    with pytest.raises(ValueError, match=f"^{own}: expected no lengths, because unbatched input is one sequence"):
        layer(torch.zeros(5, 32), lengths=[5])
    with pytest.raises(ValueError, match=f"^{own}: expected no lengths, because a PackedSequence has its own"):
        layer(pack_sequence([torch.zeros(5, 32)]), lengths=[5])


@every_layer
@pytest.mark.parametrize(
    ("reset", "error", "expected"),
    [
        (torch.zeros(5, 2), TypeError, "reset to be a bool Tensor [T, B], true where a sequence begins, got torch.f"),
        ([[True]], TypeError, "reset to be a bool Tensor [T, B], true where a sequence begins, got list"),
        (torch.zeros(2, 5, dtype=torch.bool), ValueError, "reset [T, B] = [5, 2] as the input, got [2, 5]"),
        (torch.zeros(5, 2, dtype=torch.bool, device="meta"), ValueError, "reset on cpu, because the parameters are"),
    ],
)
def test_bad_reset_is_refused(name: str, reset: Any, error: type[Exception], expected: str) -> None:
    layer = plain(name)
    with pytest.raises(error, match="^" + re.escape(f"{type(layer).__name__}: expected {expected}")):
        layer(torch.zeros(5, 2, 32), reset=reset)


@pytest.mark.parametrize(
    ("layer", "state", "error", "expected"),
    [
        (
            MIST(4, 8, delays=3),
            (torch.zeros(1, 2, 8), torch.zeros(1, 3, 2, 8)),
            ValueError,
            "MIST: expected state's history [1, 4, 2, 8], because num_layers * directions = 1, the longest delay is 4, "
            "the batch has 2 and hidden_size=8, got [1, 3, 2, 8].",
        ),
        (
            MIST(4, 8, delays=3),
            (torch.zeros(1, 2, 7), torch.zeros(1, 4, 2, 8)),
            ValueError,
            "MIST: expected state's h [1, 2, 8], because num_layers * directions = 1, the batch has 2 and hidden_size=8, "
            "got [1, 2, 7].",
        ),
        (
            MIST(4, 8, delays=3),
            (torch.zeros(1, 2, 8), torch.zeros(1, 2, 8)),
            ValueError,
            "MIST: expected state to be the pair (h, history) that an earlier call returned, or h alone to start from it, "
            "because history holds the last 4 states, [1, 4, 2, 8], and not a cell state as of an LSTM, got a second tensor "
            "[1, 2, 8].",
        ),
        (
            NARX(4, 8, delays=3),
            (torch.zeros(1, 2, 8),) * 3,
            TypeError,
            "NARX: expected state to be the pair (h, history), or h alone, got 3 in a tuple.",
        ),
        (
            RNN(4, 8),
            torch.zeros(1, 3, 8),
            ValueError,
            "RNN: expected state [1, 2, 8], because num_layers * directions = 1, the batch has 2 and hidden_size=8, "
            "got [1, 3, 8].",
        ),
        (LSTM(4, 8), torch.zeros(1, 2, 8), TypeError, "LSTM: expected state to be the tuple (h, c), got Tensor."),
        (
            LSTM(4, 8),
            (torch.zeros(1, 2, 8), torch.zeros(1, 2, 7)),
            ValueError,
            "LSTM: expected state's c [1, 2, 8], because num_layers * directions = 1, the batch has 2 and "
            "hidden_size=8, got [1, 2, 7].",
        ),
        (
            GRU(4, 8),
            (torch.zeros(1, 2, 8), torch.zeros(1, 2, 8)),
            TypeError,
            "GRU: expected state to be one Tensor, got 2 in a tuple.",
        ),
        (
            Clockwork(4, 8),
            (torch.zeros(1, 2, 8), torch.zeros(1, 2, 8)),
            ValueError,
            "Clockwork: expected state's clock [1, 2], because num_layers * directions = 1 and the batch has 2, "
            "got [1, 2, 8].",
        ),
        (
            Clockwork(4, 8),
            (torch.zeros(1, 2, 8), torch.zeros(1, 2)),
            TypeError,
            "Clockwork: expected state's clock of torch.int64, got torch.float32.",
        ),
        (NARX(4, 8), 3, TypeError, "NARX: expected state's h to be a Tensor, got int."),
        (
            RNN(4, 8),
            torch.zeros(1, 2, 8, dtype=torch.float64),
            TypeError,
            "RNN: expected state of torch.float32, got torch.float64.",
        ),
        (
            RNN(4, 8),
            torch.zeros(1, 2, 8, device="meta"),
            ValueError,
            "RNN: expected state on cpu, because the parameters are there, got meta.",
        ),
    ],
)
def test_state_of_another_layer_or_batch_is_refused(
    layer: RecurrentLayer, state: Any, error: type[Exception], expected: str
) -> None:
    with pytest.raises(error, match=message(expected)):
        layer(torch.zeros(5, 2, 4), state)


@pytest.mark.parametrize("kind", [MIST, NARX])
@pytest.mark.parametrize(
    ("delays", "error", "expected"),
    [
        (0, ValueError, "delays >= 1, got 0."),
        (-2, ValueError, "delays >= 1, got -2."),
        ([], ValueError, "at least one of delays, got an empty list."),
        ([1, 0], ValueError, "delays >= 1, because they count steps, got 0 in [1, 0]."),
        ([1, -4], ValueError, "delays >= 1, because they count steps, got -4 in [1, -4]."),
        ([1, 2, 1], ValueError, "distinct delays, got 1 more than once in [1, 2, 1]."),
        ([1, 2.5], TypeError, "delays to be ints, got 2.5 in [1, 2.5]."),
        ([True], TypeError, "delays to be ints, got True in [True]."),
        ("12", TypeError, "delays to be an int or a list of ints, got '12'."),
        (np.array([1, 1]), ValueError, "distinct delays, got 1 more than once in [1, 1]."),
        (None, TypeError, "delays to be an int or a list of ints, got None."),
    ],
)
def test_bad_delays_are_refused(kind: type, delays: Any, error: type[Exception], expected: str) -> None:
    with pytest.raises(error, match=message(f"{kind.__name__}: expected {expected}")):
        kind(3, 4, delays=delays)


def test_hidden_size_that_does_not_divide_into_the_periods_is_refused() -> None:
    with pytest.raises(
        ValueError,
        match=message(
            "Clockwork: expected hidden_size to be a multiple of 3, because the units fall into equal groups, one for "
            "each of periods=[1, 2, 4], got 8."
        ),
    ):
        Clockwork(3, 8, periods=3)


def test_repeated_periods_are_refused() -> None:
    with pytest.raises(
        ValueError, match=message("Clockwork: expected distinct periods, got 2 more than once in [2, 2].")
    ):
        Clockwork(3, 8, periods=[2, 2])


@every_layer
@pytest.mark.parametrize(
    ("options", "error", "expected"),
    [
        ({"input_size": 0}, ValueError, "input_size >= 1, got 0."),
        ({"hidden_size": -8}, ValueError, "hidden_size >= 1, got -8."),
        ({"hidden_size": 8.0}, TypeError, "hidden_size to be an int, got 8.0."),
        ({"num_layers": 0}, ValueError, "num_layers >= 1, got 0."),
        ({"num_layers": True}, TypeError, "num_layers to be an int, got True."),
        ({"zoneout": 1.0}, ValueError, "zoneout in [0, 1), because it is a probability, got 1.0."),
        ({"zoneout": float("nan")}, ValueError, "zoneout in [0, 1), because it is a probability, got nan."),
        (
            {"recurrent_dropout": -0.1},
            ValueError,
            "recurrent_dropout in [0, 1), because it is a probability, got -0.1.",
        ),
        ({"dropout": 1.5}, ValueError, "dropout in [0, 1], because it is a probability, got 1.5."),
        ({"dropout": "0.5"}, TypeError, "dropout to be a probability, got '0.5'."),
        ({"bias": "tanh"}, TypeError, "bias to be a bool, got 'tanh'."),
        ({"batch_first": 0.5}, TypeError, "batch_first to be a bool, got 0.5."),
        ({"bidirectional": "no"}, TypeError, "bidirectional to be a bool, got 'no'."),
        ({"layer_norm": 1}, TypeError, "layer_norm to be a bool, got 1."),
        ({"layer_norm": None}, TypeError, "layer_norm to be a bool, got None."),
        ({"bias": np.array([True])}, TypeError, "bias to be a bool, got array([ True])."),
    ],
)
def test_bad_constructor_arguments_are_refused(
    name: str, options: dict[str, Any], error: type[Exception], expected: str
) -> None:
    kind = LAYERS[name]
    with pytest.raises(error, match=message(f"{kind.__name__}: expected {expected}")):
        kind(**{"input_size": 3, "hidden_size": 8, **options})


@every_layer
def test_layer_norm_of_single_units_is_refused(name: str) -> None:
    hidden, own = (8 if name == "clockwork" else 1), LAYERS[name].__name__
    with pytest.raises(
        ValueError,
        match=message(
            f"{own}: expected at least 2 units to normalise together, because one alone always becomes 0, got "
            f"hidden_size={hidden} in groups of 1."
        ),
    ):
        LAYERS[name](3, hidden, layer_norm=True)


@every_layer
def test_dropout_with_one_layer_warns_as_torch_does(name: str) -> None:
    with pytest.warns(UserWarning, match="dropout=0.5 has no effect, because it acts between layers") as caught:
        LAYERS[name](3, 8, dropout=0.5)
    assert caught[0].filename == __file__  # the warning points at the caller's line


@every_layer
def test_bad_streams_are_refused(name: str) -> None:
    own = LAYERS[name].__name__
    with pytest.raises(ValueError, match=f"^{own}: expected bidirectional=False for a stream"):
        plain(name, bidirectional=True).stream()
    with pytest.raises(ValueError, match=f"^{own}: expected evaluation mode for a stream"):
        plain(name, zoneout=0.1).stream()
    with pytest.raises(ValueError, match=f"^{own}: expected batch_size >= 1, got 0"):
        plain(name).stream(0)
    stream = plain(name).stream(2)
    with pytest.raises(ValueError, match=re.escape(f"{own}.stream: expected input [2, 32], one step of 2 sequences")):
        stream(torch.zeros(5, 2, 32))
    with pytest.raises(TypeError, match=f"^{own}: expected input of torch.float32, .* got torch.float64"):
        stream(torch.zeros(2, 32, dtype=torch.float64))
    with pytest.raises(ValueError, match=re.escape(f"{own}: expected reset [B] = [2] as the input, got [3]")):
        stream(torch.zeros(2, 32), torch.zeros(3, dtype=torch.bool))
    with pytest.raises((ValueError, TypeError), match=f"^{own}: expected state"):
        plain(name).stream(2, torch.zeros(1, 1))


@pytest.mark.parametrize(
    ("kind", "module", "error", "expected"),
    [
        (LSTM, nn.GRU(3, 4), TypeError, "LSTM.from_torch: expected torch.nn.LSTM, got GRU."),
        (RNN, nn.LSTMCell(3, 4), TypeError, "RNN.from_torch: expected torch.nn.RNN, got LSTMCell."),
    ],
)
def test_modules_without_a_twin_are_refused(
    kind: Any, module: nn.Module, error: type[Exception], expected: str
) -> None:
    with pytest.raises(error, match=message(expected)):
        kind.from_torch(module)


@pytest.mark.parametrize("kind", [RNN, LSTM, GRU])
@pytest.mark.parametrize("option", [{"zoneout": 0.5}, {"recurrent_dropout": 0.5}, {"layer_norm": True}])
def test_layers_that_torch_cannot_express_are_refused(kind: Any, option: dict[str, Any]) -> None:
    (name, value), own = next(iter(option.items())), kind.__name__
    with pytest.raises(
        ValueError, match=message(f"{own}.to_torch: expected no {name}, because torch.nn has none, got {value}.")
    ):
        kind(3, 4, **option).to_torch()


def test_unknown_layer_name_lists_the_known_ones() -> None:
    expected = "expected a layer among mist, narx, clockwork, rnn, lstm, peephole_lstm, gru, got 'mits'."
    with pytest.raises(ValueError, match=message(expected)):
        layer_class("mits")
    with pytest.raises(ValueError, match=message(expected)):
        match_parameters("mits", 1000, 1, 10)


def test_budget_that_nothing_meets_names_the_smallest() -> None:
    with pytest.raises(
        ValueError,
        match=message(
            "match_parameters: expected a budget of at least 50 parameters, because that is MIST with hidden_size=1 "
            "and its readout, got 5."
        ),
    ):
        match_parameters(MIST, 5, input_size=1, output_size=10)
    for not_ours in (nn.LSTM, None, RNN(1, 1)):
        with pytest.raises(
            TypeError, match="match_parameters: expected layer to be a class of mistrnn or its name, got"
        ):
            match_parameters(not_ours, 5, input_size=1, output_size=10)
    with pytest.raises(ValueError, match="match_parameters: expected budget >= 1, got 0"):
        match_parameters(MIST, 0, input_size=1, output_size=10)


@every_layer
def test_a_nested_tensor_is_refused(name: str) -> None:
    layer = plain(name)
    nested = torch.nested.nested_tensor([torch.zeros(3, 32), torch.zeros(5, 32)], layout=torch.jagged)
    expected = "expected a padded input with its lengths, or a PackedSequence, got a nested tensor."
    with pytest.raises(TypeError, match=message(f"{type(layer).__name__}: {expected}")):
        layer(nested)


@every_layer
def test_parameters_of_several_dtypes_are_named(name: str) -> None:
    layer = plain(name)
    layer.weight_ih_l0.data = layer.weight_ih_l0.data.double()
    expected = "expected all parameters in one dtype, got weight_hh in torch.float32 and weight_ih in torch.float64."
    with pytest.raises(TypeError, match=message(f"{type(layer).__name__}: {expected}")):
        layer(torch.zeros(3, 2, 32))
