"""The `mist` command: studies, analysis, the paper's tables and figures, people's own data."""

from mistrnn.cli._app import app, run

__all__ = ["app", "run"]
