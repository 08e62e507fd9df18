"""Room on the disk for what a run writes."""

from __future__ import annotations

import shutil
from pathlib import Path

from lab.errors import UserError

TOLD_FROM = 10**7
"""Bytes of all checkpoints from which on their size is reported at the start."""


def check_room(
    run_folder: Path, n_bytes: int, keep: int, n_written: int, final: int = 0
) -> list[str]:
    """Return a notice of the disk space that the checkpoints of a run will take; none if small.

    Args:
        run_folder: of the run; need not exist yet.
        n_bytes: of one checkpoint.
        keep: number of checkpoints that stay on disk.
        n_written: number of checkpoints that the whole run writes.
        final: bytes of the trained model, which is written at the end.

    Raises:
        UserError: the disk has too little room; a new checkpoint is written before the oldest one
            is deleted, and the trained model beside those that are kept.
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
    if free < (needed := kept * n_bytes + final):
        beside = f" beside {kept} checkpoints of {_size(n_bytes)}" if kept else ""
        raise UserError(
            f"{run_folder}: the disk has {_size(free)} free, and the trained model of "
            f"{_size(final)}{beside} needs {_size(needed)}; lower checkpoint_keep, or write no "
            "model with save_model false"
        )
    if kept * n_bytes < TOLD_FROM:
        return []
    return [f"checkpoints: {_size(n_bytes)} each; {kept} are kept, {_size(kept * n_bytes)} in all"]


def _size(n_bytes: int) -> str:
    return f"{n_bytes / 1e9:.1f} GB" if n_bytes >= 1e9 else f"{n_bytes / 1e6:.1f} MB"
