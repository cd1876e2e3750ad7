"""LSTM with peepholes: its equations (`reference`), its declaration (`cell`) and its module (`layer`)."""

from mistrnn.layers.peephole_lstm.cell import CELL
from mistrnn.layers.peephole_lstm.layer import PeepholeLSTM

__all__ = ["CELL", "PeepholeLSTM"]
