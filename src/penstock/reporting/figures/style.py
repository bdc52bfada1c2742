"""One look for all figures, and the ways out: a file, or SVG text that follows a page's light or dark theme.

Colours are Okabe and Ito's, told apart also by colour-blind readers, and every series has its own marker. In
the SVG for a page each colour becomes a CSS variable (`var(--ink, #1f2430)`), so one figure serves both
themes; sizes are CSS pixels (72 to matplotlib's inch), so a figure 340 wide is readable on a phone as it is.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from penstock.files import write_atomically

INK, MUTED, LINE = "#1f2430", "#5d6675", "#d9dee6"
SERIES = ("#0072b2", "#d55e00", "#009e73", "#a8457f", "#8a6d00", "#3b8ea5")
MARKERS = ("o", "s", "^", "D", "v", "P")
HEAT = LinearSegmentedColormap.from_list("penstock", ["#08233f", "#14507f", "#4e94b8", "#aacbd2", "#f3eee1"])
"""Dark = computed, bright = skipped (as in the paper); lightness rises throughout: it survives greyscale."""

_VARIABLES = {INK: "--ink", MUTED: "--muted", LINE: "--line"} | {
    colour: f"--series-{index}" for index, colour in enumerate(SERIES, 1)
}
_SETTINGS: dict[str, Any] = {
    "font.family": ["DejaVu Sans"],
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 10,
    "axes.edgecolor": LINE,
    "axes.labelcolor": MUTED,
    "axes.titlecolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": False,
    "grid.color": LINE,
    "grid.linewidth": 0.8,
    "xtick.color": LINE,
    "ytick.color": LINE,
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": MUTED,
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
    "text.color": INK,
    "legend.frameon": False,
    "lines.linewidth": 2,
    "hatch.color": MUTED,
    "hatch.linewidth": 1,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
    "svg.fonttype": "none",
    "svg.hashsalt": "penstock",
}


@contextmanager
def styled() -> Iterator[None]:
    """Draw with our settings, whatever the user's matplotlibrc says, and leave theirs alone afterwards."""
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(_SETTINGS)
        yield


def new_figure(width: float, height: float) -> Figure:
    """An empty figure of width × height CSS pixels; no pyplot, so no window and no global state."""
    figure = Figure(figsize=(width / 72, height / 72), dpi=72, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def tidy(axes: Axes, *, grid: str | None = None) -> None:
    """No tick marks, and a faint grid along one axis if asked."""
    axes.tick_params(length=0)
    if grid:
        axes.grid(axis=grid)  # type: ignore[arg-type]


def save_figure(figure: Figure, path: str | Path) -> None:
    """Write as the suffix says (.svg, .png, .pdf), on white so that it is readable wherever it is pasted."""
    path = Path(path)
    buffer = io.BytesIO()
    with styled():
        stamp = {"Date": None} if path.suffix == ".svg" else None
        figure.savefig(buffer, format=path.suffix.lstrip("."), dpi=160, facecolor="white", metadata=stamp)
    write_atomically(path, buffer.getvalue())


def to_svg(figure: Figure, name: str, alt: str) -> str:
    """The figure as an <svg> element for a page: `name` keeps its ids apart, `alt` is read aloud."""
    buffer = io.StringIO()
    with styled():
        figure.savefig(buffer, format="svg", dpi=72, metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    used = set(re.findall(r'(?:href="#|url\(#)([^")]+)', text))
    text = re.sub(
        r' id="([^"]+)"', lambda found: f' id="{name}-{found[1]}"' if found[1] in used else "", text
    )
    text = re.sub(r'(href="#|url\(#)', rf"\1{name}-", text)
    text = re.sub(r"'DejaVu Sans'[^;\"]*", "system-ui, sans-serif", text)
    for colour, variable in _VARIABLES.items():
        text = re.sub(rf"(:\s*){colour}", rf"\1var({variable}, {colour})", text)
    width, height = figure.get_size_inches() * 72
    opening = (
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" role="img" '
        f'aria-label="{escape(alt, quote=True)}" viewBox="0 0 {width:g} {height:g}" '
        f'style="max-width: {width:g}px">'
    )
    return re.sub(r"\n\s*", "\n", opening + text[text.index(">") + 1 :]).strip()
