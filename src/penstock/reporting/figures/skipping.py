"""Heat maps of channel skipping: a row a class, a column a channel, never-used channels striped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from penstock.reporting.figures.style import HEAT, INK, MUTED, new_figure, styled, tidy

_MOST_NAMES = 20  # more classes than this and their names would not be readable
_MOST_ROWS = 200  # more than this and a row would be thinner than a pixel, and the page megabytes larger
_STRIPES = "////"

Array = np.ndarray[Any, Any]


def skipping_figure(
    probability: Array,
    never_used: Array,
    order: Array,
    classes: Sequence[str],
    *,
    title: str = "",
    width: float = 340,
    scale: bool = True,
) -> Figure:
    """probability: (class, channel); never_used: bool (channel,); order: (channel,), who stands where."""
    named = len(classes) <= _MOST_NAMES
    with styled():
        figure = new_figure(width, (14 * len(classes) if named else 190) + (95 if scale else 62))
        axes = figure.add_subplot()
        _draw(axes, probability, never_used, order)
        axes.set_title(title, color=INK)
        unused = int(np.sum(never_used))
        axes.set_xlabel(
            f"{len(order)} channels, rarely used first" + (f" ({unused} never, striped)" if unused else ""),
            fontsize=9,
        )
        axes.set_xticks([])
        if named:
            axes.set_yticks(range(len(classes)), [shorten(name) for name in classes])
        else:
            axes.set_yticks([])
            averaged = -(-len(classes) // _MOST_ROWS)
            axes.set_ylabel(f"{len(classes)} classes" + (f", {averaged} a row" if averaged > 1 else ""))
        if scale:
            _colour_bar(figure, axes)
    return figure


def history_figure(
    epochs: Sequence[tuple[int, Array, Array]], order: Array, *, title: str = "", width: float = 340
) -> Figure:
    """The maps of one layer over time, stacked: (epoch, probability, never_used) each, in one order."""
    with styled():
        figure = new_figure(width, 46 * len(epochs) + 96)
        panels = figure.subplots(len(epochs), 1, squeeze=False)[:, 0]
        for axes, (epoch, probability, never_used) in zip(panels, epochs, strict=True):
            _draw(axes, probability, never_used, order)
            axes.set_xticks([])
            axes.set_yticks([])
            axes.set_ylabel(
                f"epoch {epoch}" if axes is panels[0] else str(epoch),
                rotation=0,
                ha="right",
                va="center",
                fontsize=9,
            )
        panels[0].set_title(title, color=INK)
        panels[-1].set_xlabel(f"{len(order)} channels, in the order of epoch {epochs[0][0]}", fontsize=9)
        _colour_bar(figure, list(panels))
    return figure


def shorten(name: str, length: int = 14) -> str:
    """A class name that fits beside a small map."""
    return name if len(name) <= length else name[: length - 1] + "…"


def _draw(axes: Axes, probability: Array, never_used: Array, order: Array) -> None:
    shades = HEAT.with_extremes(bad="none")
    shown = averaged_rows(np.asarray(probability, dtype=float)[:, order])
    unused = np.asarray(never_used, dtype=bool)[order]
    shown[:, unused] = np.nan  # the stripes stand alone, on the page's own background
    axes.imshow(shown, cmap=shades, vmin=0, vmax=1, aspect="auto", interpolation="none")
    for start, stop in spans(unused):
        axes.add_patch(
            Rectangle(
                (start - 0.5, -0.5),
                stop - start,
                len(shown),
                fill=False,
                hatch=_STRIPES,
                linewidth=0,
                edgecolor=MUTED,
            )
        )
    axes.spines[:].set_visible(False)
    tidy(axes)


def averaged_rows(values: Array, most: int = _MOST_ROWS) -> Array:
    """(row, column): neighbouring rows averaged so that no more than `most` are left; NaN counts for nothing.

    >>> averaged_rows(np.array([[0.0], [1.0], [4.0]]), most=2).tolist()
    [[0.5], [4.0]]
    """
    step = -(-len(values) // most)
    if step <= 1:
        return values.copy()
    starts = np.arange(0, len(values), step)
    known = np.add.reduceat(~np.isnan(values), starts, axis=0, dtype=float)
    total = np.add.reduceat(np.nan_to_num(values), starts, axis=0)
    return np.where(known > 0, total / np.maximum(known, 1), np.nan)


def spans(flags: Array) -> list[tuple[int, int]]:
    """The runs of True as (start, stop).

    >>> spans(np.array([True, True, False, True]))
    [(0, 2), (3, 4)]
    """
    edges = np.flatnonzero(np.diff(np.concatenate([[False], flags, [False]]).astype(int)))
    return [(int(a), int(b)) for a, b in edges.reshape(-1, 2)]


def _colour_bar(figure: Figure, axes: Any) -> None:
    shades = ScalarMappable(Normalize(0, 1), HEAT)
    bar = figure.colorbar(shades, ax=axes, orientation="horizontal", aspect=36, pad=0.02, fraction=0.08)
    bar.set_ticks([0, 0.5, 1], labels=["always computed", "half", "always skipped"])
    labels = bar.ax.get_xticklabels()
    labels[0].set_horizontalalignment("left")
    labels[2].set_horizontalalignment("right")
    bar.ax.tick_params(length=0, labelsize=9)
    bar.outline.set_visible(False)  # type: ignore[operator]
