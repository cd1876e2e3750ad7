"""GRU: its equations (`reference`), its declaration (`cell`) and its module (`layer`)."""

from mistrnn.layers.gru.cell import CELL
from mistrnn.layers.gru.layer import GRU

__all__ = ["CELL", "GRU"]
