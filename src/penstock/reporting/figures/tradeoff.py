"""Accuracy against cost, one line a method.

Against MACs with the baseline circled, as in the paper's first result figure; or against measured
milliseconds, with the dense network's runtimes beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from penstock.reporting.figures.labels import CurvePoint, label_marks
from penstock.reporting.figures.style import INK, MARKERS, SERIES, new_figure, styled, tidy
from penstock.reporting.numbers import short_count

_KNOWN = ("FBS", "NS", "NS+FBS")  # these keep their colours whichever of them are there

_INSIDE = 6  # the legend of up to this many curves fits into the plot


@dataclass(frozen=True)
class Axis:
    """What costs are counted in: the words below the axis, and how a number is written."""

    words: str
    write: Callable[[float], str]


MACS = Axis("MACs an image", short_count)
MILLISECONDS = Axis("milliseconds an image, measured", "{:g}".format)


@dataclass(frozen=True)
class Curve:
    """The points of one method, in any order."""

    method: str
    points: tuple[CurvePoint, ...]


def tradeoff_figure(
    curves: Sequence[Curve],
    baseline: CurvePoint | None = None,
    *,
    accuracy: str = "top-1 accuracy",
    axis: Axis = MACS,
    marks: Sequence[CurvePoint] = (),
    width: float = 680,
    height: float = 400,
) -> Figure:
    """All curves on one plot, costs from left to right. marks: single points, each with its label."""
    looks = series_looks([curve.method for curve in curves])
    with styled():
        figure = new_figure(width, height)
        axes = figure.add_subplot()
        for curve in curves:
            points = sorted(curve.points, key=lambda point: (point.cost, point.accuracy))
            colour, marker = looks[curve.method]
            (line,) = axes.plot(
                [point.cost for point in points],
                [point.accuracy for point in points],
                color=colour,
                marker=marker,
                markersize=6,
                label=curve.method,
            )
            line.set_gid(f"curve-{curve.method}")
        if baseline is not None:
            ring = axes.scatter(
                [baseline.cost],
                [baseline.accuracy],
                s=150,
                facecolors="none",
                edgecolors=INK,
                linewidths=1.6,
                label="baseline",
                zorder=5,
            )
            ring.set_gid("baseline")
            axes.scatter([baseline.cost], [baseline.accuracy], s=14, color=INK, zorder=5)
        for mark in marks:
            place = axes.scatter([mark.cost], [mark.accuracy], s=52, marker="X", color=INK, zorder=5)
            place.set_gid(f"mark-{mark.label}")
        axes.set_xlabel(axis.words)
        axes.set_ylabel(f"{accuracy}, %")
        axes.margins(x=0.1 if marks else 0.05, y=0.12 if marks else 0.08)
        axes.set_xlim(left=0)
        axes.set_ylim(top=min(axes.get_ylim()[1], 100.4))  # no accuracy is above 100%
        axes.xaxis.set_major_locator(MaxNLocator(6 if width > 480 else 4))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: axis.write(value)))
        tidy(axes, grid="y")
        if curves or baseline is not None:  # marks carry their own labels
            corner, anchor = ("center left", (1.0, 0.5)) if len(curves) > _INSIDE else ("lower right", None)
            axes.legend(loc=corner, bbox_to_anchor=anchor, handlelength=2.2, labelcolor=INK)
        label_marks(axes, marks, [line for line in axes.lines if line.get_label() in looks])
    return figure


def series_looks(methods: Sequence[str]) -> dict[str, tuple[str, str]]:
    """A colour and a marker for every method: the paper's three keep theirs, others in turn."""
    names = [*_KNOWN, *(name for name in dict.fromkeys(methods) if name not in _KNOWN)]
    return {
        name: (SERIES[i % len(SERIES)], MARKERS[(i + i // len(SERIES)) % len(MARKERS)])
        for i, name in enumerate(names)
    }
