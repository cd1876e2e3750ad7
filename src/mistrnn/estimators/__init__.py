"""scikit-learn estimators around the layers: fit, predict, score, stream, save, export."""

from mistrnn.estimators._estimator import SequenceEstimator
from mistrnn.estimators._stream import EstimatorStream
from mistrnn.estimators.classifier import SequenceClassifier, Spoken
from mistrnn.estimators.labeler import FrameLabeler
from mistrnn.estimators.network import Network
from mistrnn.estimators.regressor import SequenceRegressor

__all__ = [
    "EstimatorStream",
    "FrameLabeler",
    "Network",
    "SequenceClassifier",
    "SequenceEstimator",
    "SequenceRegressor",
    "Spoken",
]
