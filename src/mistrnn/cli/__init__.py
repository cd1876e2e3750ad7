"""The `mist` command: studies, analysis, the paper's tables and figures, people's own data."""

from mistrnn.cli import analysis, models, paper, studies
from mistrnn.cli._app import app, run

__all__ = ["analysis", "app", "models", "paper", "run", "studies"]
