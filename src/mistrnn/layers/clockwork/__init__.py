"""Clockwork: its equations (`reference`), its declaration (`cell`) and its module (`layer`)."""

from mistrnn.layers.clockwork.cell import CELL
from mistrnn.layers.clockwork.layer import Clockwork

__all__ = ["CELL", "Clockwork"]
