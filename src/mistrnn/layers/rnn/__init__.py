"""RNN: its equations (`reference`), its declaration (`cell`) and its module (`layer`)."""

from mistrnn.layers.rnn.cell import CELL
from mistrnn.layers.rnn.layer import RNN

__all__ = ["CELL", "RNN"]
