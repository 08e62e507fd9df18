"""Stopping a run at the end of a batch, with a checkpoint, and resuming it from the last one."""

from __future__ import annotations

import contextlib
import hashlib
import multiprocessing
import os
import signal
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec

from lab.base.errors import UserError
from lab.base.files import TEMPORARY, remove_folder
from lab.base.settings import to_values
from lab.signals import handled, handlers, stop
from lab.trace.manifest import commit, now, read_manifest, versions
from lab.trace.trace import RunFolder
from real.model.folder import changed_files, model_digests
from real.problems.problem import PromptSet
from real.ranks.distributed import Ranks
from real.record.checkpoint import Checkpoint, latest
from real.record.terminal import say
from real.settings.config import TrainConfig
from real.settings.stored import check_same, keeps_nothing

_NOTICE = (
    b"\nstopping after this batch, with a checkpoint; press Ctrl-C again to stop without waiting\n"
)
_SAME_PRESS = 1.0
"""Seconds within which further signals are taken for the first one.

A terminal sends Ctrl-C to all processes, and a parent then often passes it on to its children.
"""


class StopRequest:
    """A request to stop the run, if any."""

    def __init__(self) -> None:
        self.deferred = False
        """Let the first signal wait for the run; set once there is a checkpoint to add to."""
        self.signal: signal.Signals | None = None
        self._at = 0.0

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal."""
        now = time.monotonic()
        if self.signal is not None and now - self._at < _SAME_PRESS:
            return
        if not self.deferred or self.signal is not None:
            stop(number)
        self.signal, self._at = signal.Signals(number), now
        # Not print: the signal may have come in the middle of one, which cannot be entered twice.
        # The parent of a comparison's runs prints the notice for them.
        if multiprocessing.parent_process() is None:
            with contextlib.suppress(OSError):  # the terminal may be gone
                os.write(2, _NOTICE)


@contextlib.contextmanager
def stop_requests() -> Iterator[StopRequest]:
    """Catch the signals that ask a process to stop; possible in the main thread only."""
    request = StopRequest()
    # Signals that are ignored, as under nohup, stay ignored.
    before = {n: old for n, old in handlers().items() if old is not signal.SIG_IGN}
    with handled(request.handle, before):
        yield request


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """A run that can be resumed."""

    folder: Path
    facts: Mapping[str, Any]
    """The manifest's `extra` at that time."""
    notices: Sequence[str]
    """Checkpoints that could not be used and versions that changed, one sentence each."""
    checkpoint_folder: Path | None = None
    checkpoint: Checkpoint | None = None
    """None: killed before the first one was written, so it starts from the beginning."""

    def check_sources(self, model: str | None, sources: Mapping[str, Any]) -> None:
        """Refuse a model or problems that have changed; `sources` is today's `fingerprint`."""
        then = self.facts.get("sources", {})
        if names := changed_files(then.get("model", {}), sources["model"]):
            raise UserError(
                f"model {model or 'of the tiny task'}: changed since the run was started "
                f"({', '.join(names)}); put the old files back or start a new run"
            )
        if then.get("problems") != sources["problems"]:
            raise UserError(
                "problems: changed since the run was started; put the old file back or start a "
                "new run"
            )

    def reopened(self, config: TrainConfig) -> RunFolder:
        """Return the run folder, cut back to the checkpoint; nothing in it was changed before."""
        for pattern in (f"*{TEMPORARY}", f"*/*{TEMPORARY}", "trial-*"):
            for unfinished in self.folder.glob(pattern):
                remove_folder(unfinished)
                unfinished.unlink(missing_ok=True)
        written = cut_back(self.folder, self.checkpoint, config)
        if self.notices:
            written.note(notices=[*written.manifest.extra.get("notices", []), *self.notices])
        return written


def resume_point(folder: Path, config: TrainConfig, ranks: Ranks) -> ResumePoint | None:
    """Return the point from which a run goes on with settled settings; None if nothing is left.

    A finished run goes on from its last checkpoint where its model is to be saved and was not.
    """
    manifest = read_manifest(folder)
    check_same(manifest.config, config, folder)
    finished = manifest.status == "finished"
    if finished and (not config.save_model or manifest.config.get("save_model")):
        return None
    notices: list[str] = []

    def notice(line: str) -> None:
        say([line])
        notices.append(line)

    today = versions()
    pairs = ((name, then, today.get(name, then)) for name, then in manifest.versions.items())
    if changed := ", ".join(f"{n} {now} (was {then})" for n, then, now in pairs if now != then):
        notice(f"{folder}: goes on with {changed}; the numbers may differ in rounding")
    if (last := latest(folder, notice, ranks)) is not None:
        check_same(last[1].config, config, folder)
        return ResumePoint(folder, last[1].extra, notices, *last)
    if finished or keeps_nothing(folder):
        raise UserError(f"{folder}: holds no checkpoint; start a new run")
    say([f"{folder}: no checkpoint yet; starts from the beginning"])
    return ResumePoint(folder, manifest.extra, notices)


def cut_back(folder: Path, checkpoint: Checkpoint | None, config: TrainConfig) -> RunFolder:
    """Return the run folder as it was at a checkpoint or the start, noting that it was resumed."""
    written = RunFolder.reopen(folder, checkpoint.parts if checkpoint else {})
    manifest, step = written.manifest, checkpoint.step if checkpoint else None
    resumed = [*manifest.extra.get("resumed", []), {"step": step, "at": now(), "commit": commit()}]
    manifest.extra = {**(checkpoint or manifest).extra, "resumed": resumed}
    manifest.config = to_values(config)
    return written


def fingerprint(model: Path, prompt_sets: Iterable[PromptSet]) -> dict[str, Any]:
    """Return digests of the model folder's files, and of the problems as the model sees them."""
    pairs = [pair for one in prompt_sets for pair in zip(one.problems, one.tokens, strict=True)]
    rows = msgspec.json.encode([(p.id, p.answer, tokens) for p, tokens in pairs])
    return {"model": model_digests(model), "problems": hashlib.sha256(rows).hexdigest()}
