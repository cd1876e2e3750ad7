"""Pictures of studies."""

from mistrnn.report.curves import Curves, draw_curves

__all__ = ["Curves", "draw_curves"]
