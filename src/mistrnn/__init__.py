"""Recurrent layers with direct connections from the distant past, for PyTorch."""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from mistrnn.layers import GRU, LSTM, MIST, NARX, RNN, Clockwork, count_parameters, match_parameters

if TYPE_CHECKING:
    from mistrnn.estimators import FrameLabeler as FrameLabeler
    from mistrnn.estimators import SequenceClassifier as SequenceClassifier
    from mistrnn.estimators import SequenceRegressor as SequenceRegressor

__all__ = ["GRU", "LSTM", "MIST", "NARX", "RNN", "Clockwork", "__version__", "count_parameters", "match_parameters"]

__version__ = "0.1.0"

_ESTIMATORS = ("FrameLabeler", "SequenceClassifier", "SequenceRegressor")


def __getattr__(name: str) -> Any:
    """Load the estimators when somebody asks for them: they need scikit-learn, the layers only torch."""
    if name not in _ESTIMATORS:
        raise AttributeError(f"module 'mistrnn' has no attribute {name!r}")
    return getattr(import_module("mistrnn.estimators"), name)


def __dir__() -> list[str]:
    return sorted([*__all__, *(_ESTIMATORS if find_spec("sklearn") else ())])
