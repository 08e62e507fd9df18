"""Files that are whole or absent: written under a temporary name, then renamed."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from lab.errors import UserError

TEMPORARY = ".tmp"


@contextlib.contextmanager
def whole(target: Path) -> Iterator[Path]:
    """A temporary path that becomes `target` once it is complete and on disk.

    Raises:
        UserError: the disk cannot be written.
    """
    # The process in the name keeps two writers of one target apart: the last one wins whole.
    temporary = target.with_name(f"{target.name}.{os.getpid()}{TEMPORARY}")
    try:
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except OSError as error:
        reason = error.strerror or error
        raise UserError(f"{target}: cannot be written ({reason}); free or choose a disk") from error
