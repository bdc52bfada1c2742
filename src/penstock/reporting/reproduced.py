"""A reproduced table with its plots: written by `penstock reproduce` as NAME.table.json, read by the report.

What a file says is not trusted: one that cannot be read becomes a note.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from penstock.files import read_plain, write_atomically
from penstock.reporting.figures import MILLISECONDS, Curve, CurvePoint, tradeoff_figure
from penstock.reporting.figures.tradeoff import MACS
from penstock.reporting.tables import Cell, Column, Table

_SUFFIX = ".table.json"
_AXES = {"macs": MACS, "milliseconds": MILLISECONDS}


@dataclass(frozen=True)
class Plot:
    """Accuracy against `axis`, "macs" or "milliseconds"; `name`: of its file."""

    name: str
    axis: str
    accuracy: str
    curves: tuple[Curve, ...]
    marks: tuple[CurvePoint, ...] = ()
    baseline: CurvePoint | None = None

    def draw(self, width: float = 760, height: float = 440) -> Figure:
        """The plot."""
        return tradeoff_figure(
            self.curves,
            self.baseline,
            accuracy=self.accuracy,
            axis=_AXES[self.axis],
            marks=self.marks,
            width=width,
            height=height,
        )


@dataclass(frozen=True)
class Reproduced:
    """What a reproduction made."""

    name: str
    title: str
    table: Table
    plots: tuple[Plot, ...] = ()


def write_reproduced(made: Reproduced, folder: Path) -> Path:
    """Into NAME.table.json below `folder`."""
    path = folder / f"{made.name}{_SUFFIX}"
    write_atomically(path, json.dumps(asdict(made), indent=1).encode())
    return path


def read_reproduced(folder: Path) -> tuple[list[Reproduced], list[str]]:
    """Every table in `folder`, and notes about those that cannot be read."""
    found, notes = list[Reproduced](), list[str]()
    for path in sorted(folder.glob(f"*{_SUFFIX}")):
        try:
            found.append(_made(read_plain(path.read_text(encoding="utf-8"))))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            notes.append(f"{path.name}: not a table of penstock reproduce ({type(error).__name__}: {error})")
    return found, notes


def _made(said: dict[str, Any]) -> Reproduced:
    table = said["table"]
    return Reproduced(
        str(said["name"]),
        str(said["title"]),
        Table(
            str(table["name"]),
            str(table["caption"]),
            tuple(Column(**column) for column in table["columns"]),
            _rows(table["rows"]),
            _rows(table["footer"]),
        ),
        tuple(_plot(one) for one in said["plots"]),
    )


def _rows(said: Sequence[Sequence[dict[str, Any]]]) -> tuple[tuple[Cell, ...], ...]:
    return tuple(tuple(Cell(str(cell["text"]), cell["value"]) for cell in row) for row in said)


def _plot(said: dict[str, Any]) -> Plot:
    if said["axis"] not in _AXES:
        raise ValueError(f"axis {said['axis']!r}: expected one of {', '.join(_AXES)}")
    curves = tuple(Curve(str(one["method"]), _points(one["points"])) for one in said["curves"])
    baseline = _points([said["baseline"]])[0] if said["baseline"] else None
    return Plot(
        str(said["name"]), said["axis"], str(said["accuracy"]), curves, _points(said["marks"]), baseline
    )


def _points(said: Sequence[dict[str, Any]]) -> tuple[CurvePoint, ...]:
    return tuple(CurvePoint(float(one["cost"]), float(one["accuracy"]), str(one["label"])) for one in said)
