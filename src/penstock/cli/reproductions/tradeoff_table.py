"""The points of the trade-off curves, read from what their commands left: a table, times, three plots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from penstock.cli.reproductions.plan import Setting, not_printed_by
from penstock.cli.reproductions.rivals_table import DENSE, dense_rows
from penstock.cli.reproductions.together import Timed, read_json, read_times, time_together
from penstock.reporting.figures import Curve, CurvePoint
from penstock.reporting.numbers import short_count, times
from penstock.reporting.reproduced import Plot
from penstock.reporting.tables import NOTHING, Cell, Column, Table, figure, to_json, word

_PRECISIONS = ("float32", "int8")


THRESHOLDS = "threshold"
"""The series whose networks have thresholds."""


@dataclass(frozen=True)
class Point:
    """A point of a curve. files: what its seeds are called; model: if it is not the folder of that name;
    density: if the network is run at another than its own."""

    series: str
    label: str
    files: tuple[str, ...]
    model: str = ""
    density: float | None = None

    def network(self, setting: Setting, file: str) -> str:
        """As a command takes it."""
        return self.model or str(setting.out / file)

    def timed(self, file: str, precision: str) -> str:
        """What its time is called."""
        at = "" if self.density is None else f" at {self.density:g}"
        return f"{file}{at}, {precision}"


def find_point(setting: Setting, point: Point) -> dict[str, dict[str, dict[str, Any]]]:
    """{file: {precision: the row that `penstock evaluate` printed}} of the seeds that are there."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for file in point.files:
        said = read_json(setting.out / f"{file}.json")
        if said is None:
            continue
        try:
            rows = [row for row in said["rows"] if point.density in (None, row.get("density"))]
            found[file] = {row["precision"]: row for row in rows if row["precision"] in _PRECISIONS}
            found[file]["float32"]["top1"], found[file]["float32"]["macs_paper"]
        except (KeyError, TypeError) as error:
            raise not_printed_by("evaluate", setting.out / f"{file}.json", error) from error
    return found


def measure_curves(setting: Setting, name: str, start: str, points: Sequence[Point], again: bool) -> None:
    """Time every network that is there, in both precisions, with the dense one, into NAME-times.json."""
    networks = {
        point.timed(file, precision): Timed(point.network(setting, file), point.density, precision)
        for point in points
        for file in find_point(setting, point)
        for precision in _PRECISIONS
    }
    if networks:
        networks |= {f"dense, {precision}": Timed(start, None, precision) for precision in _PRECISIONS}
    time_together(setting, setting.out / f"{name}-times.json", networks, again)


def tradeoff_table(setting: Setting, name: str, points: Sequence[Point]) -> Table:
    """The dense network, then a row a point; one that is not there yet says so."""
    columns = (
        Column("series", "Series", numeric=False),
        Column("setting", "At", numeric=False),
        Column("seeds", "Seeds"),
        Column("top1", "Top-1"),
        Column("top1_int8", "Top-1, int8"),
        Column("macs_paper", "MACs (paper)"),
        Column("saving", "Saving"),
        Column("macs_executed", "MACs (executed)"),
        Column("milliseconds", "ms, float32"),
        Column("milliseconds_int8", "ms, int8"),
        Column("note", "Note", numeric=False),
    )
    measured = read_times(setting.out / f"{name}-times.json")
    dense = dense_rows(setting, name)
    base = dense[DENSE[0]] if dense else None
    cells: list[tuple[Cell, ...]] = []
    if base is not None:
        times_of = [measured.milliseconds.get(one) for one in DENSE]
        small = dense.get(DENSE[1])
        tops = (base["top1"], None if small is None else small["top1"])
        cells.append(_row("dense", "", NOTHING, tops, base, base["macs_paper"], times_of, ""))
    for point in points:
        found = find_point(setting, point)
        note = "" if len(found) == len(point.files) else "not run yet"
        if not found:
            cells.append((word(point.series), word(point.label), *(NOTHING,) * 8, word(note)))
            continue
        rows = list(found.values())
        tops = (_mean(rows, "float32", "top1"), _mean(rows, "int8", "top1"))
        macs = {key: _mean(rows, "float32", key) for key in ("macs_paper", "macs_executed")}
        if point.series == THRESHOLDS:  # images differ: the paper's formula would count the dearest
            macs["macs_paper"], note = macs["macs_executed"], note or "MACs: executed, mean"
        spent = []
        for precision in _PRECISIONS:
            names = [point.timed(file, precision) for file in found]
            known = [measured.milliseconds[one] for one in names if one in measured.milliseconds]
            spent.append(fmean(known) if known else None)
            if any(one in measured.unsteady for one in names):
                note = "measured on a busy machine"
        seeds = Cell(f"{len(found)} of {len(point.files)}", len(found))
        whole = None if base is None else base["macs_paper"]
        cells.append(_row(point.series, point.label, seeds, tops, macs, whole, spent, note))
    caption = f"{name} on {setting.data}: mean over seeds; ms: one image, one thread"
    return Table(name, caption, columns, tuple(cells))


def _row(
    series: str,
    label: str,
    seeds: Cell,
    tops: tuple[float | None, float | None],
    macs: dict[str, Any],
    whole: float | None,
    spent: Sequence[float | None],
    note: str,
) -> tuple[Cell, ...]:
    paper, executed = macs["macs_paper"], macs["macs_executed"]
    return (
        word(series),
        word(label),
        seeds,
        *(figure(top, form="{:.2f}") for top in tops),
        Cell(short_count(paper), paper),
        NOTHING if whole is None else Cell(times(whole / paper), whole / paper),
        Cell(short_count(executed), executed),
        *(figure(one, form="{:.3f}") for one in spent),
        word(note),
    )


def tradeoff_plots(setting: Setting, name: str, points: Sequence[Point]) -> tuple[Plot, ...]:
    """Accuracy against MACs, against milliseconds in float32, and in int8; dense int8 marked in both."""
    rows = to_json(tradeoff_table(setting, name, points))
    words = f"top-1, test images of {setting.data}"
    plots = [
        _plot(f"{name}-macs", "macs", words, rows, ("macs_paper", "top1")),
        _plot(f"{name}-float32", "milliseconds", words, rows, ("milliseconds", "top1")),
        _plot(f"{name}-int8", "milliseconds", words, rows, ("milliseconds_int8", "top1_int8")),
    ]
    return tuple(plot for plot in plots if plot.curves)


def _plot(name: str, axis: str, words: str, rows: Sequence[dict[str, Any]], keys: tuple[str, str]) -> Plot:
    cost, score = keys
    curves: dict[str, list[CurvePoint]] = {}
    baseline, marks = None, list[CurvePoint]()
    for row in rows:
        if row["series"] != "dense":
            if row[cost] is not None and row[score] is not None:
                curves.setdefault(row["series"], []).append(CurvePoint(row[cost], row[score], row["setting"]))
        elif axis == "macs":
            baseline = CurvePoint(row[cost], row[score])
        else:
            for precision, suffix in (("float32", ""), ("int8", "_int8")):
                place = (row[f"milliseconds{suffix}"], row[f"top1{suffix}"])
                if None not in place:
                    marks.append(CurvePoint(*place, f"dense, {precision}"))
    lines = tuple(Curve(series, tuple(points)) for series, points in curves.items())
    return Plot(name, axis, words, lines, tuple(marks), baseline)


def _mean(rows: Sequence[dict[str, dict[str, Any]]], precision: str, key: str) -> float | None:
    values = [row[precision][key] for row in rows if precision in row]
    return fmean(values) if values else None
