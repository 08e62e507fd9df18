"""Which responses CoVerRL's verifier is asked about."""

from __future__ import annotations

from guard_core.arrays import Array, namespace
from guard_core.rules.seen import Seen, own


def questions(seen: Seen, label: Array, verifications: int) -> Array:
    """(..., P, 2 * verifications) places of responses, -1 asks nothing; see `CoVerRL.questions`.

    Args:
        seen: of the batch, with `answers`.
        label: (..., P) the majority's answer, -1 for none.
        verifications: most responses of the majority that are asked about.
    """
    answers = seen.of("answers")
    xp = namespace(answers)
    wins = (answers == label[..., None]) & (label >= 0)[..., None]
    rank = xp.cumulative_sum(xp.astype(wins, xp.int64), axis=-1)
    n_asked = _n_asked(rank[..., -1], seen.votes.n_votes, verifications)
    rival = _rival(seen, wins)
    nothing = xp.full_like(rival, -1)
    asked, again = [], []
    for n in range(verifications):
        place = xp.argmax(xp.astype(wins & (rank == n + 1), xp.int64), axis=-1)
        asked.append(xp.where(n < n_asked, place, nothing))
        again.append(xp.where(n < n_asked, rival, nothing))
    return xp.stack([*asked, *again], axis=-1)


def _n_asked(n_wins: Array, n_votes: int, verifications: int) -> Array:
    """(..., P) responses of the majority that are asked about."""
    xp = namespace(n_wins)
    even = n_wins - n_wins % 2
    asked = xp.where(n_wins >= verifications, verifications, even)
    return xp.where(n_wins < n_votes, asked, 0)


def _rival(seen: Seen, wins: Array) -> Array:
    """(..., P) place of the response that stands for all that the majority is not."""
    answers, V = seen.of("answers"), seen.votes.n_votes
    counts = seen.votes.counts
    xp = namespace(counts)
    unparseable = xp.full_like(counts[..., :1], V + 1)
    votes = own(xp.concat([counts, unparseable], axis=-1), answers)
    return xp.argmin(xp.where(wins, xp.full_like(votes, V + 2), votes), axis=-1)
