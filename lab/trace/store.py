"""Writing a run: buffered rows become Parquet parts, each written whole and then renamed.

A run that is killed at any moment leaves a folder that can be read: a part either has its final
name and all its rows, or it has a temporary name that readers ignore. Parts are written in their
order, so none is missing before one that is there.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from lab.errors import UserError
from lab.files import sync_folder, whole
from lab.trace.checked import checked
from lab.trace.encoding import Part, joined
from lab.trace.manifest import FILE_NAME, Manifest, Status, encode, read_manifest
from lab.trace.parts import check_parts, cut_back, make_tables, part_name
from lab.trace.provenance import now
from lab.trace.recorder import Recorder as Recorder
from lab.trace.schema import TABLES, Arrays, Columns, Table

FLUSH_ROWS, FLUSH_SECONDS = 500_000, 30.0
_GROUP_ROWS = 30_000
"""Rows of one table from which on a run in the background hands them over to be encoded."""


class _Buffered:
    """Checked rows waiting in memory, and the life of the run that they belong to."""

    def __init__(self, manifest: Manifest) -> None:
        self.manifest = manifest
        self._parts: deque[dict[Table, Part]] = deque([{table: Part(table) for table in TABLES}])
        """Those that take rows come last, before them those that are full and not written yet."""

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

    def write_answers(self, columns: Columns, *, copy: bool = True) -> None:
        """Add rows to the answers, see `write_visits`."""
        self._add("answers", columns, copy)

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
        self._parts[-1][table].add(checked(table, columns, copy=copy))


class MemoryRun(_Buffered):
    """A run that is kept in memory, used as a `RunFolder` is; `Trace.of` reads it."""

    def arrays(self, table: Table) -> Arrays:
        """All rows of a table so far."""
        part = self._parts[-1][table]
        part.chunks = [joined(table, part.chunks)]
        return part.chunks[0]


class RunFolder(_Buffered):
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
        flush_seconds: float = FLUSH_SECONDS,
        in_background: bool = False,
    ) -> None:
        super().__init__(manifest)
        self.path = path
        self._flush_rows, self._flush_seconds = flush_rows, flush_seconds
        self._flushed = time.monotonic()
        self._thread = ThreadPoolExecutor(1, "run-folder") if in_background else None
        self._behind: Future[None] | None = None

    @classmethod
    def create(
        cls,
        path: Path | str,
        manifest: Manifest,
        *,
        flush_rows: int = FLUSH_ROWS,
        flush_seconds: float = FLUSH_SECONDS,
        in_background: bool = False,
    ) -> RunFolder:
        """Make the folder and its `run.json`.

        Args:
            path: a folder that does not exist, or an empty one.
            manifest: see `Manifest.new`.
            flush_rows: rows of one table that are kept in memory at most.
            flush_seconds: age at which rows are put on disk at the next write.
            in_background: a thread encodes rows and writes full parts while the run goes on,
                which waits where the part before is not written yet; so twice the rows are in
                memory. What the disk refuses is raised at the next full part, at the latest at
                the end. All rows of a table must have the same columns.

        Raises:
            UserError: the folder exists with something in it, or cannot be made.
        """
        path = Path(path)
        make_tables(path)
        folder = cls(path, manifest, flush_rows, flush_seconds, in_background)
        folder._write_manifest(encode(manifest))
        return folder

    @classmethod
    def reopen(cls, path: Path | str, parts: Mapping[str, int]) -> RunFolder:
        """Go on with a run from an earlier point of it; the rows after that point are deleted.

        Killed in the midst of this, the folder can still be read and reopened.

        Args:
            path: a run folder that nobody else writes now.
            parts: what `parts` returned at that point.

        Raises:
            UserError: the folder is no run's, lacks rows before that point, or cannot be written.
        """
        path = Path(path)
        folder = cls(path, read_manifest(path))
        folder.manifest.go_on()
        for table in TABLES:
            check_parts(path, table, parts.get(table, 0))
        for table in TABLES:
            folder._parts[-1][table].number = parts.get(table, 0)
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
        return {table: part.number for table, part in self._parts[-1].items()}

    def flush(self) -> None:
        """Put all rows and the manifest on disk.

        Raises:
            UserError: the disk cannot be written.
        """
        # The thread does one thing after the other. What it failed to write before is tried again.
        self._behind = None
        own = contextlib.nullcontext(self._thread) if self._thread else ThreadPoolExecutor(1)
        with own as thread:
            thread.submit(self._write, self._close_parts()).result()

    def finish(self, status: Status = "finished", error: str | None = None) -> None:
        """Flush and note how the run ended."""
        try:
            super().finish(status, error)
        finally:
            thread, self._thread = self._thread, None
            if thread is not None:
                thread.shutdown()

    def _add(self, table: Table, columns: Columns, copy: bool) -> None:
        super()._add(table, columns, copy)
        part = self._parts[-1][table]
        old = time.monotonic() - self._flushed >= self._flush_seconds
        if old or part.rows >= self._flush_rows:
            if self._thread is None:
                self.flush()
            else:
                self._flush_behind(self._thread)
        elif self._thread is not None and part.rows - part.handed_over >= _GROUP_ROWS:
            part.handed_over = part.rows
            self._thread.submit(part.encode)

    def _flush_behind(self, thread: ThreadPoolExecutor) -> None:
        """As `flush`, but leave the writing to the thread."""
        if self._behind is not None:
            self._behind.result()
        self._behind = thread.submit(self._write, self._close_parts())

    def _close_parts(self) -> bytes:
        """Line up all rows to be written; returns the manifest as it is now."""
        parts = self._parts[-1]
        if any(parts.values()):
            # In one go, so that an interrupt finds the rows before or after it.
            self._parts.append({t: Part(t, p.number + bool(p)) for t, p in parts.items()})
        self.manifest.updated = now()
        self._flushed = time.monotonic()
        return encode(self.manifest)

    def _write(self, manifest: bytes) -> None:
        while len(self._parts) > 1:
            for part in self._parts[0].values():
                if part:
                    with whole(self.path / part.table / part_name(part.number)) as temporary:
                        part.write(temporary)
            # Only now, so that parts of which one failed are the next to be tried.
            self._parts.popleft()
        self._write_manifest(manifest)

    def _write_manifest(self, content: bytes) -> None:
        with whole(self.path / FILE_NAME) as temporary:
            temporary.write_bytes(content)
