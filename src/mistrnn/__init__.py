"""Recurrent layers with direct connections from the distant past, for PyTorch."""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mistrnn.estimators import FrameLabeler as FrameLabeler
    from mistrnn.estimators import SequenceClassifier as SequenceClassifier
    from mistrnn.estimators import SequenceRegressor as SequenceRegressor
    from mistrnn.layers import (
        GRU,
        LSTM,
        MIST,
        NARX,
        RNN,
        Clockwork,
        ClockworkCell,
        GRUCell,
        HistoryState,
        LSTMCell,
        MISTCell,
        NARXCell,
        PeepholeLSTM,
        PeepholeLSTMCell,
        RecurrentLayer,
        RNNCell,
        convert,
        count_parameters,
        match_parameters,
    )

__all__ = [
    "GRU",
    "LSTM",
    "MIST",
    "NARX",
    "RNN",
    "Clockwork",
    "ClockworkCell",
    "GRUCell",
    "HistoryState",
    "LSTMCell",
    "MISTCell",
    "NARXCell",
    "PeepholeLSTM",
    "PeepholeLSTMCell",
    "RNNCell",
    "RecurrentLayer",
    "__version__",
    "convert",
    "count_parameters",
    "match_parameters",
]

__version__ = "0.2.0.dev0"

_ESTIMATORS = ("FrameLabeler", "SequenceClassifier", "SequenceRegressor")
_PACKAGES = ("analysis", "estimators", "layers", "models", "tasks", "training")


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: torch takes seconds, and the estimators need scikit-learn."""
    if name in _PACKAGES:
        return import_module(f"mistrnn.{name}")
    if name not in (*__all__, *_ESTIMATORS):
        raise AttributeError(f"module 'mistrnn' has no attribute {name!r}")
    found = getattr(import_module("mistrnn.estimators" if name in _ESTIMATORS else "mistrnn.layers"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted([*__all__, *(_ESTIMATORS if find_spec("sklearn") else ())])
