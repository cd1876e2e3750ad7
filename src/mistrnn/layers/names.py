"""The name of each layer: its folder, its test file and its word on the command line."""

from collections.abc import Iterable, Mapping
from inspect import Parameter, signature
from typing import Any

from mistrnn.layers.base import RecurrentLayer
from mistrnn.layers.clockwork import Clockwork
from mistrnn.layers.gru import GRU
from mistrnn.layers.lstm import LSTM
from mistrnn.layers.mist import MIST
from mistrnn.layers.narx import NARX
from mistrnn.layers.peephole_lstm import PeepholeLSTM
from mistrnn.layers.rnn import RNN
from mistrnn.layers.torch_twin import TorchTwin

LAYERS: dict[str, type[RecurrentLayer]] = {
    "mist": MIST,
    "narx": NARX,
    "clockwork": Clockwork,
    "rnn": RNN,
    "lstm": LSTM,
    "peephole_lstm": PeepholeLSTM,
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


def single_bias(kind: type[RecurrentLayer], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a layer, with one bias per gate, as in the paper, unless they say otherwise.

    >>> single_bias(LSTM, {"num_layers": 2})
    {'single_bias': True, 'num_layers': 2}
    """
    return {**({"single_bias": True} if issubclass(kind, TorchTwin) else {}), **options}


def check_options(kind: type[RecurrentLayer], options: Iterable[str]) -> None:
    """Raise unless a layer has all these options, beside its sizes.

    >>> check_options(MIST, ["delay"])
    Traceback (most recent call last):
    ValueError: MIST: expected options among num_layers, bias, ..., delays, ..., got 'delay'.
    """
    known = signature(kind).parameters
    if any(parameter.kind is Parameter.VAR_KEYWORD for parameter in known.values()):
        return  # it hands them on, and only it knows to whom
    own = [name for name in known if name not in ("input_size", "hidden_size")]
    for name in options:
        if name not in own:
            raise ValueError(f"{kind.__name__}: expected options among {', '.join(own)}, got {name!r}.")
