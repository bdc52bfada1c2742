"""Arrays in, matplotlib figures out: nothing here knows networks, files or HTML."""

from penstock.reporting.figures.excitation import excitation_figure, maxima_figure
from penstock.reporting.figures.labels import CurvePoint
from penstock.reporting.figures.progress import progress_figure
from penstock.reporting.figures.skipping import history_figure, skipping_figure
from penstock.reporting.figures.spread import spread_figure
from penstock.reporting.figures.style import save_figure, to_svg
from penstock.reporting.figures.tradeoff import MILLISECONDS, Curve, tradeoff_figure

__all__ = [
    "MILLISECONDS",
    "Curve",
    "CurvePoint",
    "excitation_figure",
    "history_figure",
    "maxima_figure",
    "progress_figure",
    "save_figure",
    "skipping_figure",
    "spread_figure",
    "to_svg",
    "tradeoff_figure",
]
