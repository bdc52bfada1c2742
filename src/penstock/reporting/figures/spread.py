"""A histogram of one number an image, with its median and 95th percentile."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from penstock.reporting.figures.style import INK, MUTED, SERIES, new_figure, styled, tidy

_BINS = 24


def spread_figure(
    values: np.ndarray[Any, Any], *, label: str, title: str = "", width: float = 340, height: float = 220
) -> Figure:
    """values: (image,)."""
    with styled():
        figure = new_figure(width, height)
        axes = figure.add_subplot()
        axes.hist(values, bins=_BINS, color=SERIES[0])
        for share, name in ((50, "p50"), (95, "p95")):
            place = float(np.percentile(values, share))
            axes.axvline(place, color=MUTED, linewidth=1.2, linestyle="--")
            axes.annotate(
                name,
                (place, 1),
                (3, -3),
                xycoords=("data", "axes fraction"),
                textcoords="offset points",
                va="top",
                fontsize=9,
            )
        axes.set_title(title, color=INK)
        axes.set_xlabel(label)
        axes.set_ylabel("images")
        tidy(axes, grid="y")
    return figure
