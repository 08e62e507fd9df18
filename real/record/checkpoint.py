"""Checkpoints: all that a run needs to continue to the bit, written whole or not at all.

    RUN/checkpoints/step-000123/
        NAME.safetensors, NAME.json
                                the state of the run, see `real.run`
        checkpoint.json         place in the run, settings, digests of the files above

No generator's state is saved: every draw has a generator of its own, made from seed, stream and
place (`real.settings.seeds`), which also gives the order of the problems. Tensors and JSON alone:
reading a checkpoint runs nothing.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from lab.errors import UserError
from lab.files import TEMPORARY, remove_folder, whole_folder
from lab.trace.store import RunFolder
from real.ranks.tensor_files import file_digest, read_tensors, take_part, write_tensors
from real.record.terminal import say

VERSION = 1
"""Raised when an older program would misread a checkpoint."""
FOLDER = "checkpoints"
INDEX = "checkpoint.json"
TENSORS = ".safetensors"
TOLD_FROM = 10**7
"""Bytes of all checkpoints from which on their size is reported at the start."""

_NAME = re.compile(r"step-(\d{6,})")

State = Mapping[str, Any]
"""File names and their contents: tensors by name for `NAME.safetensors`, else plain values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """The contents of `checkpoint.json`."""

    version: int
    step: int
    """Batches that were done."""
    parts: dict[str, int]
    """Parts of each table of the trace that hold the rows up to there."""
    config: dict[str, Any]
    extra: dict[str, Any]
    """The manifest's facts at that time, counters among them."""
    files: dict[str, str]
    """SHA-256 of each file."""


class Checkpoints:
    """Writes the checkpoints of one run and keeps the last few."""

    def __init__(self, run_folder: RunFolder | None, every: int, keep: int) -> None:
        """Set up.

        Args:
            run_folder: holds the trace; None on ranks that do not write.
            every: batches between checkpoints.
            keep: number of checkpoints that stay on disk.
        """
        self._run_folder, self._every, self._keep = run_folder, every, keep

    def due(self, step: int) -> bool:
        """Return whether a checkpoint is to be written after this batch."""
        return step % self._every == 0

    def save(self, state: State, step: int) -> None:
        """Write a checkpoint after `step` batches, then delete the oldest ones.

        The rows of the trace are put on disk first: the checkpoint says how many parts they fill.
        All ranks must call this: sharded tensors are gathered.

        Raises:
            UserError: the disk cannot be written; earlier checkpoints are as they were.
        """
        if self._run_folder is None:
            for name in filter(_holds_tensors, state):
                take_part(state[name])
            return
        root, manifest = self._run_folder.path / FOLDER, self._run_folder.manifest
        parts = self._run_folder.parts()
        with whole_folder(root / f"step-{step:06d}") as folder:
            files = {name: _write(folder / name, content) for name, content in state.items()}
            index = Checkpoint(
                version=VERSION,
                step=step,
                parts=parts,
                config=dict(manifest.config),
                extra=dict(manifest.extra),
                files=files,
            )
            (folder / INDEX).write_bytes(msgspec.json.format(msgspec.json.encode(index)))
        for old in _checkpoints_in(root)[self._keep :]:
            remove_folder(old)


def check_room(run_folder: Path, n_bytes: int, keep: int, n_written: int) -> list[str]:
    """Return a notice of the disk space that the checkpoints of a run will take; none if small.

    Args:
        run_folder: of the run; need not exist yet.
        n_bytes: of one checkpoint.
        keep: number of checkpoints that stay on disk.
        n_written: number of checkpoints that the whole run writes.

    Raises:
        UserError: the disk has too little room; a new checkpoint is written before the oldest one
            is deleted.
    """
    path = run_folder.absolute()
    disk = next(folder for folder in (path, *path.parents) if folder.exists())
    free, most, kept = shutil.disk_usage(disk).free, min(keep + 1, n_written), min(keep, n_written)
    if free < most * n_bytes:
        raise UserError(
            f"{run_folder}: the disk has {_size(free)} free, and up to {most} checkpoints of "
            f"{_size(n_bytes)} need {_size(most * n_bytes)}; lower checkpoint_keep, set lora_rank, "
            "or write none with checkpoint_every 0"
        )
    if kept * n_bytes < TOLD_FROM:
        return []
    return [f"checkpoints: {_size(n_bytes)} each; {kept} are kept, {_size(kept * n_bytes)} in all"]


def latest(run_folder: Path) -> tuple[Path, Checkpoint] | None:
    """Return the folder and contents of the last whole checkpoint; None if there never was one.

    Checkpoints that cannot be used are named on stderr.

    Raises:
        UserError: there are checkpoints, but none can be used.
    """
    folders = _checkpoints_in(run_folder / FOLDER)
    for i, folder in enumerate(folders):
        try:
            return folder, _read_index(folder)
        except UserError as error:
            last = i + 1 == len(folders)
            remedy = "it was the last one" if last else "the one before it is used"
            say([f"{error}; {remedy}"])
    if folders:
        raise UserError(
            f"{run_folder}: none of its {len(folders)} checkpoints can be used; run again"
        )
    return None


def read_file(path: Path) -> Any:
    """Return the contents of one file of a checkpoint, tensors or plain values.

    Raises:
        UserError: tensors are missing or damaged.
    """
    return read_tensors(path) if _holds_tensors(path.name) else _read_json(path)


def remove_leftovers(run_folder: Path) -> None:
    """Delete what a killed process left of an unfinished checkpoint."""
    root = run_folder / FOLDER
    for path in root.glob(f"*{TEMPORARY}") if root.is_dir() else ():
        remove_folder(path)


def _checkpoints_in(root: Path) -> list[Path]:
    """Checkpoint folders, the latest first."""
    steps = {
        int(match[1]): path
        for path in (root.iterdir() if root.is_dir() else ())
        if (match := _NAME.fullmatch(path.name))
    }
    return [steps[step] for step in sorted(steps, reverse=True)]


def _read_index(folder: Path) -> Checkpoint:
    """Return the contents of `checkpoint.json`, after a check that all files are unchanged."""
    try:
        values = _read_json(folder / INDEX)
        version = values["version"]
        if version > VERSION:
            raise UserError(f"{folder}: version {version} is newer than this program's {VERSION}")
        index = msgspec.convert(values, Checkpoint)
        for name, digest in index.files.items():
            if file_digest(folder / name) != digest:
                raise UserError(f"{folder}: {name} is damaged")
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise UserError(f"{folder}: is damaged or incomplete ({error})") from error
    return index


def _size(n_bytes: int) -> str:
    return f"{n_bytes / 1e9:.1f} GB" if n_bytes >= 1e9 else f"{n_bytes / 1e6:.1f} MB"


def _holds_tensors(name: str) -> bool:
    return name.endswith(TENSORS)


def _read_json(path: Path) -> Any:
    return msgspec.json.decode(path.read_bytes())


def _write(path: Path, content: Any) -> str:
    """Write one file and return its digest."""
    if _holds_tensors(path.name):
        return write_tensors(path, content)
    path.write_bytes(msgspec.json.encode(content))
    return file_digest(path)
