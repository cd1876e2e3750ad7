"""The layers, by class and by name."""

from mistrnn.layers._layer import RecurrentLayer
from mistrnn.layers._match import count_parameters, match_parameters
from mistrnn.layers._names import LAYERS, layer_class
from mistrnn.layers.clockwork import Clockwork
from mistrnn.layers.gru import GRU
from mistrnn.layers.lstm import LSTM
from mistrnn.layers.mist import MIST
from mistrnn.layers.narx import NARX
from mistrnn.layers.rnn import RNN

__all__ = [
    "GRU",
    "LAYERS",
    "LSTM",
    "MIST",
    "NARX",
    "RNN",
    "Clockwork",
    "RecurrentLayer",
    "count_parameters",
    "layer_class",
    "match_parameters",
]
