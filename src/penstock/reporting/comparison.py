"""The table that every command prints: accuracy, MACs by both conventions, measured milliseconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.reporting.measuring import DensityCost, Measured
from penstock.reporting.numbers import short_count, short_time, times
from penstock.reporting.tables import NOTHING, Cell, Column, Table, figure, word
from penstock.reporting.timing import Timing


@dataclass(frozen=True)
class Accuracy:
    """In percent."""

    top1: float
    top5: float


_COLUMNS = (
    Column("network", "Network", numeric=False),
    Column("density", "Density", shown=False),
    Column("top1", "Top-1 %"),
    Column("top5", "Top-5 %"),
    Column("macs_executed", "MACs, executed", hint="from the masks that occurred, mean over the images"),
    Column("macs_paper", "MACs, paper", hint="by the paper's formula"),
    Column("saving", "Fewer MACs", hint="executed, against the network without gates"),
    Column("milliseconds", "ms/image", hint="the least of many interleaved calls, one image each"),
    Column("speedup", "Faster", hint="against the fastest dense runtime measured beside it"),
)


def comparison_table(
    measured: Measured,
    accuracies: Sequence[Accuracy | None] = (),
    *,
    dense: Accuracy | None = None,
    name: str = "measured",
) -> Table:
    """One row a density, below them the dense network in each rival runtime (its accuracy: `dense`).

    "Faster" compares with the fastest rival; without rivals with the highest density.
    """
    rivals = dict(sorted(measured.rivals.items(), key=lambda item: item[1].least))
    reference = next(iter(rivals.values()), None)
    if reference is None and measured.rows:
        reference = max(measured.rows, key=lambda row: row.density or 1.0).time
    known = [*accuracies, *[None] * (len(measured.rows) - len(accuracies))]
    rows = [_row(row, score, reference) for row, score in zip(measured.rows, known, strict=True)]
    rows += [_rival(label, time, measured, dense, reference) for label, time in rivals.items()]
    images = measured.rows[0].executed.images if measured.rows else 0
    timed = (
        f"; one image a call, {measured.threads} thread{'s' * (measured.threads > 1)}" if reference else ""
    )
    caption = f"MACs (executed) are the mean over {images} images{timed}"
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


def _row(row: DensityCost, score: Accuracy | None, reference: Timing | None) -> tuple[Cell, ...]:
    saving = row.executed.saving
    return (
        word("without gates" if row.density is None else f"d = {row.density:.3g}"),
        figure(row.density),
        *_accuracy(score),
        figure(row.executed.macs, short_count(row.executed.macs)),
        figure(row.paper.macs, short_count(row.paper.macs)),
        figure(saving, times(saving)),
        *_time(row.time, reference),
    )


def _rival(
    label: str, time: Timing, measured: Measured, dense: Accuracy | None, reference: Timing | None
) -> tuple[Cell, ...]:
    whole = measured.rows[0].paper.original_macs if measured.rows else None
    macs = figure(whole, None if whole is None else short_count(whole))
    return (
        word(label),
        NOTHING,
        *_accuracy(dense),
        macs,
        macs,
        figure(1.0, times(1.0)),
        *_time(time, reference),
    )


def _accuracy(score: Accuracy | None) -> tuple[Cell, Cell]:
    return (
        (NOTHING, NOTHING)
        if score is None
        else (figure(score.top1, form="{:.2f}"), figure(score.top5, form="{:.2f}"))
    )


def _time(time: Timing | None, reference: Timing | None) -> tuple[Cell, Cell]:
    if time is None:
        return NOTHING, NOTHING
    faster = reference.least / time.least if reference is not None else None
    return figure(time.least, short_time(time.least)), figure(
        faster, None if faster is None else times(faster)
    )
