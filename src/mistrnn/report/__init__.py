"""Pictures of studies and analyses, the paper's figures, and the HTML page."""

from mistrnn.report._files import save_rows
from mistrnn.report.attention import draw_attention
from mistrnn.report.curves import Curves, draw_curves
from mistrnn.report.figure1 import draw_figure1
from mistrnn.report.figure3 import draw_figure3
from mistrnn.report.gradients import Norms, draw_figure2, draw_gradients, draw_weight_gradients
from mistrnn.report.labels import draw_confusion, draw_over_time, predictions
from mistrnn.report.page import Built, build_page
from mistrnn.report.texts import beyond_cells, estimate_text, percent, share_text

__all__ = [
    "Built",
    "Curves",
    "Norms",
    "beyond_cells",
    "build_page",
    "draw_attention",
    "draw_confusion",
    "draw_curves",
    "draw_figure1",
    "draw_figure2",
    "draw_figure3",
    "draw_gradients",
    "draw_over_time",
    "draw_weight_gradients",
    "estimate_text",
    "percent",
    "predictions",
    "save_rows",
    "share_text",
]
