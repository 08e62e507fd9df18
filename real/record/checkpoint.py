"""Checkpoints: all that a run needs to continue to the bit, written whole or not at all.

    RUN/checkpoints/step-000123/
        NAME.safetensors, NAME.json
                                the state of the run, see `real.run`
        NAME.R-of-N.safetensors the shard of rank R, in place of NAME.safetensors, where N ranks
                                share the tensors; cut along their first dimension
        checkpoint.json         place in the run, settings, digests of the files above

No generator's state is saved: every draw has a generator of its own, made from seed, stream and
place (`real.settings.seeds`), which also gives the order of the problems. Tensors and JSON alone:
reading a checkpoint runs nothing.
"""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors import SafetensorError
from torch import Tensor

from lab.base.errors import UserError
from lab.base.files import TEMPORARY, file_digest, remove_folder, whole_folder, writing
from lab.trace.manifest import CHECKPOINTS
from lab.trace.trace import RunFolder
from real.model.policy import Policy, write_model
from real.model.prepare import adapter_config, adapter_weights, has_adapters, merged_weights
from real.ranks.distributed import (
    ALONE,
    Pieces,
    Ranks,
    computed_with,
    local_tensors,
    read_tensors,
    shard_group,
    shard_path,
    whole_tensor,
    write_tensors,
)
from real.settings.groups import CheckpointSettings
from real.update.ema import WeightAverage

VERSION = 2
"""Raised when an older program would misread a checkpoint."""
MODEL, OPTIMIZER = "model.safetensors", "optimizer.safetensors"
GUARD = "guard.safetensors", "answers.json"
"""The guard's memory, and the answer ids of every problem."""
MASTER = "master/"
"""Begins the names of a weight's copy in single precision, from which it is rounded."""
INDEX = "checkpoint.json"
TENSORS = ".safetensors"

_NAME = re.compile(r"step-\d{6,}")

State = Mapping[str, Any]
"""File names and their contents: tensors by name for `NAME.safetensors`, else plain values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """The contents of `checkpoint.json`."""

    version: int
    step: int
    parts: dict[str, int]
    """Parts of each table of the trace that hold the rows up to there."""
    config: dict[str, Any]
    extra: dict[str, Any]
    """The manifest's facts at that time, counters among them."""
    files: dict[str, str]


class Checkpoints:
    """Writes the checkpoints of one run and keeps the last few."""

    def __init__(
        self,
        path: Path,
        run_folder: RunFolder | None,
        config: CheckpointSettings,
        every: int,
        ranks: Ranks = ALONE,
    ) -> None:
        """Write one every so many batches; the trace is None on all ranks but the first."""
        self._root, self._run_folder, self._ranks = path / CHECKPOINTS, run_folder, ranks
        self._every, self._keep = every, config.checkpoint_keep
        self._seconds = 60 * config.checkpoint_minutes
        self._last = time.monotonic()

    def due(self, step: int) -> bool:
        """Return whether a checkpoint is to be written after this batch; all ranks ask together."""
        if step % self._every == 0 or not self._seconds:
            return step % self._every == 0
        return bool(self._ranks.highest(int(time.monotonic() - self._last >= self._seconds)))

    def save(self, state: State, step: int) -> None:
        """Write a checkpoint after `step` batches, then delete the oldest; all ranks call this."""
        target = self._root / f"step-{step:06d}"
        if self._run_folder is not None:
            write_checkpoint(target, self._run_folder, state, step, self._ranks)
            there = checkpoints_in(self._root)  # later ones are damaged, and keep no other's place
            for old in there[there.index(target) + self._keep :]:
                remove_folder(old)
        else:
            self._ranks.wait()  # the first rank has made the folder
            with writing(target):
                _write_files(target.with_name(f"{target.name}{TEMPORARY}"), state, self._ranks)
        self._last = time.monotonic()


def write_checkpoint(
    target: Path, run_folder: RunFolder, state: State, step: int, ranks: Ranks = ALONE
) -> None:
    """Write one checkpoint, on the rank that holds the trace; the others write their shards."""
    run, parts = run_folder.manifest, run_folder.parts()
    with whole_folder(target, replaces=True) as folder:
        ranks.wait()
        files = _write_files(folder, state, ranks)
        index = Checkpoint(
            version=VERSION, step=step, parts=parts, files=files, config=run.config, extra=run.extra
        )
        (folder / INDEX).write_bytes(msgspec.json.format(msgspec.json.encode(index)))


def latest(
    run_folder: Path, notice: Callable[[str], object], ranks: Ranks = ALONE
) -> tuple[Path, Checkpoint] | None:
    """Return the last whole checkpoint, if there ever was one; `notice` is told of the others."""
    folders = checkpoints_in(run_folder / CHECKPOINTS)
    for i, folder in enumerate(folders):
        try:
            return folder, read_checkpoint(folder, ranks)
        except UserError as error:
            is_last = i + 1 == len(folders)
            notice(f"{error}; {'it was the last one' if is_last else 'the one before it is used'}")
    if folders:
        raise UserError(
            f"{run_folder}: none of its {len(folders)} checkpoints can be used; run again"
        )
    return None


def read_file(path: Path) -> Any:
    """Return the contents of one file of a checkpoint, tensors or plain values."""
    is_tensors = path.name.endswith(TENSORS)
    return read_tensors(path) if is_tensors else msgspec.json.decode(path.read_bytes())


def trained_weights(folder: Path) -> dict[str, Tensor]:
    """Return the whole trained weights of a checkpoint, masters where there are any."""
    stored = read_tensors(folder / OPTIMIZER).items()
    masters = {name.removeprefix(MASTER): t for name, t in stored if name.startswith(MASTER)}
    tensors = {**read_tensors(folder / MODEL), **masters}
    return {name: t.whole() if isinstance(t, Pieces) else t for name, t in tensors.items()}


def checkpoints_in(root: Path) -> list[Path]:
    """Return the folders of whole checkpoints, the last one first."""
    folders = [path for path in root.glob("step-*") if _NAME.fullmatch(path.name)]
    return sorted(folders, key=lambda path: int(path.name.removeprefix("step-")), reverse=True)


def read_checkpoint(folder: Path, ranks: Ranks = ALONE) -> Checkpoint:
    """Return the contents of `checkpoint.json`, after a check that all files are unchanged."""
    try:
        values = read_file(folder / INDEX)
        if (version := values["version"]) > VERSION:
            raise UserError(f"{folder}: version {version} is newer than this program's {VERSION}")
        index = msgspec.convert(values, Checkpoint)
        for name in index.files:
            (folder / name).stat()
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise UserError(f"{folder}: is damaged or incomplete ({error})") from error
    names = list(index.files)
    rank, world = ranks.share
    part = list(enumerate(names, 1))[rank::world]
    damaged = (place for place, name in part if file_digest(folder / name) != index.files[name])
    if place := ranks.highest(next(damaged, 0)):
        raise UserError(f"{folder}: {names[place - 1]} is damaged")
    return index


def _write_files(folder: Path, state: State, ranks: Ranks) -> dict[str, str]:
    """Write this rank's files, shards alone on all but the first; returns the digests of all."""
    rank, world = ranks.share
    tensors = [name for name in state if name.endswith(TENSORS)]
    sharded = [name for name in tensors if shard_group(state[name].values()) is not None]
    digests = [
        write_tensors(shard_path(folder / name, rank, world), local_tensors(state[name], rank))
        for name in sharded
    ]
    files: dict[str, str] = {}
    if sharded:
        mine = torch.tensor([list(bytes.fromhex(one)) for one in digests], dtype=torch.uint8)
        for other, of_rank in enumerate(ranks.gather(mine)):
            for name, digest in zip(sharded, of_rank.tolist(), strict=True):
                files[shard_path(folder / name, other, world).name] = bytes(digest).hex()
    for name in [name for name in state if name not in sharded and ranks.first]:
        if name in tensors:
            files[name] = write_tensors(folder / name, state[name])
        else:
            (folder / name).write_bytes(msgspec.json.encode(state[name]))
            files[name] = file_digest(folder / name)
    return files


def check_room(
    run_folder: Path, n_bytes: int, keep: int, n_written: int, final: int = 0
) -> list[str]:
    """Return a notice of the disk space that the checkpoints of a run will take; none if small.

    Each has `n_bytes`; `keep` of `n_written` stay, and one more while it is written. `final` are
    bytes of the trained model.
    """
    path = run_folder.absolute()
    disk = next(folder for folder in (path, *path.parents) if folder.exists())
    free, kept = shutil.disk_usage(disk).free, min(keep, n_written)
    needed = max(min(keep + 1, n_written) * n_bytes, kept * n_bytes + final)
    if free < needed:
        raise UserError(
            f"{run_folder}: the disk has {_size(free)} free, and checkpoints of {_size(n_bytes)} "
            f"and the trained model of {_size(final)} need {_size(needed)}; lower checkpoint_keep, "
            "set lora_rank, or write none with checkpoint_every 0 and save_model false"
        )
    told = f"checkpoints: {_size(n_bytes)} each; {kept} are kept, {_size(kept * n_bytes)} in all"
    return [told] if kept * n_bytes >= 10**7 else []


def _size(n_bytes: int) -> str:
    return f"{n_bytes / 1e9:.1f} GB" if n_bytes >= 1e9 else f"{n_bytes / 1e6:.1f} MB"


def save_model(
    policy: Policy, run_folder: Path | None, average: WeightAverage | None = None
) -> None:
    """Write RUN/model: configuration, generation settings, weights, tokenizer.

    Adapters are merged into the weights that they belong to. They are written alone as well, to
    RUN/adapters in the format of peft: in bfloat16 the merge rounds small changes away. An average
    of the weights takes their place. All ranks must call this, with a folder on one alone.
    """
    with average.held_by(policy.model) if average else nullcontext():
        weights = _weights(policy.model, run_folder is not None)
        adapters = {name: whole_tensor(w).cpu() for name, w in adapter_weights(policy.model)}
        if run_folder is None:
            return
        if adapters:
            facts = adapter_config(policy.model) | {"base_model_name_or_path": str(policy.folder)}
            with whole_folder(run_folder / "adapters", replaces=True) as folder:
                write_tensors(folder / "adapter_model.safetensors", adapters)
                (folder / "adapter_config.json").write_text(json.dumps(facts), encoding="utf-8")
        with whole_folder(run_folder / "model", replaces=True) as folder:
            try:
                write_model(policy.model, policy.tokenizer, folder, policy.folder, weights)
            except SafetensorError as error:  # the way in which it reports a full disk
                raise OSError(str(error)) from error


def model_bytes(model: Any) -> int:
    """Return the bytes of the weights that `save_model` writes, and of any adapters."""
    return sum(p.numel() * computed_with(p, model).itemsize for p in model.parameters())


def _weights(model: Any, writes: bool) -> dict[str, Any] | None:
    """Return the weights to write, gathered one by one, in place of the model's own if not None."""
    if not has_adapters(model) and shard_group(model.parameters()) is None:
        return None
    kept = model.state_dict()
    weights = {name: value for name, value in model.named_buffers() if name in kept}
    for name, value in merged_weights(model):
        whole = whole_tensor(value.to(computed_with(value, model)))
        if writes:
            weights[name] = whole.cpu()
    return weights
