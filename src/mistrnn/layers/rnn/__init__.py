"""RNN: its equations (`reference`) and its module (`layer`)."""

from mistrnn.layers.rnn.layer import RNN

__all__ = ["RNN"]
