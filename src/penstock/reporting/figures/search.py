"""A search for densities: how the loss fell round by round, and what every layer got."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from penstock.reporting.figures.style import MUTED, SERIES, new_figure, styled, tidy


def search_figure(
    losses: Sequence[float],
    densities: Mapping[str, float],
    uniform: float,
    *,
    width: float = 760,
    height: float = 320,
) -> Figure:
    """losses: of the uniform start and after every round. densities: by layer, in the order they run."""
    with styled():
        figure = new_figure(width, height)
        left, right = figure.subplots(1, 2, width_ratios=(2, 3))
        left.plot(range(len(losses)), losses, color=SERIES[0], marker="o", markersize=5)
        left.set_xlabel("round")
        left.set_ylabel("divergence from density 1, nats")
        left.xaxis.set_major_locator(MaxNLocator(integer=True))
        tidy(left, grid="y")
        places = range(len(densities))
        right.bar(places, list(densities.values()), color=SERIES[0], width=0.7)
        right.axhline(uniform, color=MUTED, linewidth=1.2, linestyle="--", label=f"uniform {uniform:.2f}")
        right.set_xticks(places, list(densities), rotation=90 if len(densities) > 6 else 0)
        right.set_ylabel("density")
        right.set_ylim(0, 1.05)
        tidy(right, grid="y")
        right.legend(loc="upper right")
    return figure
