"""The table and the figures of `results/cifar10`, from the files that the commands left there.

    python results/summary.py            # prints the table as Markdown, draws results/figures/*.png

Reads `evaluate.json` of each run (`penstock evaluate … --json`); the figures of skipped channels are drawn
from the shipped d = 0.5 network on the embedded images.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from penstock.datasets import sample
from penstock.reporting import skip_maps
from penstock.reporting.figures import Curve, CurvePoint, save_figure, skipping_figure, tradeoff_figure
from penstock.zoo import pretrained

_HERE = Path(__file__).resolve().parent
_DATA = _HERE / "cifar10"
# What is compared: its name, the run, the density, and the paper's top-1 for it.
_ROWS: tuple[tuple[str, str, float, float | None], ...] = (
    ("dense", "dense-s0b", 1.0, 91.37),
    ("FBS, d = 0.7 (2.0×)", "d70-s0", 0.7, 91.55),
    ("FBS, d = 0.5 (3.93×)", "d50-s2", 0.5, 90.59),
    ("FBS, d = 0.5, 7 epochs fewer, the paper's statistics", "d50-s0b", 0.5, 90.59),
    ("the same, second seed", "d50-s1", 0.5, 90.59),
    ("FBS, d = 0.3", "d30-s1", 0.3, None),
    ("FBS, d = 0.3, 7 epochs fewer, the paper's statistics", "d30-s0", 0.3, None),
    ("any-density, d = 1.0", "any-s1d", 1.0, None),
    ("any-density, d = 0.7", "any-s1d", 0.7, None),
    ("any-density, d = 0.5", "any-s1d", 0.5, None),
    ("any-density, d = 0.3", "any-s1d", 0.3, None),
    ("NS (1.19×)", "ns-s0", 1.0, 90.5),
    ("NS+FBS, d = 0.6 (3.22×)", "nsfbs-s0", 0.6, 90.5),
)
_CURVES = {
    "FBS": ("d70-s0", "d50-s2", "d30-s1"),
    "any-density": ("any-s1d",),
    "NS": ("ns-s0",),
    "NS+FBS": ("nsfbs-s0",),
}
_PAPER = Curve("paper's FBS", (CurvePoint(86.9e6, 91.55, "d = 0.7"), CurvePoint(44.3e6, 90.59, "d = 0.5")))


def rows_of(run: str) -> list[dict[str, Any]]:
    """The densities that were scored for a run, in float32; none if it has not been."""
    path = _DATA / run / "evaluate.json"
    rows = json.loads(path.read_text())["rows"] if path.exists() else []
    return [row for row in rows if row.get("precision", "float32") == "float32"]


def table() -> str:
    """Markdown: what the paper has and what came out here."""
    lines = [
        "| network | paper | here | MACs (paper's count) | executed |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name, run, density, paper in _ROWS:
        found = [row for row in rows_of(run) if abs(row.get("density", 1.0) - density) < 1e-6]
        if not found:
            continue
        row = found[0]
        cells = (
            name,
            "" if paper is None else f"{paper:.2f}%",
            f"**{row['top1']:.2f}%**",
            f"{row['macs_paper'] / 1e6:.1f}M",
            f"{row['macs_executed'] / 1e6:.1f}M",
        )
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def draw() -> None:
    """The trade-off of every method, and which class skips which channel."""
    folder = _HERE / "figures"
    folder.mkdir(exist_ok=True)
    curves = [_PAPER]
    for method, runs in _CURVES.items():
        points = [
            CurvePoint(row["macs_paper"], row["top1"], f"d = {row.get('density', 1.0):g}")
            for run in runs
            for row in rows_of(run)
        ]
        if points:
            curves.append(Curve(method, tuple(points)))
    dense = rows_of("dense-s0b")
    baseline = CurvePoint(dense[0]["macs_paper"], dense[0]["top1"], "dense") if dense else None
    save_figure(tradeoff_figure(curves, baseline), folder / "tradeoff.png")
    data = sample()
    for number, one in enumerate(skip_maps(pretrained("m_cifarnet-cifar10-d50"), data)):
        if number in (1, 4, 6):
            figure = skipping_figure(
                one.probability, one.never_used, one.order, data.classes, title=f"conv{number}", width=680
            )
            save_figure(figure, folder / f"skipping-conv{number}.png")


if __name__ == "__main__":
    print(table())
    draw()
