"""Folders of files that this program made: replaced whole, and nothing else is ever touched."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

from lab.errors import UserError
from lab.files import TEMPORARY, whole_folder

CONTENTS = "contents.json"
"""Names the files of the folder, so that a foreign one is noticed."""
_MADE_BY = "ttrl-guard-lab"


@contextlib.contextmanager
def our_folder(target: Path, kind: str) -> Iterator[tuple[Path, list[str]]]:
    """A temporary folder that becomes `target` once its files are complete.

    Args:
        target: new, empty, or a folder that holds only files of this kind made earlier.
        kind: of the files.

    Yields:
        Where to write, and a list that takes the names of the files.

    Raises:
        UserError: `target` holds something else, or cannot be written.
    """
    check_folder(target, kind)
    names: list[str] = []
    with whole_folder(target) as place:
        yield place, names
        contents = {"made_by": _MADE_BY, "kind": kind, "files": names}
        (place / CONTENTS).write_text(json.dumps(contents, indent=1) + "\n", encoding="utf-8")


def check_folder(target: Path, kind: str) -> None:
    """Refuse a place that must not be replaced, before the work that would fill it.

    Raises:
        UserError: it is no folder, its parent does not exist, or it holds anything but files of
            this kind that this program made.
    """
    try:
        found = {path.name for path in target.iterdir()} if target.is_dir() else set()
        exists, homeless = target.exists(), not target.absolute().parent.is_dir()
    except OSError as error:
        raise UserError(
            f"{target}: cannot be read ({error.strerror}); choose another -o"
        ) from error
    if exists and not target.is_dir():
        raise UserError(f"{target}: is no folder; -o takes a folder for {kind}")
    if homeless:
        raise UserError(f"{target}: its folder does not exist; make it or choose another")
    if target.name.endswith(TEMPORARY):
        raise UserError(f"{target}: names that end in {TEMPORARY} are in use; choose another -o")
    foreign = sorted(found - _known(target, kind))
    if foreign:
        raise UserError(
            f"{target}: holds {foreign[0]}, which is none of our {kind}; choose a new folder for -o"
        )


def _known(target: Path, kind: str) -> set[str]:
    """Names that an earlier run wrote into the folder."""
    try:
        contents = json.loads((target / CONTENTS).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return set()
    if not isinstance(contents, dict) or contents.get("made_by") != _MADE_BY:
        return set()
    files = contents.get("files")
    if contents.get("kind") != kind or not isinstance(files, list):
        return set()
    return {CONTENTS, *map(str, files)}
