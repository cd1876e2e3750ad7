"""Studies on a Ray cluster: each group of trials is one computation on one worker.

Workers hold a group in training and nothing else. Every piece of work is a question of the process that runs the study and
an answer to it: all writing, all decisions and all progress stay in one place, and the study's folder need not be
reachable from the workers. A worker that dies loses the steps of its group since the last checkpoint.
"""

from mistrnn.training.cluster.engine import RayEngine

__all__ = ["RayEngine"]
