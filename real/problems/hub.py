"""Problems from the Hugging Face hub: the only module that may fetch them from the network."""

from __future__ import annotations

import contextlib
import importlib
import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from lab.errors import UserError, first_line
from real.model.folder import PREFIX
from real.problems.files import Rows

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
