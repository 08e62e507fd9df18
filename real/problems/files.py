"""Rows of problem files and of data sets on the Hugging Face hub; numbered, not looked into."""

from __future__ import annotations

import contextlib
import importlib
import json
import logging
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.base.errors import UserError, first_line
from real.model.folder import PREFIX

Rows = Iterator[tuple[int, object]]
"""Rows with their numbers, from 1; in JSON Lines the line."""


def read_rows(source: str) -> Rows:
    """Yield the rows of a file.

    Raises:
        UserError: it cannot be read, is empty, malformed or of an unknown kind.
    """
    path = Path(source)
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        known = ", ".join(_READERS)
        raise UserError(f"{path}: unknown kind of problem file, use one of {known}")
    return reader(path)


def _read_json(path: Path) -> Rows:
    text = _text(path)
    try:
        rows = _parse(text, lambda line: f"{path}, line {line}")
    except UserError:
        # `datasets` and pandas write one object a line into files of this name, too.
        if not _has_lines(text):
            raise
        yield from _lines(path, text)
        return
    if not isinstance(rows, list):
        raise UserError(
            f"{path}: holds {kind(rows)}, not a list; write [{{...}}, ...] or use .jsonl"
        )
    yield from enumerate(rows, start=1)


def _read_jsonl(path: Path) -> Rows:
    yield from _lines(path, _text(path))


def _lines(path: Path, text: str) -> Rows:
    # Not splitlines(): JSON text may hold U+2028 and other characters that it would cut at.
    for row, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            yield row, _parse(line, lambda _, row=row: f"{path}, row {row}")


def _read_parquet(path: Path) -> Rows:
    import pyarrow.parquet as pq

    return _table_rows(path, lambda file: pq.ParquetFile(file).read())


_READERS: dict[str, Callable[[Path], Rows]] = {
    ".json": _read_json,
    ".jsonl": _read_jsonl,
    ".parquet": _read_parquet,
}


def _table_rows(path: Path, read: Callable[[Any], Any]) -> Rows:
    import pyarrow as pa

    try:
        # Opened here: pyarrow's own messages on a missing file or a folder are long and vary.
        with path.open("rb") as file:
            table = read(file)
    except OSError as error:
        raise _unreadable(path, error) from error
    except pa.ArrowException as error:
        reason = first_line(error)
        raise UserError(f"{path}: cannot be read as a table ({reason}); save it again") from error
    return _numbered(row for batch in table.to_batches() for row in batch.to_pylist())


def _numbered(rows: Iterator[object]) -> Rows:
    return iter(enumerate(rows, start=1))


def _has_lines(text: str) -> bool:
    """Return whether the first line with text is a whole object and more lines follow."""
    first, _, following = text.strip().partition("\n")
    try:
        return isinstance(json.loads(first), dict) and bool(following.strip())
    except (ValueError, RecursionError):
        return False


def _text(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise _unreadable(path, error) from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text (byte {error.start}), save it as UTF-8") from error
    if not text.strip():
        raise UserError(f"{path}: the file is empty, give at least one object with a prompt")
    return text


def _unreadable(path: Path, error: OSError) -> UserError:
    reason = (error.strerror or type(error).__name__).lower()
    return UserError(f"{path}: cannot be read ({reason}), check the path")


def _parse(text: str, where: Callable[[int], str]) -> object:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        position = f"{where(error.lineno)}, column {error.colno}"
        raise UserError(
            f"{position}: malformed JSON ({error.msg.lower()}), mend it there or just before"
        ) from error
    except (ValueError, RecursionError) as error:
        # A number of thousands of digits, or brackets nested thousands deep.
        raise UserError(
            f"{where(1)}: JSON too large to read, shorten the number or list"
        ) from error


def kind(value: object) -> str:
    """The kind of a value in plain words, for error messages."""
    names = {
        dict: "an object",
        list: "a list",
        str: "text",
        bool: "true or false",
        bytes: "binary data",
    }
    if value is None:
        return "null"
    return names.get(type(value), "a number")


INSTALL = "pip install 'ttrl-guard-lab[hf]'"

_NAME = re.compile(
    r"(?P<path>\w[\w.-]*(?:/\w[\w.-]*)?)(?::(?P<config>[^:@\s]+))?(?:@(?P<split>[^@\s]+))?"
)
_LOAD_ERRORS = (OSError, ValueError, RuntimeError, KeyError)
"""Exceptions of `datasets` for unknown names, configurations and splits, or no network."""


@dataclass(frozen=True, slots=True)
class HubName:
    """One split of one data set on the hub."""

    path: str
    """`owner/name`."""
    config: str | None = None
    split: str | None = None

    @classmethod
    def parse(cls, text: str) -> HubName:
        """The name in `hf:owner/name[:config][@split]`.

        Raises:
            UserError: the text is not of that form.
        """
        match = _NAME.fullmatch(text.removeprefix(PREFIX))
        if match is None:
            raise UserError(
                f"problems = {text}: not a hub name; write hf:owner/name[:config][@split]"
            )
        return cls(match["path"], match["config"], match["split"])

    def __str__(self) -> str:
        config = "" if self.config is None else f":{self.config}"
        split = "" if self.split is None else f"@{self.split}"
        return f"{PREFIX}{self.path}{config}{split}"


def read_hub(name: HubName) -> Rows:
    """Return the rows of a data set on the hub, downloaded or from the local cache.

    Raises:
        UserError: `datasets` is not installed, or it could not load that name.
    """
    loaded = _load(name)
    if hasattr(loaded, "keys"):
        splits = list(loaded)
        if len(splits) != 1:
            raise UserError(
                f"{name}: holds several splits ({', '.join(splits)}); "
                f"give one as in {HubName(name.path, name.config, splits[0])}"
            )
        loaded = loaded[splits[0]]
    # As an Arrow table, so that no image or sound is decoded.
    table = loaded.with_format("arrow")[:]
    return enumerate(table.to_pylist(), start=1)


def _load(name: HubName) -> Any:
    try:
        datasets: Any = importlib.import_module("datasets")
    except ImportError as error:
        raise UserError(
            f"{name}: needs the library datasets, install it with {INSTALL}, "
            "or give a local .json, .jsonl or .parquet file"
        ) from error
    try:
        with _without_retry_messages():
            return datasets.load_dataset(name.path, name.config, split=name.split)
    except _LOAD_ERRORS as error:
        raise UserError(
            f"{name}: could not be loaded ({first_line(error)}); check name, "
            "configuration, split and network, or give a local file"
        ) from error


@contextlib.contextmanager
def _without_retry_messages() -> Iterator[None]:
    """Silence the hub's client, which logs every retry; the final error is raised anyway."""
    logger = logging.getLogger("huggingface_hub")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)
