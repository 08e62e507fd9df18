"""The numbered Parquet parts of a run folder's tables, and the lock that keeps it to one writer.

Imports no library that reads them, so that commands can look at a folder at once.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

from lab.base.errors import UserError
from lab.base.files import TEMPORARY
from lab.trace.manifest import FILE_NAME, Extent, read_manifest
from lab.trace.schema import TABLES

LOCK_NAME = ".lock"


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a folder for this process; the hold ends with the process, however that ends.

    Where the system has no such locks, nothing is held.

    Raises:
        UserError: another process holds the folder, or it cannot be written.
    """
    if os.name != "posix":
        yield
        return
    try:
        file = (folder / LOCK_NAME).open("w")
    except OSError as error:
        reason = error.strerror or error
        raise UserError(f"{folder}: cannot be written ({reason}); give a run folder") from error
    with file:
        _lock(folder, file.fileno())
        yield


def _lock(folder: Path, descriptor: int) -> None:
    import fcntl

    try:
        # Not flock: a forked child would share that lock, and keep it when this process is killed.
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise UserError(
            f"{folder}: another process writes this run; wait for it or end it"
        ) from None
    except OSError as error:
        raise UserError(
            f"{folder}: cannot be locked ({error.strerror}); move it to another disk"
        ) from error


_NAME = re.compile(r"part-(\d{5,})\.parquet")


def part_name(number: int) -> str:
    """Name of a part's file."""
    return f"part-{number:05d}.parquet"


def part_number(name: str) -> int | None:
    """Number of a complete part; None for other files, such as a killed writer's temporary ones."""
    match = _NAME.fullmatch(name)
    return int(match[1]) if match else None


def part_numbers(folder: Path, table: str) -> set[int]:
    """Numbers of a table's complete parts."""
    place = folder / table
    names = [path.name for path in place.iterdir()] if place.is_dir() else []
    return {number for name in names if (number := part_number(name)) is not None}


def check_parts(folder: Path, table: str, n_parts: int) -> None:
    """Refuse a table that lacks one of its first parts.

    Raises:
        UserError: a part is missing.
    """
    gaps = sorted(set(range(n_parts)) - part_numbers(folder, table))
    if gaps:
        raise UserError(f"{folder}: {table}/{part_name(gaps[0])} is missing; copy the folder whole")


def cut_back(folder: Path, table: str, n_parts: int) -> None:
    """Delete all but a table's first parts, the last one first: never leave a gap.

    Raises:
        UserError: the folder cannot be written.
    """
    place = folder / table
    try:
        place.mkdir(exist_ok=True)
        for number in sorted(part_numbers(folder, table), reverse=True):
            if number >= n_parts:
                (place / part_name(number)).unlink()
        for path in place.glob(f"*{TEMPORARY}"):
            path.unlink()
    except OSError as error:
        raise UserError(
            f"{folder}: {table} cannot be cut back ({error.strerror}); make the folder writable"
        ) from error


def make_tables(path: Path) -> None:
    """Make a run folder with a folder for each table.

    Raises:
        UserError: it exists with something in it, or cannot be made.
    """
    check_new(path)
    try:
        for table in TABLES:
            (path / table).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unmakable(path, error) from error


def check_new(path: Path) -> None:
    """Refuse a folder in which no new run can be made.

    Raises:
        UserError: it exists with something in it, or cannot be read.
    """
    try:
        if (path / FILE_NAME).exists():
            raise UserError(f"{path}: already holds a run; {_remedy(path)}")
        if path.exists() and not path.is_dir():
            raise UserError(f"{path}: is a file; choose another folder")
        if path.is_dir() and not is_unused(path):
            raise UserError(f"{path}: is not empty; choose another folder")
    except OSError as error:
        raise _unmakable(path, error) from error


def _remedy(path: Path) -> str:
    try:
        run = read_manifest(path)
    except UserError:
        return "choose another folder"
    if run.world == "real" and run.status != "finished":
        command = f"guard-train resume {shlex.quote(str(path))}"
        step = run.tables.get("steps", Extent()).rows
        return f"stopped at step {step}, go on with {command}, or choose another folder"
    return "choose another folder or delete it"


def _unmakable(path: Path, error: OSError) -> UserError:
    reason = error.strerror
    return UserError(f"{path}: cannot be made ({reason}); choose a folder you may write to")


def is_unused(path: Path) -> bool:
    """Return whether a folder holds nothing, or what is left of a run killed before `run.json`.

    That is empty tables, and logs of engines, which start before the run.
    """
    if not path.is_dir():
        return False
    left = (f"*{TEMPORARY}", "engine-rank*.log")
    entries = [e for e in path.iterdir() if not any(fnmatch(e.name, name) for name in left)]
    return all(e.name in TABLES and e.is_dir() and not any(e.iterdir()) for e in entries)
