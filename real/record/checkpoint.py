"""Checkpoints: all that a run needs to go on to the bit, written whole or not at all.

    RUN/checkpoints/step-000123/
        model.safetensors       the trained weights
        optimizer.safetensors   AdamW's moments, master weights, the place in the schedule
        guard.safetensors       the guard's memory, (N, ...) arrays
        answers.json            answer ids of every problem
        rule.safetensors, rule.json
                                what a rule's second votes remember, where there are any
        checkpoint.json         place in the run, settings, digests of the files above

No generator's state is in it: every draw has a generator of its own, made from seed, stream and
place (`real.settings.seeds`), which gives the order of the problems too. Tensors and JSON alone:
reading a checkpoint runs nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch

from lab.errors import UserError
from lab.files import TEMPORARY, remove_folder, whole_folder
from lab.settings import to_values
from lab.trace.store import RunFolder
from real.ranks.sharding import shard_of
from real.ranks.tensor_files import file_digest, read_tensors, take_part, write_tensors
from real.record.terminal import say
from real.run import Run
from real.vote.second_votes import second_of

VERSION = 1
"""Raised when an older program would misread a checkpoint."""
FOLDER = "checkpoints"
INDEX = "checkpoint.json"
MODEL, OPTIMIZER, GUARD = "model.safetensors", "optimizer.safetensors", "guard.safetensors"
ANSWERS = "answers.json"
RULE, RULE_VALUES = "rule.safetensors", "rule.json"

_NAME = re.compile(r"step-(\d{6,})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """What `checkpoint.json` says."""

    version: int
    step: int
    """Batches that were done."""
    parts: dict[str, int]
    """Parts of each table of the trace that hold the rows up to there."""
    config: dict[str, Any]
    extra: dict[str, Any]
    """The manifest's facts at that time, counters among them."""
    files: dict[str, str]
    """SHA-256 of each file."""


class Checkpoints:
    """Writes the checkpoints of one run and keeps the last few."""

    def __init__(self, written: RunFolder | None, every: int, keep: int) -> None:
        """Set up.

        Args:
            written: the run's folder, which holds its trace; None on ranks that only take part.
            every: batches between checkpoints.
            keep: how many stay on disk.
        """
        self._written, self._every, self._keep = written, every, keep

    def due(self, step: int) -> bool:
        """Whether one is to be written after this batch."""
        return step % self._every == 0

    def save(self, run: Run, step: int) -> None:
        """Write a checkpoint after `step` batches, then delete the oldest ones.

        The rows of the trace are put on disk first: the checkpoint says how many parts they fill.

        Raises:
            UserError: the disk cannot be written; earlier checkpoints are as they were.
        """
        if self._written is None:
            if (second := second_of(run)) is not None:
                take_part(second.tensors())
            take_part(_trained(run))
            take_part(run.optimizer.state_tensors())
            return
        root = self._written.path / FOLDER
        parts = self._written.parts()
        with whole_folder(root / f"step-{step:06d}") as folder:
            files = _write_state(run, folder)
            index = Checkpoint(
                version=VERSION,
                step=step,
                parts=parts,
                config=to_values(run.config),
                extra=dict(self._written.manifest.extra),
                files=files,
            )
            (folder / INDEX).write_bytes(msgspec.json.format(msgspec.json.encode(index)))
        for old in _found(root)[self._keep :]:
            remove_folder(old)


def latest(run_folder: Path) -> tuple[Path, Checkpoint] | None:
    """The last checkpoint that is whole, and what it says; None if none was ever completed.

    Those that cannot be used are named on stderr.

    Raises:
        UserError: there are checkpoints, but none can be used.
    """
    found = _found(run_folder / FOLDER)
    for place, folder in enumerate(found):
        try:
            return folder, _read(folder)
        except UserError as error:
            rest = "the one before it is used" if place + 1 < len(found) else "it was the last one"
            say([f"{error}; {rest}"])
    if found:
        raise UserError(
            f"{run_folder}: none of its {len(found)} checkpoints can be used; run again"
        )
    return None


def restore(run: Run, folder: Path) -> None:
    """Put a freshly prepared run where a checkpoint was written.

    Raises:
        UserError: the checkpoint does not fit the model.
    """
    _load_model(run, read_tensors(folder / MODEL), folder)
    run.optimizer.load_state_tensors(read_tensors(folder / OPTIMIZER))
    arrays = {name: t.numpy().copy() for name, t in read_tensors(folder / GUARD).items()}
    answers = msgspec.json.decode((folder / ANSWERS).read_bytes())
    run.supervisor.restore(arrays, answers)
    if (second := second_of(run)) is not None:
        values = msgspec.json.decode((folder / RULE_VALUES).read_bytes())
        second.restore(run, read_tensors(folder / RULE), values)


def remove_leftovers(run_folder: Path) -> None:
    """Delete what a killed process left of an unfinished checkpoint."""
    root = run_folder / FOLDER
    for path in root.glob(f"*{TEMPORARY}") if root.is_dir() else ():
        remove_folder(path)


def _found(root: Path) -> list[Path]:
    """Checkpoint folders, the latest first."""
    steps = {
        int(match[1]): path
        for path in (root.iterdir() if root.is_dir() else ())
        if (match := _NAME.fullmatch(path.name))
    }
    return [steps[step] for step in sorted(steps, reverse=True)]


def _read(folder: Path) -> Checkpoint:
    """What a checkpoint says, once all its files are known to be as they were written."""
    try:
        values = msgspec.json.decode((folder / INDEX).read_bytes())
        version = values["version"]
        if version > VERSION:
            raise UserError(f"{folder}: version {version} is newer than this program's {VERSION}")
        found = msgspec.convert(values, Checkpoint)
        for name, digest in found.files.items():
            if file_digest(folder / name) != digest:
                raise UserError(f"{folder}: {name} is damaged")
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise UserError(f"{folder}: is damaged or incomplete ({error})") from error
    return found


def _write_state(run: Run, folder: Path) -> dict[str, str]:
    """Write the state; returns the digest of each file."""
    guard = {name: torch.from_numpy(a) for name, a in run.supervisor.arrays().items()}
    answers = msgspec.json.encode(run.supervisor.answer_ids.to_values())
    (folder / ANSWERS).write_bytes(answers)
    rule: dict[str, str] = {}
    if (second := second_of(run)) is not None:
        (folder / RULE_VALUES).write_bytes(msgspec.json.encode(second.values()))
        rule = {
            RULE: write_tensors(folder / RULE, second.tensors()),
            RULE_VALUES: file_digest(folder / RULE_VALUES),
        }
    return rule | {
        MODEL: write_tensors(folder / MODEL, _trained(run)),
        OPTIMIZER: write_tensors(folder / OPTIMIZER, run.optimizer.state_tensors()),
        GUARD: write_tensors(folder / GUARD, guard),
        ANSWERS: file_digest(folder / ANSWERS),
    }


def _trained(run: Run) -> dict[str, torch.Tensor]:
    """Weights that training changes, each once where some are shared."""
    return {n: p for n, p in run.policy.model.named_parameters() if p.requires_grad}


@torch.no_grad()
def _load_model(run: Run, tensors: dict[str, torch.Tensor], folder: Path) -> None:
    trained = _trained(run)
    wrong = sorted(set(trained) ^ set(tensors))
    wrong += [n for n in set(trained) & set(tensors) if trained[n].shape != tensors[n].shape]
    if wrong:
        raise UserError(f"{folder}: {len(wrong)} weights do not fit the model, {wrong[0]} for one")
    for name, parameter in trained.items():
        parameter.copy_(shard_of(tensors[name], parameter))
