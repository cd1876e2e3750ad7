"""The layers, by class and by name."""

from mistrnn.layers.base import RecurrentLayer
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
from mistrnn.layers.clockwork import Clockwork
from mistrnn.layers.conversion import Conversion, convert
from mistrnn.layers.gru import GRU
from mistrnn.layers.lstm import LSTM
from mistrnn.layers.match import count_parameters, match_parameters
from mistrnn.layers.mist import MIST
from mistrnn.layers.names import LAYERS, layer_class
from mistrnn.layers.narx import NARX
from mistrnn.layers.peephole_lstm import PeepholeLSTM
from mistrnn.layers.rnn import RNN
from mistrnn.layers.state import HistoryState

__all__ = [
    "GRU",
    "LAYERS",
    "LSTM",
    "MIST",
    "NARX",
    "RNN",
    "Clockwork",
    "ClockworkCell",
    "Conversion",
    "GRUCell",
    "HistoryState",
    "LSTMCell",
    "MISTCell",
    "NARXCell",
    "PeepholeLSTM",
    "PeepholeLSTMCell",
    "RNNCell",
    "RecurrentCell",
    "RecurrentLayer",
    "convert",
    "count_parameters",
    "layer_class",
    "match_parameters",
]
