"""The table that every command prints: accuracy, MACs by both conventions, measured milliseconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from penstock.measuring.densities import DensityCost, Measured, RivalTime
from penstock.measuring.timing import Timing, ratio
from penstock.reporting.numbers import short_count, short_time, times
from penstock.reporting.tables import NOTHING, Cell, Column, Table, figure, word


@dataclass(frozen=True)
class Accuracy:
    """In percent."""

    top1: float
    top5: float


_COLUMNS = (
    Column("network", "Network", numeric=False),
    Column("density", "Density", shown=False),
    Column("precision", "Precision", numeric=False, hint="what it computes in"),
    Column("top1", "Top-1 %"),
    Column("top5", "Top-5 %"),
    Column("macs_executed", "MACs, executed", hint="from the masks that occurred, mean over the images"),
    Column("macs_paper", "MACs, paper", hint="by the paper's formula"),
    Column("saving", "Fewer MACs", hint="executed, against the network without gates"),
    Column("milliseconds", "ms/image", hint="the least of many interleaved calls, one image each"),
    Column("speedup", "Than float32", hint="faster than the fastest dense float32 runtime beside it"),
    Column("speedup_int8", "Than int8", hint="faster than the fastest dense int8 runtime beside it"),
)


@dataclass(frozen=True)
class _Reference:
    """The times that others are compared with."""

    float32: Timing | None = None
    int8: Timing | None = None


def comparison_table(
    measured: Measured,
    accuracies: Sequence[Accuracy | None] = (),
    *,
    dense: Accuracy | None = None,
    rivals: Mapping[str, Accuracy] | None = None,
    int8: Sequence[Accuracy | None] = (),
    name: str = "measured",
) -> Table:
    """One row a density and precision, below them the dense network in each rival runtime with its precision.

    accuracies, int8: of the rows, in float32 and in int8. dense: the accuracy of the float network; rivals:
    those that have one of their own, as int8 has. "Faster" compares with the fastest rival in float32 and in
    int8; without rivals with the highest density. Times that are not steady are not compared.
    """
    ordered = dict(sorted(measured.rivals.items(), key=lambda item: item[1].time.least))
    fastest, small = measured.fastest_rival(), measured.fastest_rival("int8")
    reference = _Reference(fastest and fastest[1].time, small and small[1].time)
    if not measured.rivals and measured.rows:
        reference = _Reference(max(measured.rows, key=lambda row: row.density or 1.0).time)
    rows = []
    nothing = [None] * len(measured.rows)
    for row, score, in_int8 in zip(measured.rows, [*accuracies, *nothing], [*int8, *nothing], strict=False):
        rows.append(_row(row, row.time, "float32", score, reference))
        if row.int8 is not None or in_int8 is not None:
            rows.append(_row(row, row.int8, "int8", in_int8, reference))
    for label, rival in ordered.items():
        floats = dense if rival.precision != "int8" else None
        rows.append(_rival(label, rival, measured, (rivals or {}).get(label, floats), reference))
    images = measured.rows[0].executed.images if measured.rows else 0
    timed = any(row.time for row in measured.rows) or bool(ordered)
    ran = f"; one image a call, {measured.threads} thread{'s' * (measured.threads > 1)}" if timed else ""
    caption = f"MACs (executed) are the mean over {images} images{ran}"
    return Table(name, caption, _COLUMNS, tuple(rows)).without_empty_columns()


def agreement_words(rows: Sequence[DensityCost]) -> str:
    """What to say about engine and PyTorch; empty without an engine."""
    found = [row.agreement for row in rows if row.agreement is not None]
    if not found:
        return ""
    images, same = sum(one.images for one in found), sum(one.same for one in found)
    verdict, count = ("agree", f"all {images}") if same == images else ("differ", f"{same} of {images}")
    worst = max(one.difference for one in found)
    close = f"logits within {worst:.0e} of the largest"
    return f"Engine and PyTorch {verdict}: the same class in {count} comparisons, {close}."


def _row(
    row: DensityCost, time: Timing | None, precision: str, score: Accuracy | None, reference: _Reference
) -> tuple[Cell, ...]:
    saving = row.executed.saving
    return (
        word("without gates" if row.density is None else f"d = {row.density:.3g}"),
        figure(row.density),
        word(precision),
        *_accuracy(score),
        figure(row.executed.macs, short_count(row.executed.macs)),
        figure(row.paper.macs, short_count(row.paper.macs)),
        figure(saving, times(saving)),
        *_time(time, reference),
    )


def _rival(
    label: str, rival: RivalTime, measured: Measured, score: Accuracy | None, reference: _Reference
) -> tuple[Cell, ...]:
    whole = measured.rows[0].paper.original_macs if measured.rows else None
    macs = figure(whole, None if whole is None else short_count(whole))
    return (
        word(label),
        NOTHING,
        word(rival.precision),
        *_accuracy(score),
        macs,
        macs,
        figure(1.0, times(1.0)),
        *_time(rival.time, reference),
    )


def _accuracy(score: Accuracy | None) -> tuple[Cell, Cell]:
    return (
        (NOTHING, NOTHING)
        if score is None
        else (figure(score.top1, form="{:.2f}"), figure(score.top5, form="{:.2f}"))
    )


def _time(time: Timing | None, reference: _Reference) -> tuple[Cell, Cell, Cell]:
    if time is None:
        return NOTHING, NOTHING, NOTHING
    faster = [ratio(one, time) for one in (reference.float32, reference.int8)]
    than_float, than_int8 = (figure(one, None if one is None else times(one)) for one in faster)
    return figure(time.least, short_time(time.least)), than_float, than_int8
