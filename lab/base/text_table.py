"""Tables of texts, for a terminal, Markdown and a page."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TextTable:
    """A table of strings."""

    head: list[str]
    rows: list[list[str]]

    def lines(self) -> Iterator[str]:
        """Yield the lines of a table for a terminal, without columns that have no value."""
        columns = zip(self.head, *self.rows, strict=True)
        kept = [column for column in columns if not self.rows or any(column[1:])]
        every = list(zip(*kept, strict=True))
        width = [max(map(len, column)) for column in kept]
        for row in every:
            cells = [row[0].ljust(width[0]), *map(str.rjust, row[1:], width[1:])]
            yield "  ".join(cells).rstrip()

    def markdown(self) -> Iterator[str]:
        """Yield the lines of a table in Markdown."""
        for row in (self.head, ["---"] * len(self.head), *self.rows):
            yield f"| {' | '.join(row)} |"
