"""Tables in a terminal whose words stay whole.

Where there is too little room, headings and long texts are broken between words, then columns move together,
then short cells such as "4.64 ms" or "penstock d = 0.5" are broken too. A table that is still too wide is
printed wider than the terminal.
"""

from __future__ import annotations

from collections.abc import Iterator

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Column, Table
from rich.text import Text

_SHORT = 24  # a cell of so many characters is a name or a figure rather than a text


class WholeWords(Table):
    """A rich table that grows wider than the terminal rather than break a name."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = [self._texts(column) for column in self.columns]
        widths = [max((cell_len(line) for line in one), default=0) for one in lines]
        for short in (_SHORT, 0):
            least = [max(self._unbroken(one, short), default=0) for one in lines]
            if sum(least) > options.max_width - self._extra_width - self._paddings():
                self.padding = 0
            room = options.max_width - self._extra_width - self._paddings()
            while sum(widths) > room and any(w > s for w, s in zip(widths, least, strict=True)):
                at = max(range(len(widths)), key=lambda index: (widths[index] - least[index], widths[index]))
                widths[at] -= 1
        for column, width in zip(self.columns, widths, strict=True):
            column.width = width
        if sum(widths) > room:
            options = options.update(max_width=options.max_width + sum(widths) - room)
        yield from super().__rich_console__(console, options)

    def _paddings(self) -> int:
        every = len(self.columns) * (self.padding[1] + self.padding[3])
        return every if self.pad_edge else every - (self.padding[3] if self.columns else 0) - self.padding[1]

    @staticmethod
    def _unbroken(lines: list[str], short: int) -> Iterator[int]:
        """The widths of what is kept whole: words, and below the heading cells of at most `short`."""
        for at, line in enumerate(lines):
            whole = [line] if at and cell_len(line) <= short else line.split()
            yield from map(cell_len, whole)

    @staticmethod
    def _texts(column: Column) -> list[str]:
        cells = [column.header, *column._cells]
        plain = [cell.plain if isinstance(cell, Text) else str(cell) for cell in cells]
        return [line for text in plain for line in text.splitlines()]


def print_table(console: Console, table: Table) -> None:
    """Print a table; where it is wider than the terminal, nothing of it is cut off."""
    console.print(table, soft_wrap=False, crop=False)
