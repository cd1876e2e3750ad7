"""The `mist` command: data, studies, single models, analysis, the paper's tables and figures, the report, the demo."""

from mistrnn.cli import analysis, paper, studies
from mistrnn.cli._app import app, run

__all__ = ["analysis", "app", "paper", "run", "studies"]
