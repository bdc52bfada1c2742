"""How a run went: accuracy and loss by epoch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from penstock.reporting.figures.style import INK, MUTED, SERIES, new_figure, styled, tidy


def progress_figure(
    history: Sequence[Mapping[str, Any]], *, title: str = "", width: float = 340, height: float = 300
) -> Figure:
    """history: the lines of a run's metrics; draws accuracy over loss, and the density if it changes."""
    losses = any(number(line.get(key)) for line in history for key in ("loss", "test_loss"))
    with styled():
        figure = new_figure(width, height if losses else 0.7 * height)
        if losses:
            axes, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
            _lines(
                below, history, (("test_loss", "test", SERIES[0], "-"), ("loss", "training", SERIES[1], "--"))
            )
            below.set_ylabel("loss")
            below.set_ylim(bottom=0)
            tidy(below, grid="y")
        else:
            axes = below = figure.add_subplot()
        _lines(
            axes,
            history,
            (("test_top1", "test", SERIES[0], "-"), ("train_top1", "training", SERIES[1], "--")),
        )
        axes.set_title(title, color=INK)
        below.set_xlabel("epoch")
        axes.set_ylabel("top-1, %")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
        tidy(axes, grid="y")
        densities = [(line["epoch"], line["density"]) for line in history if number(line.get("density"))]
        if len({density for _, density in densities}) > 1:
            twin = axes.twinx()
            twin.plot(
                *zip(*densities, strict=True), color=MUTED, linewidth=1.2, linestyle=":", label="density"
            )
            twin.set_ylim(0, 1.05)
            twin.set_ylabel("density")
            tidy(twin)
        if axes.get_legend_handles_labels()[0]:  # above the plot, where no curve can run through it
            axes.set_title(title, color=INK, pad=20)
            place = {
                "loc": "lower left",
                "bbox_to_anchor": (0.0, 1.0),
                "borderaxespad": 0.2,
                "borderpad": 0.0,
            }
            axes.legend(**place, ncols=2, labelcolor=INK, fontsize=9)
    return figure


def _lines(
    axes: Axes, history: Sequence[Mapping[str, Any]], kinds: Sequence[tuple[str, str, str, str]]
) -> None:
    """One line for each metric (key, name, colour, style) that the run recorded."""
    for key, name, colour, style in kinds:
        pairs = [(line["epoch"], line[key]) for line in history if number(line.get(key))]
        if pairs:
            epochs, values = zip(*pairs, strict=True)
            axes.plot(epochs, values, style, color=colour, label=name, marker="o", markersize=3)


def number(value: object) -> bool:
    """A finite number: a half-written or diverged run may hold anything."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
