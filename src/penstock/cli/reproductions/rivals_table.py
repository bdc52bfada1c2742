"""The rivals' rows, read from what their commands left: a table, milliseconds from one run, a plot.

A row that is not there yet says so; one that was refused says why. All networks that the engine runs are
timed together in one interleaved run, with the dense network in float32 and int8 among them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from statistics import fmean
from typing import Any

from penstock.cli.models import CHECKPOINT, COMPILED, find_model
from penstock.cli.reproductions.plan import Setting
from penstock.cli.reproductions.together import Timed, Times, read_json, read_times, time_together
from penstock.pruning import METHODS
from penstock.reporting.figures import Curve, CurvePoint
from penstock.reporting.numbers import short_count, times
from penstock.reporting.reproduced import Plot
from penstock.reporting.tables import NOTHING, Cell, Column, Table, figure, to_json, word
from penstock.surgery.network import count_parameters

SHORT_EPOCH = 2560  # images: 20 steps of 128
DENSE = ("dense, float32", "dense, int8")


@dataclass(frozen=True)
class Row:
    """One network: a method at a saving with a seed. epochs: after the cut; before: before it.

    short: its epochs and its search were short ones.
    """

    network: str
    method: str
    saving: float
    seed: int
    epochs: int
    before: int
    short: bool = False

    @property
    def name(self) -> str:
        """Of its folder and files. Epochs are part of it: runs of another length are other rows."""
        length = f"e{self.epochs}{'short' if self.short else ''}"
        return f"{self.network}-{self.method}-{self.saving:g}x-{length}-s{self.seed}"

    @property
    def label(self) -> str:
        return METHODS[self.method].label if self.method in METHODS else self.method.upper()


@dataclass(frozen=True)
class Found:
    """What is known of a row. densities: each timed image's own, of networks that decide outside of the
    engine."""

    top1: float
    authors: float
    executed: float
    weights: int
    densities: Sequence[dict[str, float]] | None = None


def find_row(setting: Setting, row: Row) -> Found | None:
    """The row as its command left it, or None if it has not ended."""
    folder = setting.out / row.name
    if row.method in METHODS:
        said = read_json(folder / "pruning.json")
        if said is None:
            return None
        score = said.get("test") or said["stages"][-1]
        return Found(
            score["top1"], said["macs"], said["macs_executed"], said["weights"], said.get("densities")
        )
    said = read_json(setting.out / f"{row.name}.json")
    if said is None:
        return None
    (one, *_) = said["rows"]
    weights = count_parameters(find_model(str(folder / CHECKPOINT)))
    return Found(one["top1"], one["macs_paper"], one["macs_executed"], weights)


def why_missing(setting: Setting, row: Row) -> str:
    """What the table says of a row that is not there."""
    for step in ("prune", "train", "score"):
        path = setting.out / f"{step}-{row.name}.failed"
        if path.exists():
            return path.read_text(encoding="utf-8")
    return "not run yet"


def measure_rivals(setting: Setting, name: str, start: str, rows: Sequence[Row], again: bool) -> None:
    """Time every network that is there, and the dense one, into NAME-times.json."""
    there = {row.name: found for row in rows if (found := find_row(setting, row)) is not None}
    networks = {
        row: Timed(str(setting.out / row), found.densities)
        for row, found in there.items()
        if (setting.out / row / CHECKPOINT).exists()
    }
    networks |= {
        row: Timed(str(setting.out / row / COMPILED))
        for row in there
        if (setting.out / row / COMPILED).exists()
    }
    if networks:
        networks |= {DENSE[0]: Timed(start), DENSE[1]: Timed(start, precision="int8")}
    time_together(setting, setting.out / f"{name}-times.json", networks, again)


def rivals_table(setting: Setting, name: str, rows: Sequence[Row]) -> Table:
    """The dense network, then a row a saving and method, over its seeds."""
    columns = (
        Column("method", "Method", numeric=False),
        Column("wanted", "Asked for"),
        Column("top1", "Top-1"),
        Column("spread", "±"),
        Column("change", "Δ dense"),
        Column("seeds", "Seeds"),
        Column("epochs", "Epochs", numeric=False),
        Column("macs", "MACs (authors)"),
        Column("saving", "Saving"),
        Column("macs_executed", "MACs (executed)"),
        Column("weights", "Weights"),
        Column("milliseconds", "ms"),  # one row is int8 and says so; the caption names the others' precision
        Column("note", "Note", numeric=False),
    )
    measured = read_times(setting.out / f"{name}-times.json")
    dense = dense_rows(setting, name)
    base = dense[DENSE[0]] if dense else None
    cells: list[tuple[Cell, ...]] = []
    for precision, one in dense.items():
        time = figure(measured.milliseconds.get(precision), form="{:.3f}")
        macs = one["macs_paper"]
        top1 = figure(one["top1"], form="{:.2f}")
        change = NOTHING if one is base else _change(one["top1"], base)
        count = Cell(short_count(macs), macs)
        row = (word(precision), NOTHING, top1, NOTHING, change, NOTHING, NOTHING, count, NOTHING, count)
        cells.append((*row, NOTHING, time, word("")))
    methods = list(dict.fromkeys(row.method for row in rows))
    ordered = sorted(rows, key=lambda row: (row.saving, methods.index(row.method)))
    for _, group in groupby(ordered, key=lambda row: (row.saving, row.method)):
        cells.append(_cells(setting, list(group), base, measured))
    caption = (
        f"{name} on {setting.data}: mean over seeds, ± half of their range; epochs before + after the cut; "
        "ms: one image, one thread, float32 unless it says int8"
    )
    if setting.short:
        caption += f"; short: an epoch is {SHORT_EPOCH:,} images, and searches are brief"
    return Table(name, caption, columns, tuple(cells))


def rivals_plots(setting: Setting, name: str, rows: Sequence[Row]) -> tuple[Plot, ...]:
    """Accuracy against milliseconds, one marker a method, the dense network in both precisions marked."""
    curves: dict[str, list[CurvePoint]] = {}
    marks = []
    for said in to_json(rivals_table(setting, name, rows)):
        if said["milliseconds"] is None or said["top1"] is None:
            continue
        point = CurvePoint(said["milliseconds"], said["top1"])
        if said["method"] in DENSE:
            marks.append(replace(point, label=said["method"]))
        else:
            curves.setdefault(said["method"], []).append(point)
    if not curves:
        return ()
    made = tuple(Curve(method, tuple(points)) for method, points in curves.items())
    return (Plot(name, "milliseconds", f"top-1, test images of {setting.data}", made, tuple(marks)),)


def _cells(
    setting: Setting, group: list[Row], base: dict[str, Any] | None, measured: Times
) -> tuple[Cell, ...]:
    """One method at one saving, over its seeds."""
    first = group[0]
    there = {row.name: found for row in group if (found := find_row(setting, row)) is not None}
    missing = [why_missing(setting, row) for row in group if row.name not in there]
    begin = (word(first.label), Cell(times(first.saving), first.saving))
    length = word(f"{first.before}+{first.epochs}" if first.before else str(first.epochs))
    note = "; ".join(dict.fromkeys(missing))
    if not there:
        return (*begin, *(NOTHING,) * 4, length, *(NOTHING,) * 5, word(note))
    known = measured.milliseconds
    spent = [known[name] for name in there if name in known]
    if not spent:
        note = "; ".join(filter(None, ("no time is claimed: the engine does not run it", note)))
    elif any(name in measured.unsteady for name in there):
        note = "; ".join(filter(None, ("measured on a busy machine", note)))
    scores = [found.top1 for found in there.values()]
    top1, authors = fmean(scores), fmean(found.authors for found in there.values())
    executed = fmean(found.executed for found in there.values())
    weights = fmean(found.weights for found in there.values())
    spread = (max(scores) - min(scores)) / 2 if len(scores) > 1 else None
    return (
        *begin,
        figure(top1, form="{:.2f}"),
        figure(spread, form="{:.2f}"),
        _change(top1, base),
        Cell(f"{len(there)} of {len(group)}", len(there)),
        length,
        Cell(short_count(authors), authors),
        NOTHING if base is None else Cell(times(base["macs_paper"] / authors), base["macs_paper"] / authors),
        Cell(short_count(executed), executed),
        Cell(short_count(weights), weights),
        figure(fmean(spent) if spent else None, form="{:.3f}"),
        word(note),
    )


def _change(top1: float, base: dict[str, Any] | None) -> Cell:
    return NOTHING if base is None else figure(top1 - base["top1"], form="{:+.2f}")


def dense_rows(setting: Setting, name: str) -> dict[str, dict[str, Any]]:
    """{"dense, float32": …, "dense, int8": …} as `penstock evaluate` scored them; nothing if it has not."""
    said = read_json(setting.out / f"{name}-dense.json")
    return {} if said is None else {f"dense, {row['precision']}": row for row in said["rows"]}
