"""The engines that sample responses, and what each can do. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

EngineName = Literal["transformers", "vllm", "vllm_inprocess", "vllm_server"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineKind:
    """Capabilities of an engine."""

    native: bool = False
    """Samples with the trainer's library: same log-probs without a cut, and token statistics."""
    own_process: bool = False
    """Runs in a process of its own, which can be started again."""
    remote: bool = False
    """Is a server at `engine_url`, on GPUs of its own, which takes tokens and no texts."""
    splits: bool = False
    """Splits its matrices over the GPUs of several ranks."""
    adapters: bool = False
    """Applies adapters that are sent without the weights."""

    @property
    def shares_gpu(self) -> bool:
        """It takes a planned share of the trainer's GPU."""
        return not (self.native or self.remote)

    @property
    def in_trainer(self) -> bool:
        """It has weights of its own in the trainer's process, so it serves one process at once."""
        return not (self.native or self.own_process)


ENGINES: dict[EngineName, EngineKind] = {
    "transformers": EngineKind(native=True),
    "vllm": EngineKind(own_process=True, splits=True, adapters=True),
    "vllm_inprocess": EngineKind(),
    "vllm_server": EngineKind(own_process=True, remote=True),
}
"""Engine to what it can do; `real.engines.make` makes it."""


def divides_heads(n: int, heads: int, kv_heads: int) -> bool:
    """Return whether `n` GPUs can share an attention's heads and those of its keys evenly."""
    return heads % n == 0 == min(kv_heads % n, n % kv_heads)


def named(wanted: str) -> str:
    """Return the names of the engines that have a capability, for messages."""
    return " or ".join(repr(name) for name, kind in ENGINES.items() if getattr(kind, wanted))
