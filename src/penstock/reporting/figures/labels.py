"""Labels of single points in a plot, each where no curve, no other point and no other label is below it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.text import Annotation
from matplotlib.transforms import Bbox, BboxBase

from penstock.reporting.figures.style import INK

Points = npt.NDArray[np.float64]

_PLACES = (  # offset in points and alignment, the preferred first
    (0, -16, "center", "baseline"),
    (0, 9, "center", "baseline"),
    (9, -16, "left", "baseline"),
    (-9, -16, "right", "baseline"),
    (9, 9, "left", "baseline"),
    (-9, 9, "right", "baseline"),
    (9, 0, "left", "center"),
    (-9, 0, "right", "center"),
    (0, -30, "center", "baseline"),
    (0, 23, "center", "baseline"),
)


@dataclass(frozen=True)
class CurvePoint:
    """One network at one setting; accuracy in percent, `label` says the setting ("d = 0.5")."""

    cost: float
    accuracy: float
    label: str = ""


def label_marks(axes: Axes, marks: Sequence[CurvePoint], curves: Sequence[Line2D]) -> None:
    """Write every mark's label near it, at the place that covers least of the curves and the other marks."""
    if not marks:
        return
    figure: Any = axes.get_figure(root=True)
    figure.draw_without_rendering()  # makes the layout, which places depend on
    points = axes.transData.transform([(mark.cost, mark.accuracy) for mark in marks])
    lines = [_along(axes.transData.transform(line.get_xydata())) for line in curves]
    taken = np.concatenate([points, *lines])
    legend = axes.get_legend()
    boxes: list[BboxBase] = [] if legend is None else [legend.get_window_extent()]
    for mark in marks:
        text = axes.annotate(
            mark.label,
            (mark.cost, mark.accuracy),
            (0, 0),
            textcoords="offset points",
            fontsize=8.5,
            color=INK,
        )
        costs = []
        for place in _PLACES:
            box = _move(text, place)
            over = sum(box.overlaps(other) for other in boxes)
            costs.append(box.count_contains(taken) + 1000 * over + 100 * _outside(box, figure.bbox))
        boxes.append(_move(text, _PLACES[int(np.argmin(costs))]))


def _move(text: Annotation, place: tuple[int, int, str, str]) -> Bbox:
    """Put the label there; returns the box that it then fills, with a little room."""
    x, y, side, height = place
    text.set(position=(x, y), ha=side, va=height)
    return text.get_window_extent().padded(2)


def _along(points: Points) -> Points:
    """Points every pixel or so along a line, (count, 2)."""
    pieces = [points]
    for start, end in pairwise(points):
        count = int(np.hypot(*(end - start))) + 1
        pieces.append(start + (end - start) * np.linspace(0.0, 1.0, count)[:, None])
    return np.concatenate(pieces)


def _outside(box: Bbox, whole: Bbox) -> float:
    """By how many pixels the box sticks out."""
    return max(0.0, whole.x0 - box.x0, box.x1 - whole.x1, whole.y0 - box.y0, box.y1 - whole.y1)
