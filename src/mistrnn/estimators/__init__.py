"""scikit-learn estimators around the layers: fit, predict, score, stream, save, export."""

try:
    import rich  # noqa: F401
    import safetensors  # noqa: F401
    import sklearn  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"mistrnn's estimators need {error.name}: pip install 'mistrnn[estimators]'.", name=error.name
    ) from error

from mistrnn.estimators._classes import Answer
from mistrnn.estimators._estimator import SequenceEstimator
from mistrnn.estimators._stream import EstimatorStream
from mistrnn.estimators.classifier import SequenceClassifier
from mistrnn.estimators.labeler import FrameLabeler
from mistrnn.estimators.network import Network
from mistrnn.estimators.regressor import SequenceRegressor

__all__ = [
    "Answer",
    "EstimatorStream",
    "FrameLabeler",
    "Network",
    "SequenceClassifier",
    "SequenceEstimator",
    "SequenceRegressor",
]
