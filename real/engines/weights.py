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

from real.engines.buckets import Entry, Handle
from real.engines.hand_over import Bucket, CudaBucket, Room, fill, gathered_bytes
from real.engines.rollouts import EngineDied, Stages
from real.model.lora import merged_weights
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
    model: Any, dtype: torch.dtype | None = None
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the same as `named_weights`, with sharded weights left sharded."""
    tied = getattr(model.config.get_text_config(), "tie_word_embeddings", False)
    for name, value in merged_weights(model):
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
    ) -> None:
        """Set up.

        Args:
            folder: for a bucket in memory of the host.
            device: of the trainer.
            dtype: in which weights are sent; unchanged if None.
            ranks: of the run, which send together.
            n_gpus: ranks of a group.
            ask: asks the engine; None for the other ranks of a group.
        """
        self._folder, self._device, self._dtype = folder, device, dtype
        self._ranks, self._n_gpus, self._ask = ranks, n_gpus, ask
        self._bucket: Bucket | None = None

    @torch.no_grad()
    def send(self, model: Any, version: int) -> Stages:
        """Send all weights.

        Raises:
            UserError: there is no room for a bucket.
            EngineDied: the engine died or hung.
        """
        stages = {COPY: -time.perf_counter(), LOAD: 0.0}
        room = Room.of(model, self._dtype)
        bucket = self._bucket = self._bucket or self._make_bucket(room)
        if self._device.type == "cuda":
            torch.cuda.empty_cache()  # the engine needs the memory again
        message = {"do": "load", "version": version, "buckets": self._handles(bucket)}
        for entries, last in fill(bucket, stored_weights(model, self._dtype)):
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
