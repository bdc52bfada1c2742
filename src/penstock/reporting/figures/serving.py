"""A server under load: latency against its target, and density, second by second."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from penstock.reporting.figures.style import INK, MUTED, SERIES, new_figure, styled, tidy


def serving_figure(
    runs: Mapping[str, Any], target: float, *, width: float = 680, height: float = 460
) -> Figure:
    """runs: {label: {"timeline": [(seconds, requests a second, p95, density), …]}}; target: milliseconds."""
    with styled():
        figure = new_figure(width, height)
        top, middle, bottom = figure.subplots(3, 1, sharex=True, height_ratios=(3, 2, 1))
        for (label, run), colour in zip(runs.items(), SERIES, strict=False):
            seconds, _, p95, density = zip(*run["timeline"], strict=True)
            top.plot(seconds, _gaps(p95), color=colour, label=label)
            middle.plot(seconds, _gaps(density), color=colour)
        first = next(iter(runs.values()))["timeline"]
        bottom.plot([row[0] for row in first], [row[1] for row in first], color=INK, linewidth=1.2)
        top.axhline(target, color=MUTED, linestyle="--", linewidth=1.2, label=f"target {target:g} ms")
        top.set_yscale("log")
        top.set_ylabel("p95 latency, ms")
        top.legend(loc="upper right")
        middle.set_ylabel("density")
        middle.set_ylim(0, 1.05)
        bottom.set_ylabel("requests/s")
        bottom.set_xlabel("seconds")
        for axes in (top, middle, bottom):
            tidy(axes, grid="y")
    return figure


def _gaps(values: Sequence[float]) -> list[float]:
    """Where nothing was answered there is no latency and no density, and a line has a gap."""
    return [value or math.nan for value in values]
