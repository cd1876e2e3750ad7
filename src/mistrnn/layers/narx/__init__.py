"""NARX: its equations (`reference`) and its module (`layer`)."""

from mistrnn.layers.narx.layer import NARX

__all__ = ["NARX"]
