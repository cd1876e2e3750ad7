"""Networks for whole recordings and live signals: residual blocks around any of the layers."""

from mistrnn.models.ensemble import Ensemble
from mistrnn.models.network import NetworkState, SequenceNetwork

__all__ = ["Ensemble", "NetworkState", "SequenceNetwork"]
