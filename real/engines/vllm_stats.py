"""Entropy and self-certainty told by vLLM itself: it shows its logits, and they are looked at.

vLLM calls custom logits processors (`LLM(logits_processors=...)`) with the logits of every decoding
step. The one made here changes nothing. vLLM wants one of two interfaces, by the model runner that
it chose, and this has both. V1 keeps a batch of rows and tells what moves: always on a CPU, and
wherever Triton is missing; 0.26 and 0.33 have it as 0.32 does. V2 has slots and a context: by
default on a GPU, in 0.32 as in 0.33. V2 itself has not been run, only its calls.

Which response a request is shows in its seed: every response has one of its own, see
`request_seeds`. Which token it draws shows in the tokens it has. That matters, for vLLM also draws
tokens that it drops: while it reads a long prompt in pieces, while it reads a preempted response
again, and, with asynchronous scheduling, one after a response's end.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from real.engines.token_stats import Ints, TokenStatsLog


class BatchRows:
    """Which response each row of V1's batch is, kept up to date by vLLM's `BatchUpdate`s."""

    def __init__(self, log: TokenStatsLog) -> None:
        """An empty batch."""
        self._log = log
        self._found: dict[int, tuple[int, list[int]]] = {}
        self._rows_B = np.zeros(0, dtype=np.int64)
        self._tokens_B: list[list[int]] = []

    def update(self, update: Any) -> None:
        """Follow what was removed, added and moved, in this order; None for no change."""
        if update is None:
            return
        for place in update.removed:
            self._found.pop(place, None)
        for place, params, _, tokens in update.added:
            # vLLM goes on writing into this list; it holds the tokens of before a preemption.
            self._found[place] = self._log.row_of.get(params.seed, -1), tokens
        for source, target, direction in update.moved:
            moved, replaced = self._found.pop(source, None), self._found.pop(target, None)
            if moved is not None:
                self._found[target] = moved
            if replaced is not None and direction.name == "SWAP":
                self._found[source] = replaced
        batch = [self._found[place] for place in range(update.batch_size)]
        self._rows_B = np.array([row for row, _ in batch], dtype=np.int64)
        self._tokens_B = [tokens for _, tokens in batch]

    def look(self, logits_BA: Tensor) -> None:
        """Show the log logits at the sampling temperature, before a cut at top_p."""
        places_B = np.fromiter(map(len, self._tokens_B), np.int64, len(self._tokens_B))
        self._log.look(self._rows_B, places_B, logits_BA)


class Slots:
    """Which response each of V2's slots holds."""

    def __init__(self, log: TokenStatsLog, state: Any) -> None:
        """Empty slots; `state` is vLLM's `LogitsProcRequestState`."""
        self._log = log
        self._prompt_lens = state.prompt_len
        self._rows: Ints = np.full(state.max_num_reqs, -1)
        self._temperature = 1.0

    def add(self, slot: int, params: Any) -> bool:
        """Take a request in; gives whether its logits are to be shown."""
        self._rows[slot] = self._log.row_of.get(params.seed, -1)
        # One for all: what is sampled together has equal settings.
        self._temperature = params.temperature
        return self._log.watching

    def look(self, logits_BA: Tensor, context: Any) -> None:
        """Show the log logits before the temperature; `context` is vLLM's `LogitsContext`."""
        slots_B = context.idx_mapping_np
        ends_B = context.seq_lens_upper_bound_np[: len(slots_B)]
        places_B = (ends_B - self._prompt_lens.np[slots_B]).astype(np.int64)
        self._log.look(self._rows[slots_B], places_B, logits_BA, self._temperature)


def stats_processor(log: TokenStatsLog) -> type:
    """The class of logits processors that show `log` what vLLM draws from."""
    from vllm.v1.sample.logits_processor import (  # pyright: ignore[reportMissingImports]
        LogitsProcessor,
    )

    bases: list[Any] = [LogitsProcessor]
    try:
        from vllm.v1.worker.gpu.sample import (  # pyright: ignore[reportMissingImports]
            logits_processor,
        )
    except ImportError:
        pass  # with processors such a vLLM takes V1
    else:
        bases.append(logits_processor.LogitsProcessor)

    class StatsProcessor(*bases):
        """Both interfaces: V1 gives the device and a flag, V2 its slots."""

        def __init__(self, config: Any, *shared: Any) -> None:
            self._rows = BatchRows(log)
            self._slots = Slots(log, shared[0]) if len(shared) == 1 else None

        def is_argmax_invariant(self) -> bool:
            """V1: true, so that logits are shown after the temperature."""
            return True

        def update_state(self, batch_update: Any) -> None:
            """V1: called before every step."""
            self._rows.update(batch_update)

        def add_request(self, req_idx: int, sampling_params: Any) -> bool:
            """V2: called for every request that takes a slot."""
            return self._slots is not None and self._slots.add(req_idx, sampling_params)

        def apply(self, logits: Tensor, ctx: Any = None) -> Tensor:
            """Both: called once a step."""
            if log.watching and self._slots is None:
                self._rows.look(logits)
            elif log.watching and self._slots is not None:
                self._slots.look(logits, ctx)
            return logits

    return StatsProcessor
