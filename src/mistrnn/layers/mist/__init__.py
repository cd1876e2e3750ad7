"""MIST: its equations (`reference`) and its module (`layer`)."""

from mistrnn.layers.mist.layer import MIST

__all__ = ["MIST"]
