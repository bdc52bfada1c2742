"""The paper's comparison of one network's variants: accuracy, its change, MACs and milliseconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.cli.reproductions.plan import Setting, row_of
from penstock.reporting.numbers import short_count, times
from penstock.reporting.tables import NOTHING, Cell, Column, Table, figure, word


@dataclass(frozen=True)
class Variant:
    """A row. file: the name its score has; said: what the paper says of it on ImageNet."""

    title: str
    file: str
    said: str = "–"


def comparison(setting: Setting, name: str, variants: Sequence[Variant]) -> Table:
    """Accuracies and costs of the variants; changes and savings are against the first."""
    rows = [row_of(setting, one.file) for one in variants]
    base = rows[0]
    columns = (
        Column("network", "Network", numeric=False),
        Column("top1", "Top-1"),
        Column("top5", "Top-5"),
        Column("change", "Δ top-1"),
        Column("macs_paper", "MACs (paper)"),
        Column("saving", "Saving (paper)"),
        Column("executed_saving", "Saving (executed)"),
        Column("milliseconds", "ms"),
        Column("paper", "Paper, on ImageNet", numeric=False),
    )
    cells = tuple(
        (
            word(one.title),
            figure(row["top1"], form="{:.2f}"),
            figure(row["top5"], form="{:.2f}"),
            NOTHING if row is base else figure(row["top1"] - base["top1"], form="{:+.2f}"),
            Cell(short_count(row["macs_paper"]), row["macs_paper"]),
            _saving(base["macs_paper"], row["macs_paper"]),
            _saving(base["macs_paper"], row["macs_executed"]),
            figure(row.get("milliseconds"), form="{:.2f}"),
            word(one.said),
        )
        for one, row in zip(variants, rows, strict=True)
    )
    caption = f"{name} on {setting.data}, {setting.size} pixels"
    return Table(name, caption, columns, cells)


def _saving(dense: float, macs: float) -> Cell:
    return Cell(times(dense / macs), dense / macs)
