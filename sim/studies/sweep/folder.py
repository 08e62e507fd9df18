"""The folder of a sweep: `sweep.json`, `parts/` of finished jobs, and `results.parquet`.

Parts are written whole and renamed, at most a few seconds after their jobs ended, so a sweep that
is killed loses little. `results.parquet` has one row per cell, arm and replicate and is rewritten
whenever the sweep ends or is interrupted; `sim.studies.sweep.read_sweep` makes it from the parts
at any time.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from lab.errors import UserError
from lab.files import TEMPORARY, whole
from lab.trace.provenance import command, commit, machine, now, versions

FILE = "sweep.json"
RESULTS = "results.parquet"
PARTS = "parts"
TRACES = "traces"
FORMAT = 1
"""Raised when old parts would be misread."""
_PATIENCE = 2.0
"""Seconds that finished jobs wait in memory at most, once another one ends."""
_DIFFERENCES = 5
FACTS = ("step_factor", "skip_rate", "achieved_ratio")
"""Columns other than the measures: the number of a control and the match that it achieved."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a job."""

    key: str
    table: pd.DataFrame | None
    """One row per replicate, columns `MEASURES` and `FACTS`; None where it failed."""
    reason: str = ""
    """Reason of its failure."""


class SweepFolder:
    """The finished jobs of one sweep, on disk."""

    def __init__(self, path: Path, definition: dict[str, Any]) -> None:
        """Use `create`."""
        self.path, self.definition = path, definition
        self.tables: dict[str, pd.DataFrame] = {}
        """Numbers by job."""
        self.failures: dict[str, str] = {}
        """Reasons by job."""
        self._facts: dict[str, Any] = {
            "format": FORMAT,
            "definition": definition,
            "started": now(),
            "commits": [],
        }
        self._pending: list[Outcome] = []
        self._flushed = time.monotonic()

    @classmethod
    def create(cls, path: Path, definition: dict[str, Any]) -> SweepFolder:
        """Make the folder, or continue in it.

        Args:
            path: a new or empty folder, or one with a sweep of the same definition.
            definition: plain values.

        Raises:
            UserError: the folder holds something else; a different sweep is named by its fields.
        """
        folder = cls(path, definition)
        if (path / FILE).exists():
            old = _facts(path)
            if old["definition"] != definition:
                raise UserError(_differing(path, old["definition"], definition))
            folder._facts |= {name: old[name] for name in ("started", "commits")}
            folder._read()
        elif path.exists() and not _is_new(path):
            raise UserError(f"{path}: exists and holds no sweep; choose another folder")
        try:
            (path / PARTS).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"{path}: cannot be made ({error.strerror})") from error
        return folder

    @classmethod
    def read(cls, path: Path) -> SweepFolder:
        """Read the folder as it is.

        Raises:
            UserError: there is no sweep in it, or it is damaged.
        """
        folder = cls(path, _facts(path)["definition"])
        folder._read()
        return folder

    def __contains__(self, key: str) -> bool:
        return key in self.tables or key in self.failures

    def add(self, outcome: Outcome) -> None:
        """Keep a job's outcome; it is on disk a few seconds later, or after `flush`."""
        self._note(outcome.key, outcome.table, outcome.reason)
        self._pending.append(outcome)
        if time.monotonic() - self._flushed > _PATIENCE:
            self.flush()

    def flush(self) -> None:
        """Put all outcomes on disk."""
        if self._pending:
            # Named by its first job: two processes in one folder repeat work but lose none.
            name = f"part-{self._pending[0].key}.parquet"
            parts = [_rows(outcome) for outcome in self._pending]
            _write(pd.concat(parts, ignore_index=True), self.path / PARTS / name)
            self._pending = []
        self._flushed = time.monotonic()

    def finish(self, results: pd.DataFrame, status: str, **facts: Any) -> None:
        """Write the results and how the sweep stands."""
        self.flush()
        _write(results, self.path / RESULTS)
        self.describe(status, **facts)

    def describe(self, status: str, **facts: Any) -> None:
        """Write `sweep.json`."""
        self._facts |= {
            "status": status,
            "updated": now(),
            "versions": versions(),
            # More than one: the sweep was continued by other code than began it.
            "commits": list(dict.fromkeys([*self._facts["commits"], commit()])),
            "machine": machine(),
            "command": command(),
            **facts,
        }
        content = msgspec.json.format(msgspec.json.encode(self._facts), indent=2)
        with whole(self.path / FILE) as temporary:
            temporary.write_bytes(content + b"\n")

    def _note(self, key: str, table: pd.DataFrame | None, reason: str) -> None:
        if table is not None:
            self.tables[key] = table
            self.failures.pop(key, None)
        elif key not in self.tables:
            self.failures[key] = reason

    def _read(self) -> None:
        for path in sorted((self.path / PARTS).glob("part-*.parquet")):
            for outcome in _outcomes(path):
                self._note(outcome.key, outcome.table, outcome.reason)


def _is_new(path: Path) -> bool:
    """Return whether a folder is empty, or holds what a sweep makes before `sweep.json`."""
    if not path.is_dir():
        return False
    return all(e.name == PARTS or e.name.endswith(TEMPORARY) for e in path.iterdir())


def _facts(path: Path) -> dict[str, Any]:
    """Return the content of `sweep.json`."""
    try:
        facts = msgspec.json.decode((path / FILE).read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        raise UserError(f"{path}: holds no sweep ({FILE} is missing)") from None
    except (OSError, msgspec.DecodeError) as error:
        raise UserError(f"{path}: {FILE} is damaged ({error}); choose another folder") from error
    if not (isinstance(facts, dict) and {"definition", "started", "commits"} <= facts.keys()):
        raise UserError(f"{path}: {FILE} is not of this program; choose another folder")
    if facts.get("format") != FORMAT:
        raise UserError(f"{path}: {FILE} is of another version; choose another folder")
    return facts


def _differing(path: Path, old: dict[str, Any], new: dict[str, Any]) -> str:
    before, after = dict(_leaves("", old)), dict(_leaves("", new))
    names = [n for n in {**before, **after} if before.get(n) != after.get(n)]
    shown = [
        f"{n} is {before.get(n, 'absent')!r} there and {after.get(n, 'absent')!r} here"
        for n in names[:_DIFFERENCES]
    ]
    more = f" and {len(names) - _DIFFERENCES} more" if len(names) > _DIFFERENCES else ""
    text = "; ".join(shown)
    return f"{path}: holds another sweep: {text}{more}; repeat its command or choose another folder"


def _leaves(prefix: str, values: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(values, dict) and values:
        for name, value in values.items():
            yield from _leaves(f"{prefix}.{name}" if prefix else name, value)
    elif isinstance(values, list) and any(isinstance(value, dict) for value in values):
        for index, value in enumerate(values):
            yield from _leaves(f"{prefix}[{index}]", value)
    else:
        yield prefix, values


def _rows(outcome: Outcome) -> pd.DataFrame:
    if outcome.table is None:
        return pd.DataFrame({"key": [outcome.key], "reason": [outcome.reason], "replicate": [-1]})
    return outcome.table.assign(key=outcome.key, reason="")


def _outcomes(path: Path) -> Iterator[Outcome]:
    try:
        rows = pq.ParquetFile(path).read().to_pandas()
    except (pa.ArrowException, OSError):
        # Its jobs are run again, and the part is written again under the same name.
        return
    for key, part in rows.groupby("key", sort=False):
        reason = str(part["reason"].iloc[0])
        table = part.drop(columns=["key", "reason"]).reset_index(drop=True)
        yield Outcome(str(key), None if reason else table, reason)


def _write(rows: pd.DataFrame, target: Path) -> None:
    with whole(target) as temporary:
        pq.write_table(pa.Table.from_pandas(rows, preserve_index=False), temporary)


def together(tables: dict[str, pd.DataFrame], keys: Collection[str]) -> pd.DataFrame:
    """The tables of some jobs below each other, with their job in the column `key`."""
    parts = [tables[key].assign(key=key) for key in keys if key in tables]
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame({"key": []})
