"""Recurrent layers with direct connections from the distant past, for PyTorch."""

from mistrnn.layers import GRU, LSTM, MIST, NARX, RNN, Clockwork, match_parameters

__all__ = ["GRU", "LSTM", "MIST", "NARX", "RNN", "Clockwork", "__version__", "match_parameters"]

__version__ = "0.1.0"
