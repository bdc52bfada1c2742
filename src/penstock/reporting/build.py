"""From run records to the page: the trade-off, the tables of runs and points, and the numbers on top."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from penstock.measuring.timing import Timing
from penstock.reporting.figures import MILLISECONDS, Curve, CurvePoint, progress_figure, tradeoff_figure
from penstock.reporting.numbers import short_count, short_time
from penstock.reporting.numbers import times as ratio
from penstock.reporting.page import Card, NetworkPart, Page, Picture, TablePart, TradeOff, identifier, picture
from penstock.reporting.reproduced import Reproduced
from penstock.reporting.runs import Run, Sweep, SweepPoint
from penstock.reporting.tables import Cell, Column, Table, figure, word


@dataclass(frozen=True)
class PointCost:
    """What a run's network costs at one density (None: it has no gates): executed MACs, and measured time.

    `own`: it is the density that the run's checkpoint carries.
    """

    run: str
    density: float | None
    macs: float
    time: Timing | None
    own: bool = False


@dataclass(frozen=True)
class Latency:
    """Accuracy against measured milliseconds: curves of gated networks, and the dense network's runtimes.

    `words`: which images the accuracy is of and how the times were measured.
    """

    curves: tuple[Curve, ...]
    dense: tuple[CurvePoint, ...] = ()
    words: str = ""


_CONVENTIONS = (
    ("executed", "executed (the masks that occurred)"),
    ("paper", "the paper's formula"),
)
_SIZES = ((560, 350), (340, 300))  # for wide and for narrow screens, CSS pixels
_WITHIN = 1.0  # points of accuracy below the baseline that still count as "kept"


def build_page(
    runs: Sequence[Run],
    *,
    title: str,
    lead: str = "",
    footer: str = "",
    notes: Sequence[str] = (),
    cards: Sequence[Card] = (),
    layer_costs: Table | None = None,
    memory: Table | None = None,
    networks: Sequence[NetworkPart] = (),
    costs: Sequence[PointCost] = (),
    latency: Latency | None = None,
    machine: str = "",
    reproduced: Sequence[Reproduced] = (),
) -> Page:
    """The whole page; `cards`, costs, times and networks come from those who measured them."""
    sweeps = [run.sweep for run in runs if run.sweep is not None and run.sweep.points]
    baseline = find_baseline(sweeps)
    said = [f"{run.name}: {note}" for run in runs for note in run.notes]
    recorded = [run for run in runs if run.recorded]
    stopped = [run for run in recorded if run.stopped]
    return Page(
        title=title,
        lead=lead or f"{len(runs)} run{'' if len(runs) == 1 else 's'}, {datetime.now():%Y-%m-%d %H:%M}",
        machine=machine,
        runs=runs_table([run for run in recorded if not run.stopped], costs),
        stopped=runs_table(stopped, costs, name="stopped-list", caption="Runs that stopped before their end"),
        points=points_table(runs, baseline, costs),
        cards=(*sweep_cards(sweeps, baseline), *cards),
        notes=(*notes, *said),
        reproduced=tuple(reproduced_part(one) for one in reproduced),
        empty="" if runs or networks or reproduced else "There is no run here yet.",
        tradeoffs=tuple(tradeoffs(sweeps, baseline)),
        latency=latency_picture(latency) if latency and latency.curves else None,
        progress=tuple(progress_pictures([run for run in runs if not run.stopped])),
        stopped_progress=tuple(progress_pictures(stopped, "stopped")),
        layer_costs=layer_costs,
        memory=memory,
        networks=tuple(networks),
        footer=footer,
    )


def reproduced_part(made: Reproduced) -> TablePart:
    """A reproduced table as the page carries it."""
    pictures = tuple(
        picture(
            plot.draw(680, 400), f"plot-{plot.name}", f"{made.title}: {plot.accuracy} against {plot.axis}"
        )
        for plot in made.plots
    )
    return TablePart(f"part-{identifier(made.name)}", made.title, made.table, pictures)


def find_baseline(sweeps: Sequence[Sweep]) -> SweepPoint | None:
    """The first baseline that a sweep names."""
    return next((sweep.baseline for sweep in sweeps if sweep.baseline is not None), None)


def macs_of(point: SweepPoint, convention: str) -> float | None:
    """By one convention only: the two are never mixed on one plot."""
    return point.macs_paper if convention == "paper" else point.macs_executed


def curve(sweep: Sweep, convention: str) -> Curve:
    """The points that have been counted by the convention."""
    counted = [(macs_of(point, convention), point) for point in sweep.points]
    return Curve(sweep.method, tuple(CurvePoint(m, p.top1, p.setting) for m, p in counted if m is not None))


def tradeoffs(sweeps: Sequence[Sweep], baseline: SweepPoint | None) -> list[TradeOff]:
    """One a convention, each drawn for wide and narrow screens."""
    made = []
    for convention, words in _CONVENTIONS:
        curves = [one for one in (curve(sweep, convention) for sweep in merged(sweeps)) if one.points]
        if not curves:
            continue
        macs = macs_of(baseline, convention) if baseline else None
        ring = CurvePoint(macs, baseline.top1) if baseline and macs is not None else None
        alt = "Accuracy against MACs. " + " ".join(
            f"{one.method}: "
            + ", ".join(f"{p.accuracy:.2f}% at {short_count(p.cost)}" for p in one.points)
            + "."
            for one in curves
        )
        if ring:
            alt += f" Baseline: {ring.accuracy:.2f}% at {short_count(ring.cost)}."
        wide, narrow = (
            picture(
                tradeoff_figure(curves, ring, width=width, height=height),
                f"tradeoff {convention} {width}",
                alt,
                f"MACs of one image, counted by the convention “{convention}”; gates included."
                + (" The ringed point is the baseline." if ring else ""),
            )
            for width, height in _SIZES
        )
        made.append(TradeOff(convention, words, wide, narrow))
    return made


def latency_picture(latency: Latency) -> TradeOff:
    """Accuracy against milliseconds, for wide and narrow screens."""
    alt = "Accuracy against milliseconds. " + " ".join(
        f"{one.method}: "
        + ", ".join(f"{p.accuracy:.2f}% at {short_time(p.cost)} ms ({p.label})" for p in one.points)
        + "."
        for one in latency.curves
    )
    alt += "".join(f" Dense, {p.label}: {p.accuracy:.2f}% at {short_time(p.cost)} ms." for p in latency.dense)
    wide, narrow = (
        picture(
            tradeoff_figure(
                latency.curves, axis=MILLISECONDS, marks=latency.dense, width=width, height=height
            ),
            f"latency {width}",
            alt,
            latency.words,
        )
        for width, height in _SIZES
    )
    return TradeOff("latency", "milliseconds", wide, narrow)


def merged(sweeps: Sequence[Sweep]) -> list[Sweep]:
    """One sweep a method: runs that each hold a part of a curve draw one line."""
    points: dict[str, list[SweepPoint]] = {}
    for sweep in sweeps:
        points.setdefault(sweep.method, []).extend(sweep.points)
    return [Sweep(method, tuple(those)) for method, those in points.items()]


def points_table(runs: Sequence[Run], baseline: SweepPoint | None, costs: Sequence[PointCost] = ()) -> Table:
    """Every point of every curve, with the milliseconds where they were measured."""
    columns = (
        Column("method", "Method", numeric=False),
        Column("setting", "Setting", numeric=False),
        Column("top1", "Top-1, %"),
        Column("top5", "Top-5, %"),
        Column("macs_executed", "MACs, executed"),
        Column("macs_paper", "MACs, paper"),
        Column("saving", "Fewer MACs", hint="against the baseline; executed where it is known"),
        Column(
            "milliseconds",
            "ms, float32",
            hint="of one image, measured through the engine, the least of many interleaved calls",
        ),
    )
    whole = cheapest_count(baseline) if baseline else None
    measured = {(one.run, one.density): one.time.least for one in costs if one.time is not None}

    def row(method: str, point: SweepPoint, time: float | None) -> tuple[Cell, ...]:
        own = cheapest_count(point)
        saving = whole / own if whole and own else None
        counts = (point.macs_executed, point.macs_paper)
        return (
            word(method),
            word(point.setting),
            figure(point.top1, form="{:.2f}"),
            figure(point.top5, form="{:.2f}"),
            *(figure(macs, None if macs is None else short_count(macs)) for macs in counts),
            figure(saving, None if saving is None else ratio(saving)),
            figure(time, None if time is None else short_time(time)),
        )

    rows = [row("baseline", baseline, None)] if baseline else []
    rows += [
        row(run.sweep.method, point, measured.get((run.name, point.density)))
        for run in runs
        if run.sweep is not None
        for point in run.sweep.points
    ]
    return Table("points", "Every point of the curves", columns, tuple(rows)).without_empty_columns()


def cheapest_count(point: SweepPoint) -> float | None:
    """The executed MACs, or the paper's where those were not counted."""
    return point.macs_executed if point.macs_executed is not None else point.macs_paper


def runs_table(
    runs: Sequence[Run], costs: Sequence[PointCost] = (), *, name: str = "run-list", caption: str = "All runs"
) -> Table:
    """What each run reached."""
    columns = (
        Column("run", "Run", numeric=False),
        Column("status", "State", numeric=False),
        Column("epochs", "Epochs"),
        Column("density", "Density"),
        Column("test_top1", "Top-1, %"),
        Column("test_top5", "Top-5, %"),
        Column("macs_executed", "MACs, executed", hint="at the density of the run's own network"),
        Column("milliseconds", "ms, float32", hint="of one image, in the engine, at that density"),
        Column("loss", "Training loss"),
        Column("images_per_second", "Trained, images/s"),
    )
    own = {one.run: one for one in costs if one.own}
    macs = {run: one.macs for run, one in own.items()}
    times = {run: one.time.least for run, one in own.items() if one.time is not None}
    rows = tuple(
        (
            word(run.name),
            word(run.status),
            figure(run.done or None, form="{:d}"),
            figure(run.last("density")),
            figure(run.last("test_top1"), form="{:.2f}"),
            figure(run.last("test_top5"), form="{:.2f}"),
            figure(macs.get(run.name), short_count(macs.get(run.name, 0))),
            figure(times.get(run.name), short_time(times.get(run.name, 0))),
            figure(run.last("loss"), form="{:.3f}"),
            figure(run.last("images_per_second"), form="{:.0f}"),
        )
        for run in runs
    )
    return Table(name, caption, columns, rows).without_empty_columns()


def progress_pictures(runs: Sequence[Run], prefix: str = "progress") -> list[Picture]:
    """Accuracy and loss by epoch, for every run that has more than one."""
    made = []
    for index, run in enumerate(runs):
        if len(run.history) > 1:
            top1 = run.last("test_top1")
            reached = "" if top1 is None else f", ending at {top1:.2f}% test top-1"
            alt = f"Accuracy and loss of {run.name} over {len(run.history)} epochs{reached}."
            made.append(picture(progress_figure(run.history, title=run.name), f"{prefix} {index}", alt))
    return made


def sweep_cards(sweeps: Sequence[Sweep], baseline: SweepPoint | None) -> list[Card]:
    """The baseline, and for each method how far it goes within a point of accuracy."""
    if baseline is None:
        return []
    macs = cheapest_count(baseline) or 0.0
    made = [Card("Baseline", f"{baseline.top1:.2f}%", f"top-1 at {short_count(macs)} MACs")]
    for sweep in merged(sweeps):
        kept = [
            (macs / own, point)
            for point in sweep.points
            if (own := cheapest_count(point)) and point.top1 >= baseline.top1 - _WITHIN
        ]
        if kept:
            saving, point = max(kept, key=lambda pair: pair[0])
            detail = f"fewer MACs at {point.top1:.2f}%, {point.setting}"
            made.append(Card(f"{sweep.method}, within a point", ratio(saving), detail))
    return made
