"""Statistics logged by token while rows move, tokens are dropped and requests come back."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from real.engines.rollouts import EngineError
from real.engines.token_stats import (
    BatchRows,
    Slots,
    TokenStatsLog,
    entropy_and_certainty,
    stats_of_logits,
)

WORDS, ROWS = 7, 5
Direction = Enum("Direction", ["UNIDIRECTIONAL", "SWAP"])


def expected_stats(logits: Tensor) -> Tensor:
    logp = torch.log_softmax(logits.double(), -1)
    return torch.stack(entropy_and_certainty(logp, logp.exp()))


@dataclass
class Update:
    batch_size: int = 0
    removed: list[int] = field(default_factory=list)
    added: list[Any] = field(default_factory=list)
    moved: list[Any] = field(default_factory=list)


class Request:
    """A request of the scripted engine: its tokens so far and what was drawn from for each."""

    def __init__(self, seed: int, length: int) -> None:
        self.params = SimpleNamespace(seed=seed, temperature=0.5)
        self.length = length
        self.tokens: list[int] = []
        self.logits: list[Tensor] = []


class Batch:
    """Keeps its rows as vLLM's V1 runner does: gaps are filled, then by the last row."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.rows: list[Request | None] = []

    def change(self, leaving: list[int], waiting: list[Request]) -> Update:
        update = Update(removed=list(leaving))
        for place in leaving:
            self.rows[place] = None
        while waiting and (update.removed or len(self.rows) < ROWS):
            place = min(update.removed, default=len(self.rows))
            if place in update.removed:
                update.removed.remove(place)
            else:
                self.rows.append(None)
            request = waiting.pop(int(self.rng.integers(len(waiting))))
            self.rows[place] = request
            update.added.append((place, request.params, None, request.tokens))
        while None in self.rows:
            place, last = self.rows.index(None), self.rows.pop()
            if last is not None:
                self.rows[place] = last
                update.moved.append((len(self.rows), place, Direction.UNIDIRECTIONAL))
        if len(self.rows) > 1 and self.rng.random() < 0.5:
            one, other = self.rng.choice(len(self.rows), 2, replace=False)
            self.rows[one], self.rows[other] = self.rows[other], self.rows[one]
            update.moved.append((int(one), int(other), Direction.SWAP))
        update.batch_size = len(self.rows)
        return update


def run(rows: BatchRows, requests: list[Request], rng: np.random.Generator) -> int:
    """Decode all; gives how many were preempted."""
    batch, waiting, preempted = Batch(rng), list(requests), 0
    while waiting or batch.rows:
        leaving = []
        for place, request in enumerate(batch.rows):
            assert request is not None
            # A request may be drawn for once more when it has ended, as in asynchronous engines.
            ended = len(request.tokens) >= request.length
            if ended and (len(request.tokens) > request.length or rng.random() < 0.5):
                leaving.append(place)
            elif not ended and rng.random() < 0.1:
                leaving.append(place)
                waiting.append(request)
                preempted += 1
        update = batch.change(leaving, waiting)
        rows.update(update if update.removed or update.added or update.moved else None)
        logits = torch.from_numpy(3 * rng.standard_normal((len(batch.rows), WORDS))).float()
        rows.add_logits(logits)
        for place, request in enumerate(batch.rows):
            assert request is not None
            if rng.random() < 0.7:  # else the token is dropped: its prompt is not read to the end
                request.tokens.append(-1)
                request.logits.append(logits[place])
    return preempted


@pytest.mark.parametrize("seed", range(5))
def test_rows_that_come_move_and_go(seed: int) -> None:
    rng, log = np.random.default_rng(seed), TokenStatsLog()
    seeds = [100 + 3 * i for i in range(24)]
    requests = [Request(seed, int(rng.integers(1, 12))) for seed in seeds]
    strangers = [Request(5, 4)]
    rows = BatchRows(log)
    log.watch(seeds)
    assert log.watching
    assert run(rows, requests + strangers, rng) > 0
    found = torch.stack(log.means([request.length for request in requests]))
    expected = [
        expected_stats(torch.stack(made.logits[: made.length])).mean(1) for made in requests
    ]
    torch.testing.assert_close(found, torch.stack(expected, 1), rtol=0, atol=2e-6)
    assert found.dtype == torch.float64
    assert not log.watching


def test_slots_tell_tokens_by_their_places() -> None:
    """Slots are used again; a prompt read in pieces, or again, draws tokens that are dropped."""
    log, generator = TokenStatsLog(), torch.Generator().manual_seed(0)
    prompts = SimpleNamespace(np=np.zeros(4, dtype=np.int32))
    slots = Slots(log, SimpleNamespace(max_num_reqs=4, prompt_len=prompts))
    assert not slots.add(2, SimpleNamespace(seed=8, temperature=0.5))
    log.watch([8, 9])
    drawn: dict[tuple[int, int], Tensor] = {}

    def add(slot: int, seed: int, prompt_len: int) -> None:
        prompts.np[slot] = prompt_len
        assert slots.add(slot, SimpleNamespace(seed=seed, temperature=0.5))

    def step(*lengths: tuple[int, int], seeds: dict[int, int]) -> None:
        logits = torch.randn(len(lengths), WORDS, generator=generator)
        context = SimpleNamespace(
            idx_mapping_np=np.array([slot for slot, _ in lengths]),
            # Padded behind the batch.
            seq_lens_upper_bound_np=np.array([length for _, length in lengths] + [0], np.int32),
        )
        slots.add_logits(logits, context)
        for row, (slot, length) in enumerate(lengths):
            drawn[seeds[slot], length - int(prompts.np[slot])] = logits[row]

    add(2, 8, 10)
    add(0, 9, 3)
    step((0, 3), (2, 6), seeds={0: 9, 2: 8})  # the prompt of 8 is read in two pieces
    step((2, 10), (0, 4), seeds={0: 9, 2: 8})
    add(1, 9, 3)  # preempted, and read again in two pieces in another slot
    step((1, 4), (2, 11), seeds={1: 9, 2: 8})
    step((2, 12), (1, 5), seeds={1: 9, 2: 8})  # 8 has ended: a token too many
    entropy, certainty = log.means([2, 3])
    for row, (seed, length) in enumerate(((8, 2), (9, 3))):
        logits = torch.stack([drawn[seed, place] for place in range(length)])
        expected = expected_stats(logits / 0.5).mean(1)
        found = torch.stack([entropy[row], certainty[row]])
        torch.testing.assert_close(found, expected, rtol=0, atol=2e-6)


def test_what_is_outside_of_a_response_belongs_to_no_other() -> None:
    log, logits = TokenStatsLog(), torch.randn(8, WORDS, generator=torch.Generator().manual_seed(0))
    log.watch([4, 6])
    added = [(0, 0), (1, -1), (1, 0), (0, 1), (1, 1), (-1, 0), (-1, -1), (1, 2)]
    for (row, position), one in zip(added, logits, strict=True):
        log.add(np.array([row]), np.array([position]), one[None])
    found = torch.stack(log.means([1, 2]))
    expected = expected_stats(logits[[0, 2, 4]])
    torch.testing.assert_close(found[:, 0], expected[:, 0], rtol=0, atol=2e-6)
    torch.testing.assert_close(found[:, 1], expected[:, 1:].mean(1), rtol=0, atol=2e-6)


def test_a_token_that_was_not_shown_is_an_error() -> None:
    log, one = TokenStatsLog(), np.zeros(1, dtype=np.int64)
    log.watch([4])
    with pytest.raises(EngineError, match=r"logits of 2 tokens where 1 responses .*; take another"):
        log.add(one, one, torch.zeros(2, WORDS))
    log.add(one, one, torch.zeros(1, WORDS))
    with pytest.raises(EngineError, match=r"showed the logits of 1 tokens of 2; take another"):
        log.means([2])
    log.watch([4])
    with pytest.raises(EngineError, match="showed the logits of 0 tokens of 1"):
        log.means([1])


def test_numbers_that_are_not_finite_stay_in_their_response() -> None:
    log, rows = TokenStatsLog(), np.arange(3)
    log.watch([7, 8, 9])
    logits = torch.zeros(3, WORDS)
    logits[0, 2], logits[1, 2] = torch.nan, -torch.inf
    log.add(rows, rows * 0, logits)
    entropy, certainty = log.means([1, 1, 1])
    assert entropy.isnan().tolist() == [True, False, False]
    assert entropy[1:].tolist() == pytest.approx(np.log([WORDS - 1, WORDS]).tolist())
    assert certainty.isnan()[0] and certainty[1] == torch.inf and abs(certainty[2]) < 1e-6


def test_chunks_do_not_matter() -> None:
    logits = torch.randn(11, 2**16, generator=torch.Generator().manual_seed(0))  # four rows a chunk
    before = logits.clone()
    found = stats_of_logits(logits, 0.7)
    assert torch.equal(logits, before)
    torch.testing.assert_close(found.double(), expected_stats(logits / 0.7), rtol=0, atol=2e-5)
    assert found.dtype == torch.float32
