"""A model's weights as engines take them, and their way to an engine's process."""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from real.engines.buckets import ADAPTERS, Entry, Handle, writing
from real.engines.hand_over import Bucket, CudaBucket, Room, fill, gathered_bytes
from real.engines.rollouts import EngineDied, EngineError, Prompts, Rollouts, Sampling, Stages
from real.model.lora import adapter_config, adapter_weights, merged_weights
from real.ranks.distributed import ALONE, Ranks
from real.ranks.sharding import whole_tensor

COPY, LOAD = "seconds_sync_copy", "seconds_sync_load"
"""Columns of the steps: the trainer's part of an update of the weights, and the engine's."""
Ask = Callable[[Mapping[str, Any], list[Entry]], dict[str, Any]]
"""Sends a message and a list of weights to an engine's process, and returns its answer."""


def named_weights(
    model: Any, dtype: torch.dtype | None = None
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield name in the checkpoint and value of every weight, one at a time.

    Adapters are merged in. Tied weights come once, under the embedding's name: an engine ties them
    itself, and some refuse an output head that the model's config does not name.

    Args:
        model: a causal language model of transformers. Sharded weights are gathered, so with
            several ranks all of them must exhaust the iterator.
        dtype: of the floating-point weights; unchanged if None.
    """
    for name, value in stored_weights(model, dtype):
        yield name, whole_tensor(value)


def stored_weights(
    model: Any, dtype: torch.dtype | None = None, merge: bool = True
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the same as `named_weights`, with sharded weights left sharded.

    Without `merge` adapters are left out.
    """
    tied = getattr(model.config.get_text_config(), "tie_word_embeddings", False)
    for name, value in merged_weights(model, merge):
        if not (tied and name.endswith("lm_head.weight")):
            yield name, value.to(dtype) if dtype and value.is_floating_point() else value


class WeightSender:
    """Sends weights to an engine's process, in buckets that both processes see.

    Of a group of ranks that share an engine the first one talks to it; all fill buckets.
    """

    def __init__(
        self,
        folder: Path,
        device: torch.device,
        dtype: torch.dtype | None = None,
        ranks: Ranks = ALONE,
        n_gpus: int = 1,
        ask: Ask | None = None,
        adapters: bool = False,
    ) -> None:
        """Set up.

        Args:
            folder: for a bucket in memory of the host.
            device: of the trainer.
            dtype: in which weights are sent; unchanged if None.
            ranks: of the run, which send together.
            n_gpus: ranks of a group.
            ask: asks the engine; None for the other ranks of a group.
            adapters: send the weights without them once, and then adapters alone, unless the
                engine `refused` them.
        """
        self._folder, self._device, self._dtype = folder, device, dtype
        self._ranks, self._n_gpus, self._ask = ranks, n_gpus, ask
        self._adapters = adapters
        self.refused: str | None = None
        """Why the engine applies no adapters."""
        self._bucket: Bucket | None = None
        self._has_base = False

    @torch.no_grad()
    def send(self, model: Any, version: int) -> Stages:
        """Send all weights, or the adapters of weights that the engine has.

        Raises:
            UserError: there is no room for a bucket or for the adapters.
            EngineDied: the engine died or hung.
        """
        if not self._sends_adapters:
            return self._send_weights(model, version)
        stages = {COPY: 0.0, LOAD: 0.0}
        if not self._has_base:
            stages = self._send_weights(model, version, merge=False)
            self._has_base = True
        started = time.perf_counter()
        self._write_adapters(model)
        written = time.perf_counter()
        if self._ask is not None:
            self._ask({"do": "adapt", "version": version}, [])
        stages[COPY] += written - started
        stages[LOAD] += time.perf_counter() - written
        return stages

    @cached_property
    def _sends_adapters(self) -> bool:
        """True if the engines of all ranks apply adapters."""
        if not self._adapters:
            return False
        if self.refused is not None:
            warnings.warn(
                f"engine_adapters: {self.refused}; the merged weights are sent", stacklevel=5
            )
        return not self._ranks.highest(self.refused is not None)

    def _write_adapters(self, model: Any) -> None:
        # Gathered by all ranks, for the engines of some.
        weights = {name: whole_tensor(value) for name, value in adapter_weights(model)}
        if self._ask is None:
            return
        folder = self._folder / ADAPTERS
        with writing(folder):
            folder.mkdir(exist_ok=True)
            (folder / "adapter_config.json").write_text(json.dumps(adapter_config(model)))
            sent = {n: value.to("cpu", self._dtype).contiguous() for n, value in weights.items()}
            save_file(sent, folder / "adapter_model.safetensors")

    def _send_weights(self, model: Any, version: int, merge: bool = True) -> Stages:
        stages = {COPY: -time.perf_counter(), LOAD: 0.0}
        room = Room.of(model, self._dtype)
        bucket = self._bucket = self._bucket or self._make_bucket(room)
        if self._device.type == "cuda":
            torch.cuda.empty_cache()  # the engine needs the memory again
        message = {"do": "load", "version": version, "buckets": self._handles(bucket)}
        for entries, last in fill(bucket, stored_weights(model, self._dtype, merge)):
            started = time.perf_counter()
            if self._ask is not None:
                answer = self._ask({**message, "last": last}, entries)
                if ("taken" in answer) == last:
                    raise EngineDied("engine: it did not take all weights")
            stages[LOAD] += time.perf_counter() - started
        if isinstance(bucket, CudaBucket):
            bucket.close()
            self._bucket = None
        stages[COPY] += time.perf_counter() - stages[LOAD]
        return stages

    def _make_bucket(self, room: Room) -> Bucket:
        """Return memory of the GPU where the engine can open it, else of the host."""
        if self._device.type == "cuda" and self._opens_gpu:
            return CudaBucket(room.bucket, self._device, self._group)
        return room.host_bucket(self._folder, self._ranks)

    @property
    def _group(self) -> Ranks:
        """The ranks that wait for each other; a rank with an engine of its own waits for none."""
        return self._ranks if self._n_gpus > 1 else ALONE

    def _handles(self, bucket: Bucket) -> list[Handle]:
        """Return the handles of the group's buckets; of one for memory of the host."""
        if self._n_gpus == 1 or not isinstance(bucket, CudaBucket):
            return [bucket.handle()]
        texts = gathered_bytes(json.dumps(bucket.handle()).encode(), self._ranks)
        first = self._ranks.rank - self._ranks.rank % self._n_gpus
        return [json.loads(text) for text in texts[first : first + self._n_gpus]]

    @cached_property
    def _opens_gpu(self) -> bool:
        """True if the engines of all ranks can open memory of their trainers' GPUs."""
        probe, refusal = CudaBucket(1, self._device), None
        handles = self._handles(probe)
        if self._ask is not None:
            refusal = self._ask({"do": "open", "buckets": handles}, [])["refusal"]
        refused = self._ranks.highest(refusal is not None)
        probe.close()
        if refusal is not None:
            warnings.warn(
                f"engine: CUDA IPC does not work here ({refusal}); weights go through memory of "
                "the host, which takes longer",
                stacklevel=5,
            )
        return not refused


class GroupMember:
    """A rank without an engine: its group shares that of the group's first rank.

    It takes part in gathering and sending the weights.
    """

    queues = True

    def __init__(
        self,
        device: torch.device | str,
        weights_dtype: torch.dtype | None,
        ranks: Ranks,
        n_gpus: int,
        adapters: bool = False,
    ) -> None:
        """Set up.

        Args:
            device: of the trainer.
            weights_dtype: dtype in which weights are sent; unchanged if None.
            ranks: of the run.
            n_gpus: ranks of a group.
            adapters: see `WeightSender`.
        """
        # No folder: the first rank of a machine, whose folder counts, has an engine.
        self._sender = WeightSender(
            Path(), torch.device(device), weights_dtype, ranks, n_gpus, adapters=adapters
        )

    def sample(
        self,
        prompts: Prompts,
        n: int,
        sampling: Sampling,
        generator: torch.Generator,
        share: tuple[int, int] = (0, 1),
    ) -> Rollouts:
        """Refuse: the group's responses are dealt to its first rank."""
        raise EngineError("engine: another rank of the group samples its responses")

    def release(self) -> None:
        """Do nothing."""

    def update_weights(self, model: Any, version: int) -> Stages:
        """Send this rank's part of the weights."""
        return self._sender.send(model, version)

    def close(self) -> None:
        """Do nothing."""
