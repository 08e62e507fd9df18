"""Files and folders that are whole or absent: written under a temporary name, then renamed."""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from lab.base.errors import UserError, refusing

TEMPORARY, REMOVED = ".tmp", ".old.tmp"
"""Ends of the names of what is not whole yet, and of folders on their way to removal."""
Folders = Path | str | Sequence[Path | str]
"""One folder to read, or several."""


@contextlib.contextmanager
def whole(target: Path) -> Iterator[Path]:
    """A temporary path that becomes `target` once it is complete and on disk."""
    # The writer in the name keeps two writers of one target apart: the last one wins whole.
    writer = f"{os.getpid()}-{threading.get_native_id()}"
    temporary = target.with_name(f"{target.name}.{writer}{TEMPORARY}")
    with writing(target):
        try:
            yield temporary
            with temporary.open("rb+") as file:
                os.fsync(file.fileno())
            os.replace(temporary, target)
        except OSError:
            with contextlib.suppress(OSError):  # it may be what filled the disk
                temporary.unlink(missing_ok=True)
            raise


@contextlib.contextmanager
def whole_folder(target: Path, replaces: bool = False) -> Iterator[Path]:
    """A temporary folder that becomes `target` once its files are complete and on disk.

    Only with `replaces` it may take the place of a folder that holds something.
    A process killed within leaves a name that ends in `TEMPORARY`; only one process may write.
    What was written of the new folder is removed where the disk cannot be written.
    """
    if not replaces:
        check_new_folder(target)
    # The folder behind a link, and the current one under its name.
    place = target.resolve()
    mark = "" if replaces else f".{secrets.token_hex(4)}"  # `NAME.tmp` may be the user's own
    temporary = place.with_name(f"{place.name}{mark}{TEMPORARY}")
    with writing(target):
        try:
            remove_folder(temporary)
            temporary.mkdir(parents=True)
            yield temporary
            for path in (*temporary.rglob("*"), temporary):
                if path.is_dir():
                    sync_folder(path)
                    continue
                with path.open("rb+") as file:
                    os.fsync(file.fileno())
            if replaces:
                remove_folder(place)
            elif place.is_dir():
                place.rmdir()
            temporary.rename(place)
            sync_folder(place.parent)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise


def check_new_file(target: Path) -> None:
    """Refuse a file that exists or that no folder is for, before the work that would fill it."""
    if target.exists():
        raise UserError(f"{target}: exists; give another name")
    check_parent(target)


def check_parent(target: Path) -> None:
    """Refuse a file that no folder is for."""
    if not target.absolute().parent.is_dir():
        raise UserError(f"{target}: its folder does not exist; make it or choose another")


def check_new_folder(target: Path) -> None:
    """Refuse what is no new or empty folder, before the work that would fill it."""
    with writing(target):
        if target.is_dir() and any(target.iterdir()):
            raise UserError(f"{target}: is not empty; choose a new folder")
        if os.path.lexists(target) and not target.is_dir():
            raise UserError(f"{target}: is a file; choose a new folder")
        above = next(path for path in target.absolute().parents if path.exists())
        if not above.is_dir():
            raise UserError(f"{target}: cannot be written ({above} is a file); choose a new folder")


def make_folder(folder: Path, is_own: Callable[[Path], bool]) -> None:
    """Make a folder, or refuse one that holds something else than what `is_own`."""
    with refusing(f"{folder}: cannot be made", "choose another"):
        folder.mkdir(parents=True, exist_ok=True)
        paths = [path for path in folder.iterdir() if not path.name.endswith(TEMPORARY)]
    if others := sorted(path.name for path in paths if not is_own(path)):
        raise UserError(f"{folder}: is not empty, it holds {others[0]}; choose another folder")


def check_folders(folders: Folders) -> list[Path | str]:
    """Return folders to read, one or several, as a list; refuse those that do not exist."""
    listed = [folders] if isinstance(folders, str | Path) else list(folders)
    for folder in listed:
        if not os.path.isdir(folder):  # False for a name that no disk takes
            what = "not a folder" if os.path.exists(folder) else "no such folder"
            raise UserError(f"{folder}: {what}; give folders that a run was written to")
    return listed


def writing(target: Path) -> contextlib.AbstractContextManager[None]:
    """Turn the errors of a disk that cannot be written into a UserError."""
    return refusing(f"{target}: cannot be written", "make room there or choose another place")


def remove_folder(folder: Path) -> None:
    """Delete a folder, if it is there, so that half of it never stands under its name."""
    if not folder.is_dir():
        return
    if not folder.name.endswith(TEMPORARY):
        old = folder.with_name(f"{folder.name}{REMOVED}")
        remove_folder(old)  # what is left of it where this was killed before
        folder = folder.rename(old)
    shutil.rmtree(folder)


def sync_folder(folder: Path) -> None:
    """Put a folder's list of names on disk, where the system can; a rename lasts from then on."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def file_digest(path: Path) -> str:
    """SHA-256 of a file, as hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
