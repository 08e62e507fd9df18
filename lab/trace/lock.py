"""One writer per run folder."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from lab.errors import UserError

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
