"""A contest as a table, as JSON, and as a figure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import Any

from matplotlib.figure import Figure

from penstock.measuring.contest import Contest, Entry
from penstock.measuring.runtimes import INSTALLED
from penstock.measuring.timing import unsteady_words
from penstock.native import available_isas
from penstock.reporting.numbers import milliseconds, short_count, short_time, times
from penstock.reporting.tables import NOTHING, Cell, Column, Table, word


def contest_table(contest: Contest) -> Table:
    """One row a contestant with its precision; speed-ups compare least times with the fastest dense runtime
    in float32 and in int8."""
    rows = []
    for entry in contest.entries:
        faster, saving = contest.speed_up(entry), contest.mac_saving(entry)
        than_int8 = contest.speed_up(entry, "int8")
        rows.append(
            (
                Cell(entry.name.replace(" int8 ", " "), entry.name),
                word(entry.precision),
                Cell(short_time(entry.milliseconds), entry.milliseconds),
                Cell(short_time(entry.median_milliseconds), entry.median_milliseconds),
                Cell(f"{entry.images_per_second:.1f}", entry.images_per_second),
                Cell(short_count(entry.macs), entry.macs),
                Cell(f"{entry.gflops:.0f}", entry.gflops),
                NOTHING if faster is None else Cell(times(faster), faster),
                NOTHING if than_int8 is None else Cell(times(than_int8), than_int8),
                NOTHING if saving is None or entry.density is None else Cell(times(saving), saving),
                NOTHING
                if entry.agreement is None
                else Cell(f"{100 * entry.agreement:.1f}%", entry.agreement),
            )
        )
    plural = "" if contest.threads == 1 else "s"
    return Table(
        f"{contest.network}-threads{contest.threads}-batch{contest.batch}",
        f"{contest.network}: {contest.threads} thread{plural}, batch {contest.batch}, {contest.isa}, "
        f"multiply-add peak of one core {contest.peak_gflops:.0f} GFLOPS",
        (
            Column("name", "", numeric=False),
            Column("precision", "precision", numeric=False),
            Column("milliseconds", "least ms"),
            Column("median_milliseconds", "median ms"),
            Column("images_per_second", "images/s", shown=contest.batch > 1),
            Column("macs", "MACs"),
            Column("gflops", "GFLOPS", shown=False),
            Column("speed_up", "against dense float32", hint="the fastest runtime in float32"),
            Column("speed_up_int8", "against dense int8", hint="the fastest runtime in int8"),
            Column("mac_saving", "MAC saving"),
            Column("agreement", "same class", hint="as the float network, on the calibration images"),
        ),
        tuple(rows),
    ).without_empty_columns()


def dense_words(contest: Contest) -> list[str]:
    """The three lines that stand for the dense network, and what should be known about the times."""
    said = []
    for line, entry in contest.dense_lines.items():
        text = f"dense, {line}: {milliseconds(entry.milliseconds)} ({entry.name}, {entry.precision})"
        if entry.name == INSTALLED and entry.precision == "float32":
            text += "; it takes bfloat16 on processors that have it"
        said.append(text)
    shaky = unsteady_words([entry.name for entry in contest.entries if not entry.steady])
    said += [shaky] if shaky else []
    if contest.isa and any(entry.name.startswith("onnxruntime") for entry in contest.entries):
        widest = available_isas()[-1]
        if widest != contest.isa:
            said.append(
                f"held to {contest.isa}: the engine, OpenVINO, torch's convolutions; ONNX Runtime has no "
                f"such switch and may use {widest}"
            )
    return said


def contest_words(contest: Contest) -> list[str]:
    """What stands below the table: the dense lines, and why some runtimes are missing."""
    return [*dense_words(contest), *(f"{name}: {why}" for name, why in contest.problems.items())]


def contest_json(contest: Contest) -> dict[str, Any]:
    """Everything that was measured; `dense_lines`: which entries stand for the dense network."""
    found = asdict(contest)
    found["dense_lines"] = {line: entry.name for line, entry in contest.dense_lines.items()}
    for entry, row in zip(contest.entries, found["entries"], strict=True):
        row["speed_up"] = contest.speed_up(entry)
        row["speed_up_int8"] = contest.speed_up(entry, "int8")
        row["mac_saving"] = contest.mac_saving(entry)
    return found


def read_contest(found: dict[str, Any]) -> Contest:
    """What `contest_json` wrote, with whatever a benchmark put beside it left out."""
    known = {field.name for field in fields(Entry)}
    entries = [Entry(**{key: row[key] for key in row if key in known}) for row in found["entries"]]
    names = [field.name for field in fields(Contest) if field.name != "entries"]
    return Contest(**{name: found[name] for name in names}, entries=tuple(entries))


def contest_figure(contests: Sequence[Contest]) -> Figure:
    """Milliseconds of every contestant with its precision, one panel a contest."""
    figure = Figure(
        figsize=(6.5, 0.9 + sum(0.9 + 0.24 * len(c.entries) for c in contests)), layout="constrained"
    )
    for place, contest in enumerate(contests):
        axes = figure.add_subplot(len(contests), 1, place + 1)
        names = [f"{entry.name}, {entry.precision}" for entry in contest.entries]
        colours = [
            "#1f6feb" if entry.density is not None else "#d97a00" if entry.precision == "int8" else "#8a8f98"
            for entry in contest.entries
        ]
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
