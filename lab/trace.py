"""A run as its readers see it: three tables and a manifest, from a folder or from memory."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from lab.errors import UserError
from lab.manifest import Manifest, read_manifest
from lab.schema import TABLES, Columns, Table, checked, missing
from lab.store import MemoryRun

_PART = re.compile(r"part-(\d{5,})\.parquet")


@dataclass(slots=True)
class Trace:
    """What a run left behind; the columns are those of `lab.schema`."""

    visits: pd.DataFrame
    """One row per replicate and visit of a problem; visit 0 is before training."""
    steps: pd.DataFrame
    """One row per replicate and batch."""
    evals: pd.DataFrame
    """One row per replicate and evaluation; step 0 is before training."""
    run: Manifest
    folder: Path | None = None
    """Where it was read from."""

    @classmethod
    def in_memory(
        cls,
        run: Manifest,
        visits: Columns,
        steps: Columns,
        evals: Columns,
    ) -> Trace:
        """A trace without a folder.

        Args:
            run: the manifest.
            visits: columns of `lab.schema.VISITS`, (rows,) each or a scalar for all rows.
            steps: the same for the steps.
            evals: the same for the evaluations.

        Raises:
            ValueError: a column is missing, unknown or of a wrong kind.
        """
        return cls(
            visits=pd.DataFrame(checked("visits", visits)),
            steps=pd.DataFrame(checked("steps", steps)),
            evals=pd.DataFrame(checked("evals", evals)),
            run=run,
        )

    @classmethod
    def of(cls, recorder: MemoryRun) -> Trace:
        """The rows that a `MemoryRun` holds."""
        return cls(
            visits=pd.DataFrame(recorder.arrays("visits")),
            steps=pd.DataFrame(recorder.arrays("steps")),
            evals=pd.DataFrame(recorder.arrays("evals")),
            run=recorder.manifest,
        )

    @property
    def replicates(self) -> list[int]:
        """The replicates that have visits, in order."""
        return sorted(int(r) for r in self.visits["replicate"].unique())


def load(folder: Path | str) -> Trace:
    """Read a run folder, also one whose run is going on or was killed.

    Raises:
        UserError: the folder is missing, empty, foreign, damaged or newer, or lacks columns.
    """
    folder = Path(folder)
    run = read_manifest(folder)
    visits = _read(folder, "visits")
    if visits.empty:
        raise UserError(f"{folder}: holds no visits; the run ended before it wrote any")
    return Trace(visits, _read(folder, "steps"), _read(folder, "evals"), run, folder)


def _read(folder: Path, table: Table) -> pd.DataFrame:
    parts = [_read_part(folder, part) for part in _parts(folder, table)]
    if not parts:
        return pd.DataFrame({c.name: pd.Series(dtype=c.dtype) for c in TABLES[table] if c.required})
    try:
        whole = pa.concat_tables(parts, promote_options="default")
        lacking = missing(table, set(whole.column_names))
        if lacking:
            raise UserError(f"{folder}: {table} lacks the columns {', '.join(lacking)}")
        return _typed(whole, table).to_pandas(split_blocks=True, self_destruct=True)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"{folder}: {table} is damaged ({reason}); run it again") from error


def _parts(folder: Path, table: Table) -> list[Path]:
    """Complete parts in order; temporary files of a killed writer do not match the name."""
    numbered: dict[int, Path] = {}
    if (folder / table).is_dir():
        for path in (folder / table).iterdir():
            match = _PART.fullmatch(path.name)
            if match:
                numbered[int(match[1])] = path
    gaps = sorted(set(range(len(numbered))) - set(numbered))
    if gaps:
        raise UserError(
            f"{folder}: {table}/part-{gaps[0]:05d}.parquet is missing; copy the folder whole"
        )
    return [numbered[number] for number in sorted(numbered)]


def _read_part(folder: Path, path: Path) -> pa.Table:
    try:
        return pq.ParquetFile(path).read()
    except (pa.ArrowException, OSError) as error:
        where = path.relative_to(folder)
        raise UserError(
            f"{folder}: {where} is damaged; copy the folder again or repeat the run"
        ) from error


def _typed(whole: pa.Table, table: Table) -> pa.Table:
    """Columns in the schema's types, whatever wrote them."""
    wanted = {c.name: pa.from_numpy_dtype(c.dtype) for c in TABLES[table]}
    types = [(name, wanted.get(name, whole.schema.field(name).type)) for name in whole.column_names]
    return whole.cast(pa.schema(types))
