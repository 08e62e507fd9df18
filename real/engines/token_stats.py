"""Entropy and self-certainty of the next-token distributions, averaged over each response.

The distributions exist when a token is drawn, one position at a time. Measuring them there costs no
forward pass and no tensor over all tokens and the vocabulary. There are two accumulators:
`RunningStats` for the decoding loop of this package, which adds up in order and is fast for small
models, and `TokenStatsLog` for vLLM, which may show a token twice or show one that it then drops.

vLLM calls custom logits processors (`LLM(logits_processors=...)`) with the logits of every decoding
step. That of `stats_processor` leaves them unchanged. It implements both interfaces of vLLM's
model runners. V1 keeps a batch of rows and reports which rows move: always on a CPU, and wherever
Triton is missing; the same in 0.26, 0.32 and 0.33. V2 has slots and a context: by default on a GPU,
in 0.32 and 0.33. V2 itself has not been run, only its calls.

A request is identified by its seed, which is different for every response (`request_seeds`), and
the position of a token by the number of tokens before it. This matters because vLLM also draws
tokens that it drops: while it reads a long prompt in pieces, while it reads a preempted response
again, and, with asynchronous scheduling, one after a response's end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from guard_core.rules.rule import Need, Rule
from real.engines.rollouts import EngineError

_CACHED = 2**18
"""Logits of a chunk on a CPU."""


def needs_stats(rule: Rule) -> bool:
    """Return whether the rule reads token entropies or certainties, which engines can give."""
    return bool(rule.needs & {Need.ENTROPY, Need.CERTAINTY})


def entropy_and_certainty(logprobs_BA: Tensor, probs_BA: Tensor) -> tuple[Tensor, Tensor]:
    """Return entropy and self-certainty of next-token distributions.

    Args:
        logprobs_BA: (B, A) log-probs in nats, A the vocabulary.
        probs_BA: (B, A) their exponentials.

    Returns:
        (B,) entropies, and (B,) `KL(uniform || p) = -log A - mean log p` (Zhao et al., "Learning to
        Reason without External Rewards"), both in nats. A token that is impossible adds nothing to
        the first and makes the second infinite.
    """
    expected_B, uniform_B = _mean_logs(logprobs_BA, probs_BA)
    return -expected_B, -math.log(logprobs_BA.shape[-1]) - uniform_B


def stats_of_logits(logits_BA: Tensor, temperature: float = 1.0) -> Tensor:
    """Return entropy and self-certainty of next-token distributions, computed from logits.

    On a CPU rows are taken in chunks that stay in its cache, which is three to six times faster
    than all at once for a large vocabulary. On a GPU, where memory bounds the time, one compiled
    kernel reads the logits twice and writes no (B, A) tensor; it has not been run on one.

    Args:
        logits_BA: (B, A) logits; not changed.
        temperature: divides the logits.

    Returns:
        (2, B) float32, entropies and self-certainties in nats.
    """
    if logits_BA.is_cuda:
        return fused_stats(logits_BA, temperature)
    rows = max(1, _CACHED // logits_BA.shape[-1])
    return torch.cat([_chunk_stats(part, temperature) for part in logits_BA.split(rows)], dim=1)


def _chunk_stats(logits_BA: Tensor, temperature: float) -> Tensor:
    logits_BA = logits_BA.float() if temperature == 1 else logits_BA.float() / temperature
    # Softmax is faster than the exponential of its logarithm.
    return torch.stack(entropy_and_certainty(logits_BA.log_softmax(-1), logits_BA.softmax(-1)))


def fused_stats(logits_BA: Tensor, temperature: float) -> Tensor:
    """Compute `stats_of_logits` by a compiled kernel; compiling takes about ten seconds, once."""
    entropy_B, mean_B = _compiled()(logits_BA, temperature)
    return torch.stack([entropy_B, -math.log(logits_BA.shape[-1]) - mean_B])


@cache
def _compiled() -> Callable[[Tensor, float], tuple[Tensor, Tensor]]:
    return torch.compile(_entropy_and_mean, dynamic=True)


def _entropy_and_mean(logits_BA: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Return (B,) entropies and (B,) mean log-probs."""
    # A sum where `entropy_and_certainty` has a matrix product, which would not be fused.
    logprobs_BA = torch.log_softmax(logits_BA.float() / temperature, -1)
    finite_BA = logprobs_BA.clamp(min=torch.finfo(torch.float32).min)
    return -(logprobs_BA.exp() * finite_BA).sum(-1), logprobs_BA.mean(-1)


class RunningStats:
    """Running sums of the statistics of R responses.

    Each token costs few operations: a step of a small model takes no longer than a few of them.
    """

    def __init__(self, rows: int) -> None:
        """Start without tokens of `rows` responses."""
        self._rows, self._size = rows, 1
        self._parts: list[tuple[Tensor, list[Tensor], list[Tensor]]] = []

    def add(self, rows_B: Tensor, logprobs_BA: Tensor, probs_BA: Tensor) -> None:
        """Add the distributions of the next token of rows B, ended ones included.

        Args:
            rows_B: (B,) row numbers; the same object as long as no row leaves.
            logprobs_BA: (B, A) log-probs.
            probs_BA: (B, A) their exponentials.
        """
        if not self._parts or self._parts[-1][0] is not rows_B:
            self._parts.append((rows_B, [], []))
        expected_B, uniform_B = _mean_logs(logprobs_BA, probs_BA)
        self._parts[-1][1].append(expected_B)
        self._parts[-1][2].append(uniform_B)
        self._size = logprobs_BA.shape[-1]

    def means(self, lengths_R: Tensor) -> tuple[Tensor, Tensor]:
        """Return (R,) mean entropies and (R,) mean self-certainties of the responses' tokens.

        Args:
            lengths_R: (R,) lengths of the responses; later tokens do not count.

        Returns:
            (R,) float64 and (R,) float64, in nats.
        """
        device, start = lengths_R.device, 0
        sums_2R = torch.zeros((2, self._rows), dtype=torch.float64, device=device)
        for rows_B, expected, uniform in self._parts:
            step_N1 = torch.arange(start, start + len(expected), device=device)[:, None]
            values_2NB = torch.stack([*expected, *uniform]).unflatten(0, (2, -1))
            values_2NB = torch.where(step_N1 < lengths_R[rows_B], values_2NB, 0.0)
            sums_2R[:, rows_B] += values_2NB.sum(1, dtype=torch.float64)
            start += len(expected)
        entropy_R, certainty_R = -sums_2R / lengths_R
        return entropy_R, certainty_R - math.log(self._size)


def _mean_logs(logprobs_BA: Tensor, probs_BA: Tensor) -> tuple[Tensor, Tensor]:
    """Return (B,) mean log-probs under the distribution itself and under the uniform one."""
    # Raised to a finite number, an impossible token's term is 0 and not NaN.
    finite_BA = logprobs_BA.clamp(min=torch.finfo(logprobs_BA.dtype).min)
    return torch.linalg.vecdot(probs_BA, finite_BA), logprobs_BA.mean(-1)


Ints = NDArray[np.int64]
_REMEDY = "take another version of vLLM, or engine = 'transformers'"


class TokenStatsLog:
    """Statistics of the tokens shown since `watch`: two numbers a token, kept with its position."""

    def __init__(self) -> None:
        """Watch no response."""
        self.row_of: dict[int, int] = {}
        """Name of each watched response to its row, 0 to R - 1."""
        self._shown: list[tuple[Ints, Ints, Tensor]] = []

    @property
    def watching(self) -> bool:
        """True if any response is watched."""
        return bool(self.row_of)

    def watch(self, names: Iterable[int]) -> None:
        """Start again with R responses, named by different numbers."""
        self.row_of = {name: row for row, name in enumerate(names)}
        self._shown = []

    def add(
        self, rows_B: Ints, positions_B: Ints, logits_BA: Tensor, temperature: float = 1.0
    ) -> None:
        """Add the distributions that one token of each of B responses is drawn from.

        Args:
            rows_B: (B,) rows of the responses; -1 for one that is not watched.
            positions_B: (B,) position of the token in its response. The last one added for a
                position counts; positions below 0 or after the response's end do not.
            logits_BA: (B, A) logits, on any device; not changed.
            temperature: divides the logits.

        Raises:
            EngineError: there are more or fewer logits than responses.
        """
        if len(logits_BA) != len(rows_B):
            raise EngineError(
                f"engine: shows logits of {len(logits_BA)} tokens where {len(rows_B)} responses "
                f"draw one each, so entropies are unknown; {_REMEDY}"
            )
        self._shown.append((rows_B, positions_B, stats_of_logits(logits_BA, temperature)))

    def means(self, lengths_R: Sequence[int] | Ints) -> tuple[Tensor, Tensor]:
        """Return mean entropy and mean self-certainty of the watched responses; watch no more.

        Args:
            lengths_R: (R,) numbers of tokens, each at least 1, the end token included.

        Returns:
            (R,) float64 and (R,) float64, in nats.

        Raises:
            EngineError: some token was not shown.
        """
        lengths = np.asarray(lengths_R)
        shown, self._shown, self.row_of = self._shown, [], {}
        none = np.zeros(0, dtype=np.int64)
        rows = np.concatenate([none, *(rows for rows, _, _ in shown)])
        positions = np.concatenate([none, *(positions for _, positions, _ in shown)])
        # Responses that are not watched, -1, get the length behind those of the watched.
        counted = (positions >= 0) & (positions < np.append(lengths, 0)[rows])
        starts = np.cumsum(lengths) - lengths
        last = np.full(lengths.sum(), -1)
        index = np.flatnonzero(counted)
        np.maximum.at(last, starts[rows[index]] + positions[index], index)
        if (n_missing := int((last < 0).sum())) > 0:
            raise EngineError(
                f"engine: showed the logits of {len(last) - n_missing} tokens of {len(last)}; "
                f"{_REMEDY}"
            )
        values_2 = torch.cat([values for _, _, values in shown], dim=1).cpu().double().numpy()
        means_2R = np.add.reduceat(values_2[:, last], starts, axis=1) / lengths
        entropy_R, certainty_R = torch.from_numpy(means_2R)
        return entropy_R, certainty_R


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
