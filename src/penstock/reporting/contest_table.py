"""A contest as a table, as JSON, and as a figure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from matplotlib.figure import Figure

from penstock.reporting.contest import Contest
from penstock.reporting.numbers import milliseconds, short_count, times
from penstock.reporting.tables import NOTHING, Cell, Column, Table, word


def contest_table(contest: Contest) -> Table:
    """One row a contestant; speed-ups are least time against least time of the fastest dense runtime."""
    rows = []
    for entry in contest.entries:
        faster, saving = contest.speed_up(entry), contest.mac_saving(entry)
        rows.append(
            (
                word(entry.name),
                Cell(milliseconds(entry.milliseconds), entry.milliseconds),
                Cell(milliseconds(entry.median_milliseconds), entry.median_milliseconds),
                Cell(f"{entry.images_per_second:.1f}", entry.images_per_second),
                Cell(short_count(entry.macs), entry.macs),
                Cell(f"{entry.gflops:.0f}", entry.gflops),
                NOTHING if faster is None else Cell(times(faster), faster),
                NOTHING if saving is None or entry.density is None else Cell(times(saving), saving),
            )
        )
    plural = "" if contest.threads == 1 else "s"
    return Table(
        f"{contest.network}-threads{contest.threads}-batch{contest.batch}",
        f"{contest.network}: {contest.threads} thread{plural}, batch {contest.batch}, {contest.isa}, "
        f"multiply-add peak of one core {contest.peak_gflops:.0f} GFLOPS",
        (
            Column("name", "", numeric=False),
            Column("milliseconds", "least"),
            Column("median_milliseconds", "median"),
            Column("images_per_second", "images/s"),
            Column("macs", "MACs"),
            Column("gflops", "GFLOPS"),
            Column("speed_up", "against the fastest dense"),
            Column("mac_saving", "MAC saving"),
        ),
        tuple(rows),
    )


def contest_json(contest: Contest) -> dict[str, Any]:
    """Everything that was measured."""
    found = asdict(contest)
    for entry, row in zip(contest.entries, found["entries"], strict=True):
        row["speed_up"] = contest.speed_up(entry)
        row["mac_saving"] = contest.mac_saving(entry)
    return found


def contest_figure(contests: Sequence[Contest]) -> Figure:
    """Milliseconds of every contestant, one panel a contest."""
    figure = Figure(figsize=(6.5, 2.6 * len(contests)), layout="constrained")
    for place, contest in enumerate(contests):
        axes = figure.add_subplot(len(contests), 1, place + 1)
        names = [entry.name for entry in contest.entries]
        colours = ["#8a8f98" if entry.density is None else "#1f6feb" for entry in contest.entries]
        bars = axes.barh(names, [entry.milliseconds for entry in contest.entries], color=colours)
        axes.bar_label(
            bars, [milliseconds(entry.milliseconds) for entry in contest.entries], padding=3, fontsize=8
        )
        axes.invert_yaxis()
        axes.margins(x=0.15)
        axes.set_xlabel("milliseconds a call (least)")
        axes.set_title(f"{contest.network}, threads {contest.threads}, batch {contest.batch}", fontsize=10)
        axes.spines[["top", "right"]].set_visible(False)
    return figure
