"""Short hand-written histories: one guard, all of its problems in every batch."""

from typing import Any

import numpy as np

from guard_core import Decision, Draws, Guard, GuardConfig, Votes

NEVER = 1 - 2**-30
"""A skip draw that only `p_skip = 1` lets pass."""


def as_votes(counts, n_votes=64, samples=None, n_samples=None):
    """Votes of (P, A) counts; without `samples` every response is trained on."""
    counts = np.asarray(counts, dtype=np.int64)
    kept = counts if samples is None else np.asarray(samples, dtype=np.int64)
    return Votes(counts, kept, n_votes, n_votes if n_samples is None else n_samples)


def chance(shape, tie=0.0, skip=NEVER, pick=0.0):
    return Draws(*(np.broadcast_to(np.asarray(v, float), shape).copy() for v in (tie, skip, pick)))


class Play:
    """A guard and its state."""

    def __init__(self, config: GuardConfig, n_problems: int) -> None:
        self.guard = Guard(config)
        self.state = self.guard.init(n_problems)
        self.problems = np.arange(n_problems)

    def prime(self, votes: Votes, scores: Any = None) -> None:
        self.state = self.guard.prime(self.state, votes, chance(votes.counts.shape[:-1]), scores)

    def see(self, votes: Votes, scores: Any = None, **draws: object) -> Decision:
        """One visit of all problems."""
        given = votes, chance(votes.counts.shape[:-1], **draws), scores
        rows, decision = self.guard.step(self.state.take(self.problems), *given)
        self.state = self.state.put(self.problems, rows)
        return decision
