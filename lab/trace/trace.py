"""A run's tables: written as Parquet parts or kept in memory, and read as DataFrames.

A part is written whole and then renamed, in its order. So a run that is killed at any moment leaves
a folder that can be read: each part has its final name and all its rows, or a temporary name.

Encodings are chosen for a trace's columns. Measured on a simulator's visits against Parquet's
defaults with zstd: 0.6 of the time, a fifth more bytes. Integers are written as differences, shares
and factors (of few votes, so few different values) as a dictionary, other floats as they are, lz4
on top. No bounds per page, since every reader wants all rows; no null flags: a trace has none.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from lab.base.columns import ints, where
from lab.base.errors import UserError, first_line
from lab.base.files import sync_folder, whole
from lab.trace import schema
from lab.trace.manifest import (
    Extent,
    Manifest,
    Status,
    cut_back,
    make_tables,
    now,
    part_name,
    parts_of,
    read_manifest,
    write_manifest,
)
from lab.trace.schema import TABLES, Arrays, Column, Columns, Table

FLUSH_ROWS, FLUSH_SECONDS = 500_000, 30.0
_MANY_ROWS = 50_000
_METADATA = {"ttrl-guard-lab-schema": str(schema.SCHEMA_VERSION)}


class Recorder:
    """Destination of a run's rows, which wait in memory: a `RunFolder` or a `MemoryRun`.

    Args:
        writes: number of writes of a table, as long as its first, for which room is made at once.
        flush_rows: rows of a table that are enough to put it on disk.
    """

    def __init__(self, manifest: Manifest, writes: int = 1, flush_rows: int = sys.maxsize) -> None:
        self.manifest = manifest
        self._writes, self._flush_rows = writes, flush_rows
        self._chunks: dict[Table, list[Arrays]] = {table: [] for table in TABLES}
        self._waiting, self._free = Counter[Table](), Counter[Table]()

    def write(self, table: Table, columns: Columns) -> None:
        """Add rows to a table, in the room behind its last ones or else in a new one.

        Args:
            columns: those of `lab.trace.schema.TABLES`, (rows,) each or a scalar for all rows.

        Raises:
            ValueError: a column is missing, unknown or of a wrong kind.
            UserError: the disk cannot be written.
        """
        rows, chunks = schema.checked(table, columns), self._chunks[table]
        kinds, size = {name: values.dtype for name, values in rows.items()}, len(rows["step"])
        fits = size <= self._free[table]
        if not (chunks and fits and kinds == {n: v.dtype for n, v in chunks[-1].items()}):
            self._cut(table)
            self._free[table] = size * min(self._writes, 1 + self._flush_rows // max(size, 1))
            chunks.append(_room(kinds, self._free[table]))
        start = len(chunks[-1]["step"]) - self._free[table]
        for name, values in rows.items():
            chunks[-1][name][start : start + size] = values
        self._free[table] -= size
        self._waiting[table] += size

    def _cut(self, table: Table) -> list[Arrays]:
        """The chunks of a table without the room behind the last rows."""
        chunks, free = self._chunks[table], self._free.pop(table, 0)
        if free:
            chunks[-1] = {name: values[:-free] for name, values in chunks[-1].items()}
        return chunks

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

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is None:
            self.finish()
            return
        # The error that ended the run matters more than a second one while saving its rows.
        with contextlib.suppress(UserError):
            if isinstance(error, KeyboardInterrupt):
                self.finish("interrupted")
            else:
                lines = str(error).strip().splitlines()
                self.finish("failed", f"{type(error).__name__}: {lines[0] if lines else ''}")


class MemoryRun(Recorder):
    """A run that is kept in memory, used as a `RunFolder` is; `Trace.of` reads it."""

    def arrays(self, table: Table) -> Arrays:
        """All rows of a table so far."""
        self._chunks[table] = [_joined(table, self._cut(table))]
        return self._chunks[table][0]


class RunFolder(Recorder):
    """The writer of one run folder; use it as a context manager.

        with RunFolder.create(path, manifest) as run:
            run.write("visits", {"replicate": 0, "step": step, ...})

    Leaving the block normally sets the status to finished, Ctrl-C to interrupted, any other error
    to failed; in all cases the rows written so far are on disk.
    """

    def __init__(
        self, path: Path, manifest: Manifest, writes: int = 1, flush_rows: int = FLUSH_ROWS
    ) -> None:
        super().__init__(manifest, writes, flush_rows)
        self.path, self._flushed = path, time.monotonic()
        manifest.tables = {table: Extent() for table in TABLES}

    @classmethod
    def create(
        cls, path: Path | str, manifest: Manifest, writes: int = 1, flush_rows: int = FLUSH_ROWS
    ) -> RunFolder:
        """Make the folder and its `run.json`; the other arguments are those of `Recorder`.

        A UserError where the folder exists with something in it, or cannot be made.
        """
        make_tables(Path(path))
        write_manifest(Path(path), manifest)
        return cls(Path(path), manifest, writes, flush_rows)

    @classmethod
    def reopen(cls, path: Path | str, parts: Mapping[str, int]) -> RunFolder:
        """Go on with a run from an earlier point of it; the rows after that point are deleted.

        Killed in the midst of this, the folder can still be read and reopened. Nobody else may
        write it. A UserError where it is no run's, lacks earlier rows, or cannot be written.
        """
        path = Path(path)
        folder = cls(path, read_manifest(path))
        run = folder.manifest
        run.status, run.error, run.ended = "running", None, None
        for table in TABLES:
            run.tables[table] = _extent(path, table, parts_of(path, table, parts.get(table, 0)))
        for table in TABLES:
            cut_back(path, table, parts.get(table, 0))
        write_manifest(path, run)
        return folder

    def parts(self) -> dict[str, int]:
        """Put all rows on disk; returns how many parts each table has then, for `reopen`."""
        self.flush()
        for table in TABLES:
            sync_folder(self.path / table)
        return {table: extent.parts for table, extent in self.manifest.tables.items()}

    def flush(self) -> None:
        """Put all rows and the manifest on disk; a UserError where that cannot be written."""
        for table, before in self.manifest.tables.items():
            if chunks := self._cut(table):
                rows = _joined(table, chunks)
                fields, encoding = _layout(tuple(c for c in TABLES[table] if c.name in rows))
                content = pa.Table.from_arrays([pa.array(v) for v in rows.values()], schema=fields)
                # Bytes, since the name may not be UTF-8.
                with (
                    whole(self.path / table / part_name(before.parts)) as temporary,
                    pa.OSFile(os.fsencode(temporary), "wb") as target,
                ):
                    pq.write_table(content, target, **encoding)
                # Only now, so that a part that failed is the next to be tried.
                after = Extent(before.parts + 1, before.rows + content.num_rows)
                self.manifest.tables[table] = after
                self._chunks[table], self._waiting[table] = [], 0
        self.manifest.updated = now()
        self._flushed = time.monotonic()
        write_manifest(self.path, self.manifest)

    def write(self, table: Table, columns: Columns) -> None:
        """Add rows to a table, and put all rows on disk where they are many or have waited long."""
        super().write(table, columns)
        old = time.monotonic() - self._flushed >= FLUSH_SECONDS
        if old or self._waiting[table] >= self._flush_rows:
            self.flush()


def _room(kinds: dict[str, np.dtype], rows: int) -> Arrays:
    """Columns in one block, since NumPy asks for large pages of memory for large blocks alone."""
    # The largest numbers first, so that all columns are aligned.
    columns = sorted(kinds.items(), key=lambda item: -item[1].itemsize)
    ends = np.cumsum([rows * kind.itemsize for _, kind in columns])
    parts = np.split(np.empty(ends[-1], np.uint8), ends[:-1])
    return {name: part.view(kind) for part, (name, kind) in zip(parts, columns, strict=True)}


def _joined(table: Table, chunks: list[Arrays]) -> Arrays:
    """Chunks of rows as one; an optional column that a chunk lacks is NaN in its rows."""
    names = {name for chunk in chunks for name in chunk}
    columns = [c for c in TABLES[table] if c.required or c.name in names]
    made: Arrays = {}
    for c in columns:
        parts = [
            chunk[c.name] if c.name in chunk else np.full(len(chunk["step"]), np.nan)
            for chunk in chunks
        ]
        lone = len(parts) == 1
        made[c.name] = parts[0] if lone else np.concatenate([np.empty(0, c.dtype), *parts])
    return made


@cache
def _layout(columns: tuple[Column, ...]) -> tuple[pa.Schema, dict[str, Any]]:
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


def _empty(table: Table) -> pd.DataFrame:
    return pd.DataFrame(_joined(table, []))


@dataclass
class Trace:
    """Tables and manifest of a run; the columns are those of `lab.trace.schema`.

    A table may be given as a function without arguments, which is called once it is asked for.
    """

    visits: pd.DataFrame
    """One row per replicate and visit of a problem; visit 0 is before training."""
    steps: pd.DataFrame
    """One row per replicate and batch."""
    evals: pd.DataFrame
    """One row per replicate and evaluation; step 0 is before training."""
    _: KW_ONLY
    run: Manifest
    folder: Path | None = None
    """Folder that it was read from."""
    votes: pd.DataFrame = field(default_factory=partial(_empty, "votes"))
    """One row per replicate, visit of a problem and answer with a vote; empty where not kept."""
    answers: pd.DataFrame = field(default_factory=partial(_empty, "answers"))
    """One row per replicate, problem and answer: its text; empty where answers are ids alone."""

    def __post_init__(self) -> None:
        values = vars(self)
        self._waiting = {name: values.pop(name) for name in TABLES if callable(values[name])}

    def __getattr__(self, name: str) -> Any:
        """Read a table, which is no attribute before it is first asked for."""
        if name not in TABLES:
            raise AttributeError(f"a trace has no {name}")
        vars(self)[name] = self._waiting[name]()
        return vars(self)[name]

    @classmethod
    def of(cls, run: MemoryRun) -> Trace:
        """The rows that are in memory."""
        tables: dict[Table, Any] = {t: pd.DataFrame(run.arrays(t), copy=False) for t in TABLES}
        return cls(**tables, run=run.manifest)

    @property
    def replicates(self) -> list[int]:
        """The replicates that have visits, in order."""
        return sorted(int(r) for r in self.visits["replicate"].unique())

    def answer_texts(self, replicate: int, problem: int) -> dict[int, str]:
        """Answer id to text, of one problem's answers; empty where the run wrote none."""
        rows = where(self.answers, replicate=replicate, problem=problem)
        return dict(zip(ints(rows, "answer").tolist(), rows["text"].astype(str), strict=True))


def load(folder: Path | str) -> Trace:
    """Read a run folder, also one whose run is going on or was killed.

    Which parts there are, and what columns they hold, is read at once; their rows when they are
    asked for (`UserError` then, where one is damaged inside or gone).

    Raises:
        UserError: the folder is missing, empty, foreign, damaged or newer, or lacks columns; or
            the run is finished and a table has other rows than it wrote.
    """
    folder = Path(folder)
    run = read_manifest(folder)
    parts = {table: parts_of(folder, table) for table in TABLES}
    extents: dict[Table, Extent] = {t: _extent(folder, t, parts[t]) for t in TABLES}
    for table, extent in extents.items():
        noted = run.tables.get(table, extent)
        if run.status == "finished" and extent != noted:
            raise UserError(
                f"{folder}: {table} has {extent.rows} of {noted.rows} rows, in {extent.parts} of "
                f"{noted.parts} parts; copy the folder again or repeat the run"
            )
    if not extents["visits"].rows:
        raise UserError(f"{folder}: holds no visits so far ({run.status})")
    # Partial functions and not lambdas, so that a trace can be sent to another process.
    tables: dict[Table, Any] = {t: partial(_read, folder, t, parts[t]) for t in TABLES}
    return Trace(**tables, run=run, folder=folder)


@contextlib.contextmanager
def _opened(folder: Path, path: Path) -> Iterator[pq.ParquetFile]:
    """Open a part of a run folder; what is read of it is checked by its pages' checksums.

    A UserError where it is gone, damaged or no file, also where that shows only while it is read.
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
        gone = "is gone; do not delete a run while it is read"
        raise UserError(f"{folder}: {where} {gone}") from error
    except (pa.ArrowException, OSError) as error:
        damaged = "is damaged; copy the folder again or repeat the run"
        raise UserError(f"{folder}: {where} {damaged}") from error


@contextlib.contextmanager
def _damage(folder: Path, table: Table) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, ValueError) as error:
        reason = first_line(error)
        raise UserError(f"{folder}: {table} is damaged ({reason}); run it again") from error


def _extent(folder: Path, table: Table, parts: Sequence[Path]) -> Extent:
    """Numbers of parts and rows, by the parts' own tables of contents; columns are checked."""
    rows, schemas = 0, []
    for path in parts:
        with _opened(folder, path) as file:
            rows += file.metadata.num_rows
            schemas.append(file.schema_arrow)
    with _damage(folder, table):
        merged = pa.unify_schemas(schemas, promote_options="default") if parts else pa.schema([])
        kinds = dict(zip(merged.names, merged.types, strict=True))
        if parts and (lacking := schema.missing(table, kinds)):
            raise UserError(f"{folder}: {table} lacks the columns {', '.join(lacking)}")
        for column in TABLES[table]:
            kind = kinds.get(column.name)
            if kind not in (None, pa.from_numpy_dtype(column.dtype)):
                raise pa.ArrowTypeError(f"{column.name} is {kind}")
    return Extent(len(parts), rows)


def _read(folder: Path, table: Table, parts: Sequence[Path]) -> pd.DataFrame:
    if not parts:
        return _empty(table)
    read = []
    for path in parts:
        with _opened(folder, path) as file:
            # Handing small parts to threads takes longer than reading them.
            read.append(file.read(use_threads=file.metadata.num_rows > _MANY_ROWS))
    with _damage(folder, table):
        rows = pa.concat_tables(read, promote_options="default")
        for column in rows.schema:
            if not pa.types.is_floating(column.type) and rows.column(column.name).null_count:
                raise pa.ArrowInvalid(f"{column.name} has empty cells")
        read.clear()
        frame = rows.to_pandas(split_blocks=True, self_destruct=True)
        schema.check_values(table, frame)
        return frame
