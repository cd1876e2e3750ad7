"""LSTM: its equations (`reference`) and its module (`layer`)."""

from mistrnn.layers.lstm.layer import LSTM

__all__ = ["LSTM"]
