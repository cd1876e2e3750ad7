"""MIST: its equations (`reference`), its declaration (`cell`) and its module (`layer`)."""

from mistrnn.layers.mist.cell import CELL
from mistrnn.layers.mist.layer import MIST

__all__ = ["CELL", "MIST"]
