"""Clockwork: its equations (`reference`) and its module (`layer`)."""

from mistrnn.layers.clockwork.layer import Clockwork

__all__ = ["Clockwork"]
