"""Networks for whole recordings and live signals: residual blocks around any of the layers, and random convolutions."""

from mistrnn.models.ensemble import Ensemble
from mistrnn.models.network import NetworkState, SequenceNetwork
from mistrnn.models.random_convolutions import RandomConvolutions
from mistrnn.models.standardisation import Arcsinh, Standardisation

__all__ = ["Arcsinh", "Ensemble", "NetworkState", "RandomConvolutions", "SequenceNetwork", "Standardisation"]
