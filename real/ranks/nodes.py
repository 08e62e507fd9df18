"""Several machines: all of them must see the run folder."""

from __future__ import annotations

import contextlib
import secrets
import socket
import time
from pathlib import Path

import torch

from lab.errors import UserError
from real.ranks.distributed import Ranks
from real.ranks.launched import launched

SEEN_SECONDS = 10.0
"""Time in which a file on a shared disk becomes visible elsewhere."""
_NAME_BYTES = 64


def check_shared(folder: Path, ranks: Ranks) -> None:
    """Refuse a run folder that a rank on another machine cannot see; all ranks must call this.

    The first rank writes a file for a moment, into the folder or what exists of the folders above.

    Raises:
        UserError: the folder is not the same one everywhere; names the machines.
    """
    process = launched()
    if process is None or process.world == process.local_world:
        return
    above = [folder.absolute(), *folder.absolute().parents]
    level = next(i for i, path in enumerate(above) if path.is_dir())
    key = torch.tensor([level, secrets.randbits(62)])
    level, nonce = ranks.broadcast(key).tolist()
    probe = above[min(level, len(above) - 1)] / f".guard-train-{nonce:016x}"
    try:
        if ranks.first:
            _write(probe, folder)
        ranks.wait()
        blind = _blind(ranks.first or _appears(probe), ranks)
    finally:
        if ranks.first:
            probe.unlink(missing_ok=True)
    if blind:
        names, verb = ", ".join(blind), "node" if len(blind) == 1 else "nodes"
        raise UserError(
            f"run folder {folder}: {verb} {names} cannot see it; put it on a disk that all nodes "
            "share, under one path"
        )


def _write(probe: Path, folder: Path) -> None:
    try:
        probe.touch()
    except OSError as error:
        raise UserError(
            f"run folder {folder}: cannot be made ({error.strerror}); choose another place"
        ) from error


def _appears(probe: Path) -> bool:
    deadline = time.monotonic() + SEEN_SECONDS
    while not probe.exists():
        if time.monotonic() > deadline:
            return False
        with contextlib.suppress(OSError):
            list(probe.parent.iterdir())  # lets a network disk look again
        time.sleep(0.1)
    return True


def _blind(seen: bool, ranks: Ranks) -> list[str]:
    """Return the names of the machines on which a rank has not seen the file."""
    name = socket.gethostname().encode()[: _NAME_BYTES - 1].ljust(_NAME_BYTES - 1, b"\0")
    rows = ranks.gather(torch.tensor([int(seen), *name], dtype=torch.uint8)).tolist()
    names = [bytes(row[1:]).rstrip(b"\0").decode(errors="replace") for row in rows if not row[0]]
    return list(dict.fromkeys(names))
