"""Recurrent layers with direct connections from the distant past, for PyTorch."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from mistrnn.layers import GRU, LSTM, MIST, NARX, RNN, Clockwork, match_parameters

if TYPE_CHECKING:
    from mistrnn.estimators import FrameLabeler, SequenceClassifier, SequenceRegressor

__all__ = [
    "GRU",
    "LSTM",
    "MIST",
    "NARX",
    "RNN",
    "Clockwork",
    "FrameLabeler",
    "SequenceClassifier",
    "SequenceRegressor",
    "__version__",
    "match_parameters",
]

__version__ = "0.1.0"

_ESTIMATORS = ("FrameLabeler", "SequenceClassifier", "SequenceRegressor")


def __getattr__(name: str) -> Any:
    """Load the estimators when somebody asks for them: they need scikit-learn, the layers only torch."""
    if name not in _ESTIMATORS:
        raise AttributeError(f"module 'mistrnn' has no attribute {name!r}")
    try:
        estimators = import_module("mistrnn.estimators")
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("mistrnn"):
            raise
        raise ModuleNotFoundError(
            f"mistrnn.{name} needs {error.name}: pip install 'mistrnn[estimators]'.", name=error.name
        ) from error
    return getattr(estimators, name)


def __dir__() -> list[str]:
    return sorted(__all__)
