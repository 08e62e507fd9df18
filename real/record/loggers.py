"""Loggers that get metrics in addition to the run folder: TensorBoard, W&B and trackio.

Each library is imported only if it is requested. None of them uses the network unless its own
settings say so: W&B stays offline while WANDB_MODE is not set.
"""

from __future__ import annotations

import html
import importlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec

from lab.base.errors import UserError, first_line
from lab.trace.manifest import Manifest
from real.requirements import installed

PROJECT = "ttrl-guard-lab"
Rows = Sequence[Mapping[str, Any]]

_INSTALL = {
    "tensorboard": "pip install 'ttrl-guard-lab[log]'",
    "wandb": "pip install 'ttrl-guard-lab[wandb]'",
    "trackio": "pip install 'ttrl-guard-lab[trackio]'",
}


class Logger(Protocol):
    """A logger of metrics."""

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Log numbers of one batch."""

    def table(self, step: int, name: str, rows: Rows) -> None:
        """Log rows of equal keys."""

    def close(self) -> None:
        """Write out pending data."""


def require_loggers(kinds: Sequence[str]) -> None:
    """Refuse loggers whose library is missing, before anything is loaded.

    Raises:
        UserError: one is not installed; says how to install it.
    """
    for kind in kinds:
        if not installed(kind):
            raise UserError(f"log = {kind!r}: not installed; install with {_INSTALL[kind]}")


def open_loggers(
    kinds: Sequence[str], folder: Path, manifest: Manifest, after: int | None
) -> Loggers:
    """Start the loggers of a run.

    Args:
        kinds: names of `real.settings.config.LogKind`.
        folder: the run folder; TensorBoard and W&B write into it.
        after: the run is resumed after this batch; a new run if None.

    Raises:
        UserError: a library is missing.
    """
    require_loggers(kinds)
    return Loggers([(kind, _MAKERS[kind](folder, manifest, after)) for kind in kinds])


class Loggers:
    """Several loggers as one. A logger that fails is left out from then on; the run continues."""

    def __init__(self, loggers: Sequence[tuple[str, Logger]]) -> None:
        self._loggers = list(loggers)

    def __bool__(self) -> bool:
        """Return whether there is any logger."""
        return bool(self._loggers)

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Log numbers of one batch."""
        self._all(lambda logger: logger.scalars(step, values))

    def table(self, step: int, name: str, rows: Rows) -> None:
        """Log rows of equal keys."""
        self._all(lambda logger: logger.table(step, name, rows))

    def close(self) -> None:
        """Close all."""
        self._all(lambda logger: logger.close())
        self._loggers = []

    def _all(self, call: Callable[[Logger], None]) -> None:
        for entry in list(self._loggers):
            try:
                call(entry[1])
            except Exception as error:
                self._loggers.remove(entry)
                reason = first_line(error)
                print(f"log {entry[0]}: failed and is left out ({reason})", file=sys.stderr)


class TensorBoard:
    """Event files in RUN/tensorboard."""

    def __init__(self, folder: Path, manifest: Manifest, after: int | None) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # Hide what a killed run logged after its checkpoint: those batches are run again.
        purge = None if after is None else after + 1
        self._writer = SummaryWriter(str(folder / "tensorboard"), purge_step=purge)
        if after is None:
            config = msgspec.json.format(msgspec.json.encode(manifest.config)).decode()
            self._writer.add_text("config", f"<pre>{html.escape(config)}</pre>", 0)

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Log numbers of one batch."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def table(self, step: int, name: str, rows: Rows) -> None:
        """Log rows as a Markdown table."""
        heads = list(rows[0])
        lines = [heads, ["---"] * len(heads)]
        lines += [[_cell(row[head]) for head in heads] for row in rows]
        text = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        self._writer.add_text(name, text, step)

    def close(self) -> None:
        """Write out pending data."""
        self._writer.close()


class Wandb:
    """A Weights & Biases run, kept in RUN/wandb until `wandb sync` sends it."""

    def __init__(self, folder: Path, manifest: Manifest, after: int | None) -> None:
        self._wandb: Any = importlib.import_module("wandb")
        self._run = self._wandb.init(
            project=PROJECT,
            name=_name(folder, manifest),
            id=_identity(folder, manifest),
            config=manifest.config,
            dir=str(folder),
            mode=os.environ.get("WANDB_MODE", "offline"),
            resume="allow",
            settings=self._wandb.Settings(silent=True),
        )

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Log numbers of one batch."""
        self._run.log(dict(values), step=step)

    def table(self, step: int, name: str, rows: Rows) -> None:
        """Log rows as a table."""
        heads = list(rows[0])
        data = [[row[head] for head in heads] for row in rows]
        self._run.log({name: self._wandb.Table(columns=heads, data=data)}, step=step)

    def close(self) -> None:
        """Write out pending data."""
        self._run.finish()


_MAKERS: dict[str, Callable[[Path, Manifest, int | None], Logger]] = {
    "tensorboard": TensorBoard,
    "wandb": Wandb,
}


def _name(folder: Path, manifest: Manifest) -> str:
    return f"{manifest.arm}-{folder.name}"


def _identity(folder: Path, manifest: Manifest) -> str:
    """Return an id that a run shares with its resumption and with no other run."""
    import hashlib

    return hashlib.sha256(f"{folder.name} {manifest.started}".encode()).hexdigest()[:12]


def _cell(value: object) -> str:
    return html.escape(str(value)).replace("|", "&#124;").replace("\n", "<br>")
