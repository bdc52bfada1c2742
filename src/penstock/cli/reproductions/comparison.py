"""The paper's comparison of one network's variants: accuracy, its change, MACs and milliseconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.cli.reproductions.plan import Setting, Step, not_printed_by, row_of
from penstock.cli.reproductions.together import read_json
from penstock.measuring.contest import Contest
from penstock.reporting.contest_table import read_contest
from penstock.reporting.figures import Curve, CurvePoint
from penstock.reporting.numbers import short_count, times
from penstock.reporting.reproduced import Plot
from penstock.reporting.tables import NOTHING, Cell, Column, Table, figure, word

LARGE = 224  # pixels, the paper's: accuracies are scored and times measured at this size too
_THREADS = (1, 2)


@dataclass(frozen=True)
class Variant:
    """A row. file: the name its score has; said: what the paper says of it on ImageNet.

    density: which of the scores in `file`, where there are several. timed: whose times at 224 pixels are its.
    series: the curve that it belongs to; empty for the network that all are compared with.
    """

    title: str
    file: str
    said: str = "–"
    density: float | None = None
    timed: str = ""
    series: str = ""


def timing_steps(setting: Setting, name: str, densities: Sequence[float]) -> list[Step]:
    """Times of the network NAME at 224 pixels, beside the dense runtimes: on one thread and on two."""
    given = ",".join(f"{one:g}" for one in densities)
    return [
        Step(
            f"time {name} on {threads}",
            (
                *("bench", str(setting.out / name), "--data", setting.data, "--size", str(LARGE)),
                *("--density", given, "--threads", str(threads), "--seconds", "20", "--json"),
            ),
            f"{name}-times-{threads}.json",
        )
        for threads in _THREADS
    ]


def comparison(setting: Setting, name: str, variants: Sequence[Variant], dense_lines: str = "") -> Table:
    """Accuracies and costs of the variants; changes and savings are against the first.

    dense_lines: the network beside which the dense runtimes were timed; they get rows of their own.
    """
    rows = [_scored(setting, one) for one in variants]
    base = row_of(setting, variants[0].file, variants[0].density)
    for one, row in zip(variants, rows, strict=True):
        scored = row_of(setting, one.file, one.density)
        if one is not variants[0]:
            row["change"] = figure(scored["top1"] - base["top1"], form="{:+.2f}")
        row["saving"] = _saving(base["macs_paper"], scored["macs_paper"])
        row["executed_saving"] = _saving(base["macs_paper"], scored["macs_executed"])
    rows += _dense_rows(setting, dense_lines) if dense_lines else []
    columns = (
        Column("network", "Network", numeric=False),
        Column("top1", "Top-1"),
        Column("top5", "Top-5"),
        Column("change", "Δ top-1"),
        Column("large_top1", f"Top-1, {LARGE}"),
        Column("large_top5", f"Top-5, {LARGE}"),
        Column("macs_paper", "MACs (paper)"),
        Column("saving", "Saving (paper)"),
        Column("executed_saving", "Saving (executed)"),
        Column("milliseconds", "ms", hint=f"at {setting.size} pixels, one thread, float32"),
        *(
            Column(f"{precision}_{threads}", f"{precision}, {threads} thread{'s' * (threads > 1)}, {LARGE}")
            for threads in _THREADS
            for precision in ("float32", "int8")
        ),
        Column("paper", "Paper, on ImageNet", numeric=False),
    )
    cells = tuple(tuple(row.get(column.key, NOTHING) for column in columns) for row in rows)
    caption = f"{name} on {setting.data}, {setting.size} pixels; times in milliseconds an image"
    return Table(name, caption, columns, cells).without_empty_columns()


def tradeoff(setting: Setting, name: str, variants: Sequence[Variant]) -> tuple[Plot, ...]:
    """Accuracy against the paper's MACs, a curve for each series; the variant without one is circled."""
    curves: dict[str, list[CurvePoint]] = {}
    baseline = None
    for one in variants:
        row = row_of(setting, one.file, one.density)
        label = "" if one.density is None else f"d = {one.density:g}"
        point = CurvePoint(row["macs_paper"], row["top1"], label)
        if one.series:
            curves.setdefault(one.series, []).append(point)
        else:
            baseline = point
    lines = tuple(Curve(series, tuple(points)) for series, points in curves.items())
    words = f"top-1, test images of {setting.data}"
    return (Plot(f"{name}-macs", "macs", words, lines, baseline=baseline),)


def _scored(setting: Setting, one: Variant) -> dict[str, Cell]:
    row = row_of(setting, one.file, one.density)
    found = {
        "network": word(one.title),
        "top1": figure(row["top1"], form="{:.2f}"),
        "top5": figure(row["top5"], form="{:.2f}"),
        "macs_paper": Cell(short_count(row["macs_paper"]), row["macs_paper"]),
        "milliseconds": figure(row.get("milliseconds"), form="{:.2f}"),
        "paper": word(one.said),
    }
    if (setting.out / f"{one.file}-{LARGE}.json").exists():
        large = row_of(setting, f"{one.file}-{LARGE}", one.density)
        found["large_top1"] = figure(large["top1"], form="{:.2f}")
        found["large_top5"] = figure(large["top5"], form="{:.2f}")
    for threads in _THREADS if one.timed else ():
        contest = _contest(setting, one.timed, threads)
        for entry in () if contest is None else contest.entries:
            if entry.density == one.density and entry.name.startswith("penstock"):
                found[f"{entry.precision}_{threads}"] = figure(entry.milliseconds, form="{:.2f}")
    return found


def _dense_rows(setting: Setting, timed: str) -> list[dict[str, Cell]]:
    """The three lines that stand for the dense network in other runtimes."""
    found: dict[str, dict[str, Cell]] = {}
    for threads in _THREADS:
        contest = _contest(setting, timed, threads)
        for line, entry in {} if contest is None else contest.dense_lines.items():
            row = found.setdefault(line, {"network": word(f"dense: {line}")})
            kind = "int8" if entry.precision == "int8" else "float32"
            row[f"{kind}_{threads}"] = Cell(f"{entry.milliseconds:.2f} ({entry.name})", entry.milliseconds)
    return list(found.values())


def _contest(setting: Setting, name: str, threads: int) -> Contest | None:
    path = setting.out / f"{name}-times-{threads}.json"
    said = read_json(path)
    try:
        return None if said is None else read_contest(said)
    except (KeyError, TypeError) as error:
        raise not_printed_by("bench", path, error) from error


def _saving(dense: float, macs: float) -> Cell:
    return Cell(times(dense / macs), dense / macs)
