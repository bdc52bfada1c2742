"""The picture of a server under load."""

from __future__ import annotations

import math

from penstock.reporting.figures.serving import serving_figure


def test_a_half_second_without_answers_is_a_gap_and_no_zero() -> None:
    timeline = [(0.0, 4.0, 12.0, 1.0), (0.5, 0.0, 0.0, 0.0), (1.0, 4.0, 11.0, 0.9)]
    figure = serving_figure({"controller": {"timeline": timeline}}, 20.0)
    top, middle, bottom = figure.axes
    latency, density = (list(axes.lines[0].get_ydata()) for axes in (top, middle))
    assert (latency[0], density[2]) == (12.0, 0.9)
    assert math.isnan(latency[1])
    assert math.isnan(density[1])
    assert list(bottom.lines[0].get_ydata()) == [4.0, 0.0, 4.0]
