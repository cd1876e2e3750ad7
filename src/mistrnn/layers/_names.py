"""The name of each layer: its folder, its test file and its word on the command line."""

from mistrnn.layers._layer import RecurrentLayer
from mistrnn.layers.clockwork import Clockwork
from mistrnn.layers.gru import GRU
from mistrnn.layers.lstm import LSTM
from mistrnn.layers.mist import MIST
from mistrnn.layers.narx import NARX
from mistrnn.layers.rnn import RNN

LAYERS: dict[str, type[RecurrentLayer]] = {
    "mist": MIST,
    "narx": NARX,
    "clockwork": Clockwork,
    "rnn": RNN,
    "lstm": LSTM,
    "gru": GRU,
}


def layer_class(name: str) -> type[RecurrentLayer]:
    """Return the layer of that name.

    >>> layer_class("mist").__name__
    'MIST'
    """
    if name not in LAYERS:
        raise ValueError(f"expected a layer among {', '.join(LAYERS)}, got {name!r}.")
    return LAYERS[name]
