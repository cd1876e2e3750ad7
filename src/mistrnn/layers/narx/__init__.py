"""NARX: its equations (`reference`), its declaration (`cell`) and its module (`layer`)."""

from mistrnn.layers.narx.cell import CELL
from mistrnn.layers.narx.layer import NARX

__all__ = ["CELL", "NARX"]
