"""Pictures of studies and analyses, and the paper's figures."""

from mistrnn.report._files import save_rows
from mistrnn.report.attention import draw_attention
from mistrnn.report.curves import Curves, draw_curves
from mistrnn.report.figure1 import draw_figure1
from mistrnn.report.gradients import Norms, draw_figure2, draw_gradients

__all__ = [
    "Curves",
    "Norms",
    "draw_attention",
    "draw_curves",
    "draw_figure1",
    "draw_figure2",
    "draw_gradients",
    "save_rows",
]
