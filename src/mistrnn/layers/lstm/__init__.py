"""LSTM: its equations (`reference`), its declaration (`cell`) and its module (`layer`)."""

from mistrnn.layers.lstm.cell import CELL
from mistrnn.layers.lstm.layer import LSTM

__all__ = ["CELL", "LSTM"]
