"""Making the page and putting it on disk without harming anything that is there."""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from lab.compare.collection import Skipped
from lab.errors import UserError
from lab.report.content.digest import ReportedComparison, read
from lab.report.page import GENERATOR, page

_HEAD_BYTES = 4096
"""The tag that marks our pages stands at the top."""


@dataclass(frozen=True, slots=True)
class Written:
    """Files that were written."""

    path: Path
    worlds: list[ReportedComparison]
    """The comparisons on the page."""
    skipped: list[Skipped]
    """Folders that were left out."""


def write_report(
    folders: Sequence[Path | str], output: Path | str | None = None, *, force: bool = False
) -> Written:
    """Read runs and write their report.

    Args:
        folders: run folders, or folders that hold some at any depth.
        output: the page; `report.html` in the first folder if left out.
        force: overwrite a file that is not a report.

    Returns:
        The page's path and what is on it.

    Raises:
        UserError: no run can be used, or the page cannot be written or would overwrite another
            file; in that case nothing is changed.
    """
    if not folders:
        raise UserError("no folder given; name folders that a run was written to")
    target = Path(folders[0]) / "report.html" if output is None else Path(output)
    # Before the work, which takes seconds: the answer does not depend on it.
    if output is not None or target.exists():
        _check(target, force)
    with _no_collection():
        worlds, skipped = read(folders)
        content = page(worlds, skipped)
    _write(target, content)
    return Written(target, worlds, skipped)


def is_report(path: Path) -> bool:
    """A file is a page of this program."""
    with path.open("rb") as file:
        return f'name="generator" content="{GENERATOR}"'.encode() in file.read(_HEAD_BYTES)


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Look for no cycles meanwhile: figures are many small objects, and it takes a sixth longer."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def _check(target: Path, force: bool) -> None:
    try:
        folder, homeless = target.is_dir(), not target.parent.is_dir()
        foreign = not folder and target.exists() and not is_report(target)
    except OSError as error:
        raise _unwritable(target, error) from error
    if folder:
        raise UserError(f"{target}: is a folder; give the name of an HTML file")
    if homeless:
        raise UserError(f"{target}: its folder does not exist; make it or choose another")
    if foreign and not force:
        raise UserError(
            f"{target}: exists and is not a report; choose another -o or add --force to replace it"
        )


def _write(target: Path, content: str) -> None:
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(content, encoding="utf-8", errors="backslashreplace")
        os.replace(temporary, target)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise _unwritable(target, error) from error


def _unwritable(target: Path, error: OSError) -> UserError:
    return UserError(f"{target}: cannot be written ({error.strerror}); choose another -o")
