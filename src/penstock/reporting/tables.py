"""A table once, shown three ways: in the terminal, on the page, and as JSON."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table as RichTable

from penstock.reporting.terminal import WholeWords


@dataclass(frozen=True)
class Cell:
    """What is shown, and what it is sorted by and written to JSON as (`value`; None sorts last)."""

    text: str
    value: float | str | None = None


@dataclass(frozen=True)
class Column:
    """`key` is its name in JSON, `title` its heading; numbers stand to the right; not shown: JSON only."""

    key: str
    title: str
    numeric: bool = True
    hint: str = ""
    shown: bool = True


@dataclass(frozen=True)
class Table:
    """Rows sort, footer rows (a total, a saving) stay below. `missing` is shown when there is no row."""

    name: str
    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    footer: tuple[tuple[Cell, ...], ...] = field(default=())
    missing: str = "nothing here yet"

    def __post_init__(self) -> None:
        for row in (*self.rows, *self.footer):
            if len(row) != len(self.columns):
                raise ValueError(
                    f"table {self.name!r}: {len(row)} cells in a row, {len(self.columns)} columns"
                )

    def without_empty_columns(self) -> Table:
        """Leave out the columns in which every row has a dash: nobody needs to see what was not measured."""
        return self._only(
            [i for i in range(len(self.columns)) if any(row[i] != NOTHING for row in self.rows)]
        )

    def for_people(self) -> Table:
        """Leave out the columns that are for JSON only."""
        return self._only([i for i, column in enumerate(self.columns) if column.shown])

    def _only(self, keep: list[int]) -> Table:
        if not self.rows:
            return self

        def thin(rows: tuple[tuple[Cell, ...], ...]) -> tuple[tuple[Cell, ...], ...]:
            return tuple(tuple(row[i] for i in keep) for row in rows)

        columns = tuple(self.columns[i] for i in keep)
        return Table(self.name, self.caption, columns, thin(self.rows), thin(self.footer), self.missing)


NOTHING = Cell("–", None)


def word(text: str) -> Cell:
    """A cell of text."""
    return Cell(text, text)


def figure(value: float | None, text: str | None = None, form: str = "{:g}") -> Cell:
    """A cell of one number; None gives a dash."""
    return NOTHING if value is None else Cell(form.format(value) if text is None else text, value)


def to_rich(table: Table) -> RichTable:
    """For the terminal."""
    table = table.for_people()
    shown = WholeWords(
        box=SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
        caption_justify="left",
        title=table.caption,
        title_justify="left",
        title_style="bold",
        show_footer=False,
    )
    for column in table.columns:
        shown.add_column(column.title, justify="right" if column.numeric else "left", overflow="fold")
    for index, row in enumerate(table.rows):
        shown.add_row(
            *(cell.text for cell in row), end_section=index == len(table.rows) - 1 and bool(table.footer)
        )
    for row in table.footer:
        shown.add_row(*(cell.text for cell in row), style="bold")
    return shown


def to_json(table: Table) -> list[dict[str, Any]]:
    """For `--json`: one object a row."""
    return [{c.key: cell.value for c, cell in zip(table.columns, row, strict=True)} for row in table.rows]
