"""GRU: its equations (`reference`) and its module (`layer`)."""

from mistrnn.layers.gru.layer import GRU

__all__ = ["GRU"]
