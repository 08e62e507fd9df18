"""A run as its readers see it: its tables and a manifest, from a folder or from memory."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass
from functools import partial
from pathlib import Path
from typing import overload

import pandas as pd
import pyarrow as pa

from lab.base.columns import ints
from lab.base.errors import UserError, first_line
from lab.trace.manifest import Extent, Manifest, read_manifest
from lab.trace.parts import check_parts, part_name, part_numbers
from lab.trace.schema import TABLES, Columns, Table, check_values, checked, missing
from lab.trace.store import MemoryRun, RunFolder, opened

_MANY_ROWS = 50_000


def _empty(table: Table) -> pd.DataFrame:
    return pd.DataFrame({c.name: pd.Series(dtype=c.dtype) for c in TABLES[table] if c.required})


class _Table:
    """An attribute that holds a table, or a function that reads it once it is asked for."""

    def __init__(self, default: Callable[[], pd.DataFrame] | None = None) -> None:
        self._default = default

    def __set_name__(self, owner: type[Trace], name: str) -> None:
        self._name = f"_{name}"

    @overload
    def __get__(self, trace: None, owner: type[Trace]) -> Callable[[], pd.DataFrame]: ...
    @overload
    def __get__(self, trace: Trace, owner: type[Trace]) -> pd.DataFrame: ...
    def __get__(
        self, trace: Trace | None, owner: type[Trace]
    ) -> pd.DataFrame | Callable[[], pd.DataFrame]:
        if trace is None:  # the dataclass asks for the default
            if self._default is None:
                raise AttributeError(self._name)
            return self._default
        content = vars(trace)[self._name]
        if not isinstance(content, pd.DataFrame):
            content = vars(trace)[self._name] = content()
        return content

    def __set__(self, trace: Trace, content: pd.DataFrame | Callable[[], pd.DataFrame]) -> None:
        vars(trace)[self._name] = content


@dataclass
class Trace:
    """Tables and manifest of a run; the columns are those of `lab.trace.schema`.

    Tables of a folder are read when they are first asked for, and then kept.
    """

    visits: _Table = _Table()
    """One row per replicate and visit of a problem; visit 0 is before training."""
    steps: _Table = _Table()
    """One row per replicate and batch."""
    evals: _Table = _Table()
    """One row per replicate and evaluation; step 0 is before training."""
    _: KW_ONLY
    run: Manifest
    folder: Path | None = None
    """Folder that it was read from."""
    votes: _Table = _Table(partial(_empty, "votes"))
    """One row per replicate, visit of a problem and answer with a vote; empty where not kept."""
    answers: _Table = _Table(partial(_empty, "answers"))
    """One row per replicate, problem and answer: its text; empty where answers are ids alone."""

    @classmethod
    def in_memory(
        cls,
        run: Manifest,
        visits: Columns,
        steps: Columns,
        evals: Columns,
        votes: Columns | None = None,
    ) -> Trace:
        """A trace without a folder.

        Args:
            visits: columns of `lab.trace.schema.VISITS`, (rows,) each or a scalar for all rows.
            votes: the same for the votes, which a run may not have kept.

        Raises:
            ValueError: a column is missing, unknown or of a wrong kind.
        """
        return cls(
            visits=pd.DataFrame(checked("visits", visits)),
            steps=pd.DataFrame(checked("steps", steps)),
            evals=pd.DataFrame(checked("evals", evals)),
            run=run,
            votes=_empty("votes") if votes is None else pd.DataFrame(checked("votes", votes)),
        )

    @classmethod
    def of(cls, recorder: MemoryRun | RunFolder) -> Trace:
        """The rows that a recorder holds, or has put on disk."""
        if isinstance(recorder, RunFolder):
            return _of_parts(recorder.path, recorder.manifest, _all_parts(recorder.path))
        return cls(
            visits=pd.DataFrame(recorder.arrays("visits"), copy=False),
            steps=pd.DataFrame(recorder.arrays("steps"), copy=False),
            evals=pd.DataFrame(recorder.arrays("evals"), copy=False),
            run=recorder.manifest,
            votes=pd.DataFrame(recorder.arrays("votes"), copy=False),
            answers=pd.DataFrame(recorder.arrays("answers"), copy=False),
        )

    @property
    def replicates(self) -> list[int]:
        """The replicates that have visits, in order."""
        return sorted(int(r) for r in self.visits["replicate"].unique())

    def answer_texts(self, replicate: int, problem: int) -> dict[int, str]:
        """Answer id to text, of one problem's answers; empty where the run wrote none."""
        rows = self.answers
        own = (ints(rows, "replicate") == replicate) & (ints(rows, "problem") == problem)
        texts = rows["text"][own].astype(str)
        return dict(zip(ints(rows, "answer")[own].tolist(), texts, strict=True))


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
    parts = _all_parts(folder)
    rows = {table: _check_parts(folder, table, parts[table]) for table in TABLES}
    if run.status == "finished":
        for table in TABLES:
            _check_whole(folder, table, Extent(len(parts[table]), rows[table]), run)
    if not rows["visits"]:
        raise UserError(f"{folder}: holds no visits so far ({run.status})")
    return _of_parts(folder, run, parts)


def _of_parts(folder: Path, run: Manifest, parts: dict[Table, list[Path]]) -> Trace:
    # Partial functions and not lambdas, so that a trace can be sent to another process.
    tables = {table: partial(_read, folder, table, parts[table]) for table in TABLES}
    return Trace(**tables, run=run, folder=folder)


def _check_parts(folder: Path, table: Table, parts: list[Path]) -> int:
    """Number of rows, by the parts' own tables of contents."""
    rows, schemas = 0, []
    for path in parts:
        with opened(folder, path) as file:
            rows += file.metadata.num_rows
            schemas.append(file.schema_arrow)
    if parts:
        with _damage(folder, table):
            _check_columns(folder, table, pa.unify_schemas(schemas, promote_options="default"))
    return rows


def _check_whole(folder: Path, table: Table, found: Extent, run: Manifest) -> None:
    noted = run.tables.get(table, found)
    if found != noted:
        raise UserError(
            f"{folder}: {table} has {found.rows} of {noted.rows} rows, in {found.parts} of "
            f"{noted.parts} parts; copy the folder again or repeat the run"
        )


def _check_columns(folder: Path, table: Table, found: pa.Schema) -> None:
    kinds = dict(zip(found.names, found.types, strict=True))
    lacking = missing(table, kinds)
    if lacking:
        raise UserError(f"{folder}: {table} lacks the columns {', '.join(lacking)}")
    for column in TABLES[table]:
        if (kind := kinds.get(column.name)) is not None:
            text = column.dtype == "str" and pa.types.is_string(kind)
            if not (text or pa.types.is_primitive(kind) or pa.types.is_null(kind)):
                raise pa.ArrowTypeError(f"{column.name} is {kind}")


def _read(folder: Path, table: Table, parts: list[Path]) -> pd.DataFrame:
    if not parts:
        return _empty(table)
    read = []
    for path in parts:
        with opened(folder, path) as file:
            # Handing small parts to threads takes longer than reading them.
            read.append(file.read(use_threads=file.metadata.num_rows > _MANY_ROWS))
    with _damage(folder, table):
        whole = _typed(pa.concat_tables(read, promote_options="default"), table)
        read.clear()
        found = whole.to_pandas(split_blocks=True, self_destruct=True)
        check_values(table, found)
        return found


@contextlib.contextmanager
def _damage(folder: Path, table: Table) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, ValueError) as error:
        reason = first_line(error)
        raise UserError(f"{folder}: {table} is damaged ({reason}); run it again") from error


def _all_parts(folder: Path) -> dict[Table, list[Path]]:
    return {table: _parts(folder, table) for table in TABLES}


def _parts(folder: Path, table: Table) -> list[Path]:
    """Complete parts in order; temporary files of a killed writer do not match the name."""
    try:
        n_parts = len(part_numbers(folder, table))
        check_parts(folder, table, n_parts)
    except OSError as error:
        raise UserError(f"{folder}: {table} cannot be read ({error.strerror})") from error
    return [folder / table / part_name(number) for number in range(n_parts)]


def _typed(whole: pa.Table, table: Table) -> pa.Table:
    """Columns in the schema's types, whatever wrote them.

    Raises:
        ArrowException: a column cannot be converted, or a value that must be there is not.
    """
    wanted = {c.name: pa.from_numpy_dtype(c.dtype) for c in TABLES[table]}
    types = [(name, wanted.get(name, whole.schema.field(name).type)) for name in whole.column_names]
    typed = whole.cast(pa.schema(types))
    for name, kind in types:
        if typed.column(name).null_count and not pa.types.is_floating(kind):
            raise pa.ArrowInvalid(f"{name} has empty cells")
    return typed
