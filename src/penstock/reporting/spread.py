"""How images differ in cost, for networks whose gates have thresholds: numbers in, two histograms out."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.reporting.figures import spread_figure
from penstock.reporting.numbers import short_count, short_time
from penstock.reporting.page import Picture, picture

Array = np.ndarray[Any, Any]


def spread_pictures(macs: Array, milliseconds: Array | None, id_: str) -> tuple[Picture, ...]:
    """macs: executed, of each image; milliseconds: each image's least time, if they were measured.

    id_: makes the pictures' names unique on the page.
    """
    pictures = [_picture(macs / 1e6, macs, "million MACs an image", "MACs", short_count, id_)]
    if milliseconds is not None:
        pictures.append(
            _picture(milliseconds, milliseconds, "milliseconds an image", "Milliseconds", short_time, id_)
        )
    return tuple(pictures)


def _picture(shown: Array, values: Array, label: str, title: str, say: Any, id_: str) -> Picture:
    p50, p95 = np.percentile(values, (50, 95))
    words = (
        f"{len(values):,} images: mean {say(float(values.mean()))}, p50 {say(float(p50))}, "
        f"p95 {say(float(p95))}, most {say(float(values.max()))}."
    )
    figure = spread_figure(shown, label=label, title=title)
    return picture(figure, f"{id_} spread {title}", f"Histogram of {label}; {words}", words)
