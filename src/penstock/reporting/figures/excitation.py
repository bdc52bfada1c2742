"""What excites a channel (the paper's first figure): images, the number below each, the distribution."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from penstock.reporting.figures.style import INK, LINE, MUTED, SERIES, new_figure, styled, tidy

Array = np.ndarray[Any, Any]


def excitation_figure(
    high: Sequence[tuple[Array, float]],
    low: Sequence[tuple[Array, float]],
    *,
    title: str = "",
    width: float = 340,
) -> Figure:
    """high, low: (image, maximum) pairs; an image is uint8 (channel, height, width)."""
    columns = max(len(high), len(low), 1)
    rows = (("high\nresponse", high), ("low\nresponse", low))
    with styled():
        figure = new_figure(width, 2 * ((width - 60) / columns + 22) + 34)
        grid = figure.subplots(2, columns, squeeze=False)
        for (name, row), cells in zip(rows, grid, strict=True):
            cells[0].set_ylabel(name, rotation=0, ha="right", va="center", color=MUTED, fontsize=9)
            for cell in cells:
                cell.set_xticks([])
                cell.set_yticks([])
                cell.spines[:].set_visible(False)
            for cell, (image, value) in zip(cells, row, strict=False):
                cell.imshow(_as_picture(image), interpolation="none")
                cell.set_xlabel(f"{value:.3f}", color=INK, fontsize=10, labelpad=2)
        figure.suptitle(title, fontsize=11, fontweight="bold", color=INK, x=0.02, ha="left")
    return figure


def maxima_figure(
    values: Array, *, channels: int = 20, title: str = "", width: float = 340, height: float = 230
) -> Figure:
    """values: (image, channel). Box = the middle half of the images, whiskers = 1% to 99%, dots beyond."""
    shown = np.asarray(values, dtype=float)[:, :channels]
    with styled():
        figure = new_figure(width, height)
        axes = figure.add_subplot()
        axes.axhline(0, color=LINE, linewidth=1, zorder=0)
        axes.boxplot(
            list(shown.T),
            positions=range(shown.shape[1]),
            whis=(1, 99),
            widths=0.6,
            patch_artist=True,
            boxprops={"facecolor": SERIES[0], "edgecolor": "none"},
            medianprops={"color": INK, "linewidth": 1.5},
            whiskerprops={"color": SERIES[0], "linewidth": 1.2},
            showcaps=False,
            flierprops={
                "marker": ".",
                "markersize": 2.5,
                "markerfacecolor": MUTED,
                "markeredgecolor": "none",
            },
        )
        step = 1 if width > 480 else 4
        axes.set_xticks(range(0, shown.shape[1], step), [str(c) for c in range(0, shown.shape[1], step)])
        axes.set_xlabel("channel")
        axes.set_ylabel("maximum in the channel")
        axes.set_title(title, color=INK)
        tidy(axes)
    return figure


def _as_picture(image: Array) -> Array:
    picture = np.transpose(np.asarray(image), (1, 2, 0))
    if picture.shape[2] == 3:
        return picture
    return np.repeat(picture[:, :, :1], 3, axis=2)  # grey images, and the first band of anything else
