"""Entropy and self-certainty of vLLM's next-token distributions, by a logits processor.

vLLM calls custom logits processors (`LLM(logits_processors=...)`) with the logits of every decoding
step. The processor of this module leaves them unchanged. It implements both interfaces of vLLM's
model runners. V1 keeps a batch of rows and reports which rows move: always on a CPU, and wherever
Triton is missing; the same in 0.26, 0.32 and 0.33. V2 has slots and a context: by default on a GPU,
in 0.32 and 0.33. V2 itself has not been run, only its calls.

A request is identified by its seed, which is different for every response (`request_seeds`), and
the position of a token by the number of tokens before it. This matters because vLLM also draws
tokens that it drops: while it reads a long prompt in pieces, while it reads a preempted response
again, and, with asynchronous scheduling, one after a response's end.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from real.engines.token_stats import Ints, TokenStatsLog


class BatchRows:
    """The response in each row of V1's batch, kept up to date by vLLM's `BatchUpdate`s."""

    def __init__(self, log: TokenStatsLog) -> None:
        """Start with an empty batch."""
        self._log = log
        self._requests: dict[int, tuple[int, list[int]]] = {}
        self._rows_B = np.zeros(0, dtype=np.int64)
        self._tokens_B: list[list[int]] = []

    def update(self, update: Any) -> None:
        """Apply removals, additions and moves, in this order; None for no change."""
        if update is None:
            return
        for slot in update.removed:
            self._requests.pop(slot, None)
        for slot, params, _, tokens in update.added:
            # vLLM appends to this list; it also holds the tokens drawn before a preemption.
            self._requests[slot] = self._log.row_of.get(params.seed, -1), tokens
        for source, target, direction in update.moved:
            moved, replaced = self._requests.pop(source, None), self._requests.pop(target, None)
            if moved is not None:
                self._requests[target] = moved
            if replaced is not None and direction.name == "SWAP":
                self._requests[source] = replaced
        batch = [self._requests[slot] for slot in range(update.batch_size)]
        self._rows_B = np.array([row for row, _ in batch], dtype=np.int64)
        self._tokens_B = [tokens for _, tokens in batch]

    def add_logits(self, logits_BA: Tensor) -> None:
        """Log the statistics of logits at the sampling temperature, before a cut at top_p."""
        positions_B = np.fromiter(map(len, self._tokens_B), np.int64, len(self._tokens_B))
        self._log.add(self._rows_B, positions_B, logits_BA)


class Slots:
    """The response in each of V2's slots."""

    def __init__(self, log: TokenStatsLog, state: Any) -> None:
        """Start with empty slots; `state` is vLLM's `LogitsProcRequestState`."""
        self._log = log
        self._prompt_lens = state.prompt_len
        self._rows: Ints = np.full(state.max_num_reqs, -1)
        self._temperature = 1.0

    def add(self, slot: int, params: Any) -> bool:
        """Put a request into a slot and return whether its logits are needed."""
        self._rows[slot] = self._log.row_of.get(params.seed, -1)
        # One for all: requests that are sampled together have equal settings.
        self._temperature = params.temperature
        return self._log.watching

    def add_logits(self, logits_BA: Tensor, context: Any) -> None:
        """Log logits that are not divided by the temperature yet; `context`: a `LogitsContext`."""
        slots_B = context.idx_mapping_np
        ends_B = context.seq_lens_upper_bound_np[: len(slots_B)]
        positions_B = (ends_B - self._prompt_lens.np[slots_B]).astype(np.int64)
        self._log.add(self._rows[slots_B], positions_B, logits_BA, self._temperature)


def stats_processor(log: TokenStatsLog) -> type:
    """Return a class of logits processors that add vLLM's distributions to `log`."""
    from vllm.v1.sample.logits_processor import (  # pyright: ignore[reportMissingImports]
        LogitsProcessor,
    )

    bases: list[Any] = [LogitsProcessor]
    try:
        from vllm.v1.worker.gpu.sample import (  # pyright: ignore[reportMissingImports]
            logits_processor,
        )
    except ImportError:
        pass  # a vLLM without V2
    else:
        bases.append(logits_processor.LogitsProcessor)

    class StatsProcessor(*bases):
        """Implements both interfaces: V1 passes the device and a flag, V2 its slots."""

        def __init__(self, config: Any, *shared: Any) -> None:
            self._rows = BatchRows(log)
            self._slots = Slots(log, shared[0]) if len(shared) == 1 else None

        def is_argmax_invariant(self) -> bool:
            """V1: true, so that logits come after the division by the temperature."""
            return True

        def update_state(self, batch_update: Any) -> None:
            """Called by V1 before every step."""
            self._rows.update(batch_update)

        def add_request(self, req_idx: int, sampling_params: Any) -> bool:
            """Called by V2 for every request that takes a slot."""
            return self._slots is not None and self._slots.add(req_idx, sampling_params)

        def apply(self, logits: Tensor, ctx: Any = None) -> Tensor:
            """Called by both once a step."""
            if log.watching and self._slots is None:
                self._rows.add_logits(logits)
            elif log.watching and self._slots is not None:
                self._slots.add_logits(logits, ctx)
            return logits

    return StatsProcessor
