"""Writing a run: buffered rows become Parquet parts, each written whole and then renamed.

A run that is killed at any moment leaves a folder that can be read: a part either has its final
name and all its rows, or it has a temporary name that readers ignore.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lab.errors import UserError
from lab.files import whole
from lab.manifest import FILE_NAME, Manifest, Status, encode, now
from lab.schema import SCHEMA_VERSION, TABLES, Arrays, Columns, Table, checked


class Recorder(Protocol):
    """Where a run puts its rows: a `RunFolder`, or a `MemoryRun` that leaves nothing behind."""

    manifest: Manifest

    def write_visits(self, columns: Columns) -> None:
        """Add rows to the visits."""

    def write_steps(self, columns: Columns) -> None:
        """Add rows to the steps."""

    def write_evals(self, columns: Columns) -> None:
        """Add rows to the evaluations."""

    def note(self, progress: float | None = None, **extra: Any) -> None:
        """Note how far the run is, and facts for the manifest's `extra`."""


@dataclass(slots=True)
class _Pending:
    """Rows of one table that wait in memory."""

    part: int = 0
    """Number of the part that they will be written to."""
    chunks: list[Arrays] = field(default_factory=list)
    rows: int = 0


class _Buffered:
    """Checked rows waiting in memory, and the life of the run that they belong to."""

    def __init__(self, manifest: Manifest) -> None:
        self.manifest = manifest
        self._pending: dict[Table, _Pending] = {table: _Pending() for table in TABLES}

    def write_visits(self, columns: Columns) -> None:
        """Add rows to the visits.

        Args:
            columns: every column of `lab.schema.VISITS`, (rows,) each or a scalar for all rows.

        Raises:
            ValueError: a column is missing, unknown or of a wrong kind.
        """
        self._add("visits", columns)

    def write_steps(self, columns: Columns) -> None:
        """Add rows to the steps, see `write_visits`; optional columns may be left out."""
        self._add("steps", columns)

    def write_evals(self, columns: Columns) -> None:
        """Add rows to the evaluations, see `write_visits`."""
        self._add("evals", columns)

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

    def _add(self, table: Table, columns: Columns) -> None:
        rows = checked(table, columns)
        pending = self._pending[table]
        pending.chunks.append(rows)
        pending.rows += len(rows["step"])


class MemoryRun(_Buffered):
    """A run that is kept in memory, used as a `RunFolder` is; `Trace.of` reads it."""

    def arrays(self, table: Table) -> Arrays:
        """All rows of a table so far."""
        pending = self._pending[table]
        pending.chunks = [joined(table, pending.chunks)]
        return pending.chunks[0]


class RunFolder(_Buffered):
    """The writer of one run folder; use it as a context manager.

        with RunFolder.create(path, manifest) as run:
            run.write_visits({"replicate": 0, "step": step, ...})

    Leaving the block normally sets the status to finished, Ctrl-C to interrupted, any other error
    to failed; in all cases the rows written so far are on disk.
    """

    def __init__(
        self, path: Path, manifest: Manifest, flush_rows: int, flush_seconds: float
    ) -> None:
        super().__init__(manifest)
        self.path = path
        self._flush_rows, self._flush_seconds = flush_rows, flush_seconds
        self._flushed = time.monotonic()

    @classmethod
    def create(
        cls,
        path: Path | str,
        manifest: Manifest,
        *,
        flush_rows: int = 200_000,
        flush_seconds: float = 30.0,
    ) -> RunFolder:
        """Make the folder and its `run.json`.

        Args:
            path: a folder that does not exist, or an empty one.
            manifest: see `Manifest.new`.
            flush_rows: rows of one table that are kept in memory at most.
            flush_seconds: age at which rows are put on disk at the next write.

        Raises:
            UserError: the folder exists with something in it, or cannot be made.
        """
        path = Path(path)
        _make(path)
        folder = cls(path, manifest, flush_rows, flush_seconds)
        folder._write_manifest()
        return folder

    def flush(self) -> None:
        """Put all rows and the manifest on disk.

        Raises:
            UserError: the disk cannot be written.
        """
        for table in TABLES:
            if self._pending[table].chunks:
                self._write_part(table)
        self.manifest.updated = now()
        self._write_manifest()
        self._flushed = time.monotonic()

    def _add(self, table: Table, columns: Columns) -> None:
        super()._add(table, columns)
        old = time.monotonic() - self._flushed >= self._flush_seconds
        if old or self._pending[table].rows >= self._flush_rows:
            self.flush()

    def _write_part(self, table: Table) -> None:
        pending = self._pending[table]
        target = self.path / table / f"part-{pending.part:05d}.parquet"
        content = pa.table(joined(table, pending.chunks)).replace_schema_metadata(
            {"ttrl-guard-lab-schema": str(SCHEMA_VERSION)}
        )
        with whole(target) as temporary:
            pq.write_table(content, temporary, compression="zstd")
        # In one assignment, so that an interrupt loses no row and writes none twice: up to here
        # the same part would be written again, with the same rows and those added since.
        self._pending[table] = _Pending(pending.part + 1)

    def _write_manifest(self) -> None:
        with whole(self.path / FILE_NAME) as temporary:
            temporary.write_bytes(encode(self.manifest))


def joined(table: Table, chunks: list[Arrays]) -> Arrays:
    """Chunks of rows as one; an optional column that a chunk lacks is NaN there."""
    present = {name for chunk in chunks for name in chunk}
    columns = [c for c in TABLES[table] if c.required or c.name in present]
    return {c.name: _joined_column(c.name, c.dtype, chunks) for c in columns}


def _joined_column(name: str, dtype: str, chunks: list[Arrays]) -> np.ndarray:
    parts = [
        chunk[name] if name in chunk else np.full(len(chunk["step"]), np.nan) for chunk in chunks
    ]
    return np.concatenate(parts) if parts else np.empty(0, dtype)


def _make(path: Path) -> None:
    if (path / FILE_NAME).exists():
        raise UserError(f"{path}: already holds a run; choose another folder or delete it")
    if path.exists() and not path.is_dir():
        raise UserError(f"{path}: is a file; choose another folder")
    try:
        if path.is_dir() and any(path.iterdir()):
            raise UserError(f"{path}: is not empty; choose another folder")
        for table in TABLES:
            (path / table).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"{path}: cannot be made ({error.strerror}); choose a folder you may write to"
        ) from error
