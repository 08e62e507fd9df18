"""Writing a run: buffered rows become Parquet parts, each written whole and then renamed.

A run that is killed at any moment leaves a folder that can be read: a part either has its final
name and all its rows, or it has a temporary name that readers ignore. Parts are written in their
order, so none is missing before one that is there.

Encodings are chosen for a trace's columns. Measured on a simulator's visits against Parquet's
defaults with zstd: 0.6 of the time, a fifth more bytes. Integers are written as differences, shares
and factors (of few votes, so few different values) as a dictionary, other floats as they are, lz4
on top. No bounds per page, since every reader wants all rows; no null flags, since a trace has
none.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lab.base.errors import UserError
from lab.base.files import sync_folder, whole
from lab.trace.manifest import FILE_NAME, Extent, Manifest, Status, encode, now, read_manifest
from lab.trace.parts import check_parts, cut_back, make_tables, part_name
from lab.trace.schema import SCHEMA_VERSION, TABLES, Arrays, Column, Columns, Table, checked

_LONG = 4096
"""Rows of a chunk from which on copying it costs more than what Arrow spends on every chunk."""
_METADATA = {"ttrl-guard-lab-schema": str(SCHEMA_VERSION)}


class Part:
    """Rows of one table on their way to a file."""

    def __init__(self, table: Table, before: Extent | None = None) -> None:
        """Start without rows.

        Args:
            before: extent of the table's earlier parts; none if None.
        """
        self.table: Table = table
        self.before = before or Extent()
        self.chunks: list[Arrays] = []
        self.rows = 0

    @property
    def extent(self) -> Extent:
        """Return the extent of the table up to the end of this part."""
        return Extent(self.before.parts + bool(self.chunks), self.before.rows + self.rows)

    def add(self, rows: Arrays) -> None:
        """Add checked rows."""
        self.chunks.append(rows)
        self.rows += len(rows["step"])

    def write(self, file: Path) -> None:
        """Write all rows to a file."""
        columns = _present(self.table, self.chunks)
        schema, encoding = _layout(columns)
        short = self.rows < _LONG * len(self.chunks)
        content = pa.concat_tables(
            pa.Table.from_arrays([pa.array(_values(chunk, c)) for c in columns], schema=schema)
            for chunk in ([joined(self.table, self.chunks)] if short else self.chunks)
        )
        # Bytes, since the name may not be UTF-8.
        with pa.OSFile(os.fsencode(file), "wb") as target:
            pq.write_table(content, target, **encoding)


@contextlib.contextmanager
def opened(folder: Path, path: Path) -> Iterator[pq.ParquetFile]:
    """Open a part of a run folder; what is read of it is checked by its pages' checksums.

    Raises:
        UserError: it is gone, damaged or no file, also where that shows only while it is read.
    """
    where = path.relative_to(folder)
    try:
        # A pipe would be waited for.
        if path.exists() and not path.is_file():
            raise UserError(f"{folder}: {where} is no file; copy the folder again")
        # Bytes, since the name may not be UTF-8. Not a Python file: one of Arrow's threads may be
        # the last to hold it, and aborts where Python is ending (github.com/apache/arrow/issues/
        # 34314 and 50482).
        with (
            pa.OSFile(os.fsencode(path)) as content,
            pq.ParquetFile(content, page_checksum_verification=True) as file,
        ):
            yield file
    except FileNotFoundError as error:
        raise UserError(
            f"{folder}: {where} is gone; do not delete a run while it is read"
        ) from error
    except (pa.ArrowException, OSError) as error:
        raise UserError(
            f"{folder}: {where} is damaged; copy the folder again or repeat the run"
        ) from error


def extent(folder: Path, table: Table, n_parts: int) -> Extent:
    """Numbers of parts and rows of a table's first parts.

    Raises:
        UserError: one of them is missing or damaged.
    """
    check_parts(folder, table, n_parts)
    rows = 0
    for number in range(n_parts):
        with opened(folder, folder / table / part_name(number)) as file:
            rows += file.metadata.num_rows
    return Extent(n_parts, rows)


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
        "write_page_checksum": True,
    }
    return pa.schema(fields, _METADATA), encoding


FLUSH_ROWS, FLUSH_SECONDS = 500_000, 30.0


class Recorder:
    """Destination of a run's rows, which wait in memory: a `RunFolder` or a `MemoryRun`."""

    def __init__(self, manifest: Manifest) -> None:
        self.manifest = manifest
        self._parts: dict[Table, Part] = {table: Part(table) for table in TABLES}

    def write_visits(self, columns: Columns, *, copy: bool = True) -> None:
        """Add rows to the visits.

        Args:
            columns: every column of `lab.trace.schema.VISITS`, (rows,) each or a scalar for all
                rows.
            copy: False where the caller never changes the arrays again.

        Raises:
            ValueError: a column is missing, unknown or of a wrong kind.
            UserError: the disk cannot be written.
        """
        self._add("visits", columns, copy)

    def write_steps(self, columns: Columns, *, copy: bool = True) -> None:
        """Add rows to the steps, see `write_visits`; optional columns may be left out."""
        self._add("steps", columns, copy)

    def write_evals(self, columns: Columns, *, copy: bool = True) -> None:
        """Add rows to the evaluations, see `write_visits`."""
        self._add("evals", columns, copy)

    def write_votes(self, columns: Columns, *, copy: bool = True) -> None:
        """Add rows to the votes, see `write_visits`."""
        self._add("votes", columns, copy)

    def write_answers(self, columns: Columns) -> None:
        """Add rows to the answers, see `write_visits`."""
        self._add("answers", columns, copy=True)

    def note(self, progress: float | None = None, **extra: Any) -> None:
        """Note how far the run is (0 to 1), and facts for the manifest's `extra`."""
        if progress is not None:
            self.manifest.progress = float(progress)
        self.manifest.extra.update(extra)

    def flush(self) -> None:
        """Put the rows where they can be read; in memory they are there."""

    def finish(self, status: Status = "finished", error: str | None = None) -> None:
        """Flush and note how the run ended."""
        self.manifest.end(status, error)
        self.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None:
            self.finish()
            return
        # The error that ended the run matters more than a second one while saving its rows.
        with contextlib.suppress(UserError):
            if issubclass(kind, KeyboardInterrupt):
                self.finish("interrupted")
            else:
                lines = str(error).splitlines()
                self.finish("failed", f"{kind.__name__}: {lines[0] if lines else ''}")

    def _add(self, table: Table, columns: Columns, copy: bool) -> None:
        self._parts[table].add(checked(table, columns, copy=copy))


class MemoryRun(Recorder):
    """A run that is kept in memory, used as a `RunFolder` is; `Trace.of` reads it."""

    def arrays(self, table: Table) -> Arrays:
        """All rows of a table so far."""
        part = self._parts[table]
        part.chunks = [joined(table, part.chunks)]
        return part.chunks[0]


class RunFolder(Recorder):
    """The writer of one run folder; use it as a context manager.

        with RunFolder.create(path, manifest) as run:
            run.write_visits({"replicate": 0, "step": step, ...})

    Leaving the block normally sets the status to finished, Ctrl-C to interrupted, any other error
    to failed; in all cases the rows written so far are on disk.
    """

    def __init__(
        self,
        path: Path,
        manifest: Manifest,
        flush_rows: int = FLUSH_ROWS,
    ) -> None:
        super().__init__(manifest)
        self.path = path
        self._flush_rows = flush_rows
        self._flushed = time.monotonic()

    @classmethod
    def create(
        cls,
        path: Path | str,
        manifest: Manifest,
        *,
        flush_rows: int = FLUSH_ROWS,
    ) -> RunFolder:
        """Make the folder and its `run.json`.

        Args:
            path: a folder that does not exist, or an empty one.
            flush_rows: rows of one table that are kept in memory at most.

        Raises:
            UserError: the folder exists with something in it, or cannot be made.
        """
        path = Path(path)
        make_tables(path)
        folder = cls(path, manifest, flush_rows)
        folder._write_manifest(encode(manifest))
        return folder

    @classmethod
    def reopen(cls, path: Path | str, parts: Mapping[str, int]) -> RunFolder:
        """Go on with a run from an earlier point of it; the rows after that point are deleted.

        Killed in the midst of this, the folder can still be read and reopened.

        Args:
            path: a run folder that nobody else writes now.

        Raises:
            UserError: the folder is no run's, lacks rows before that point, or cannot be written.
        """
        path = Path(path)
        folder = cls(path, read_manifest(path))
        folder.manifest.go_on()
        for table in TABLES:
            kept = extent(path, table, parts.get(table, 0))
            folder._parts[table] = Part(table, kept)
            folder.manifest.tables[table] = kept
        for table in TABLES:
            cut_back(path, table, parts.get(table, 0))
        folder._write_manifest(encode(folder.manifest))
        return folder

    def parts(self) -> dict[str, int]:
        """Put all rows on disk; returns how many parts each table has then, for `reopen`.

        Raises:
            UserError: the disk cannot be written.
        """
        self.flush()
        for table in TABLES:
            sync_folder(self.path / table)
        return {table: part.before.parts for table, part in self._parts.items()}

    def flush(self) -> None:
        """Put all rows and the manifest on disk.

        Raises:
            UserError: the disk cannot be written.
        """
        for table, part in self._parts.items():
            if part.chunks:
                with whole(self.path / table / part_name(part.before.parts)) as temporary:
                    part.write(temporary)
                # Only now, so that a part that failed is the next to be tried.
                self._parts[table] = Part(table, part.extent)
        self.manifest.tables = {table: part.before for table, part in self._parts.items()}
        self.manifest.updated = now()
        self._flushed = time.monotonic()
        self._write_manifest(encode(self.manifest))

    def _add(self, table: Table, columns: Columns, copy: bool) -> None:
        super()._add(table, columns, copy)
        old = time.monotonic() - self._flushed >= FLUSH_SECONDS
        if old or self._parts[table].rows >= self._flush_rows:
            self.flush()

    def _write_manifest(self, content: bytes) -> None:
        with whole(self.path / FILE_NAME) as temporary:
            temporary.write_bytes(content)
