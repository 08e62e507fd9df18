"""Encoding of rows on disk: one Parquet file, with encodings chosen for a trace's columns.

Measured on a simulator's visits against Parquet's defaults with zstd: 0.6 of the time, a fifth more
bytes. Integers are written as differences, shares and factors (of few votes, so few different
values) as a dictionary, other floats as they are, lz4 on top. No bounds per page, since every
reader wants all rows; no null flags, since a trace has none.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lab.trace.schema import SCHEMA_VERSION, TABLES, Arrays, Column, Table

_LONG = 4096
"""Rows of a chunk from which on copying it costs more than what Arrow spends on every chunk."""
_METADATA = {"ttrl-guard-lab-schema": str(SCHEMA_VERSION)}


class Part:
    """Rows of one table on their way to a file, encoded as they come or at the end."""

    def __init__(self, table: Table, number: int = 0) -> None:
        """Start without rows.

        Args:
            table: which table.
            number: of the part.
        """
        self.table: Table = table
        self.number = number
        self.chunks: list[Arrays] = []
        """Rows that are not encoded yet."""
        self.rows = 0
        """Number of all rows."""
        self.handed_over = 0
        """Number of rows that a thread was asked to encode."""
        # Not a Python file: Arrow would wait for the interpreter at every piece of it.
        self._stream = pa.BufferOutputStream()
        self._writer: pq.ParquetWriter | None = None

    def __bool__(self) -> bool:
        """Return whether there is something to write."""
        return bool(self.rows or self.chunks)

    def add(self, rows: Arrays) -> None:
        """Add checked rows; another thread may be encoding earlier ones."""
        self.chunks.append(rows)
        self.rows += len(rows["step"])

    def encode(self) -> None:
        """Encode the rows that are there now as a row group; the first ones settle the columns."""
        if not (chunks := list(self.chunks)):
            return
        columns = _present(self.table, chunks)
        schema, encoding = _layout(columns)
        if self._writer is None:
            self._writer = pq.ParquetWriter(self._stream, schema, **encoding)
        short = sum(len(chunk["step"]) for chunk in chunks) < _LONG * len(chunks)
        group = pa.concat_tables(
            pa.Table.from_arrays([pa.array(_values(chunk, c)) for c in columns], schema=schema)
            for chunk in ([joined(self.table, chunks)] if short else chunks)
        )
        self._writer.write_table(group)
        del self.chunks[: len(chunks)]

    def write(self, file: Path) -> None:
        """Write all rows to a file; none can be added from then on."""
        self.encode()
        if self._writer is not None and self._writer.is_open:
            self._writer.close()
        file.write_bytes(self._stream.getvalue())


def joined(table: Table, chunks: list[Arrays]) -> Arrays:
    """Chunks of rows as one."""
    start: Arrays = {c.name: np.empty(0, c.dtype) for c in TABLES[table] if c.required}
    return {
        c.name: np.concatenate([_values(chunk, c) for chunk in chunks or [start]])
        for c in _present(table, chunks)
    }


def _present(table: Table, chunks: list[Arrays]) -> tuple[Column, ...]:
    """The required columns, and those that some chunk has."""
    found = {name for chunk in chunks for name in chunk}
    return tuple(c for c in TABLES[table] if c.required or c.name in found)


def _values(chunk: Arrays, column: Column) -> np.ndarray:
    """A chunk's column; an optional one that it lacks is NaN."""
    if column.name in chunk:
        return chunk[column.name]
    return np.full(len(chunk["step"]), np.nan)


@cache
def _layout(columns: tuple[Column, ...]) -> tuple[pa.Schema, dict[str, Any]]:
    """Return schema and encodings of a file with these columns."""
    fields = [pa.field(c.name, pa.from_numpy_dtype(c.dtype), nullable=False) for c in columns]
    integers = [c.name for c in columns if np.dtype(c.dtype).kind == "i"]
    encoding = {
        "compression": "lz4",
        "use_dictionary": [c.name for c in columns if c.unit.startswith(("share", "factor"))],
        # Byte stream split takes less time, but some readers know it for floats alone.
        "column_encoding": dict.fromkeys(integers, "DELTA_BINARY_PACKED"),
        "write_statistics": False,
    }
    return pa.schema(fields, _METADATA), encoding
