"""How a run went: accuracy and loss by epoch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from penstock.reporting.figures.style import INK, MUTED, SERIES, new_figure, styled, tidy


def progress_figure(
    history: Sequence[Mapping[str, Any]], *, title: str = "", width: float = 340, height: float = 210
) -> Figure:
    """history: the lines of a run's metrics; draws both accuracies, and the density if it changes."""
    with styled():
        figure = new_figure(width, height)
        axes = figure.add_subplot()
        for key, name, colour, style in (
            ("test_top1", "test", SERIES[0], "-"),
            ("train_top1", "training", SERIES[1], "--"),
        ):
            pairs = [(line["epoch"], line[key]) for line in history if number(line.get(key))]
            if pairs:
                epochs, values = zip(*pairs, strict=True)
                axes.plot(epochs, values, style, color=colour, label=name, marker="o", markersize=3)
        axes.set_title(title, color=INK)
        axes.set_xlabel("epoch")
        axes.set_ylabel("top-1 accuracy, %")
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
        if axes.get_legend_handles_labels()[0]:
            axes.legend(loc="lower right", labelcolor=INK, fontsize=9)
    return figure


def number(value: object) -> bool:
    """A finite number: a half-written or diverged run may hold anything."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
