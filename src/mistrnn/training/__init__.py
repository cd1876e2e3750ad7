"""Training: models, studies of many trials as one computation, and the folders that keep them."""

from mistrnn.training.cluster import RayEngine
from mistrnn.training.ledger import Interrupted, Progress
from mistrnn.training.model import Model
from mistrnn.training.recorded import Recorded
from mistrnn.training.study import Study
from mistrnn.training.sweep import Summary, plus_minus, run_study, study_task, summarise

__all__ = [
    "Interrupted",
    "Model",
    "Progress",
    "RayEngine",
    "Recorded",
    "Study",
    "Summary",
    "plus_minus",
    "run_study",
    "study_task",
    "summarise",
]
