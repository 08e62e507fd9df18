"""Compiled rewards of rules that are far too slow on arrays; all others run on arrays alone.

A rule is here only if it costs more than three times plain TTRL's visit on arrays. Its law stays in
`guard_core.rules`: compiled code gives the one quantity that is expensive.

* EVOL-RL's novelties take time proportional to the responses, not to their pairs. With the
  similarities of `sim.world.observe`, s_ij = .5 + .3 b [a_i = a_j] + .1 (u_i + u_j), a
  response's mean similarity to its side follows from sums, and its largest similarity from the
  largest u among all others and among those with its own answer.
* SCOPE's 2 V - 1 subgroups per problem get their labels without their numbers drawn in full. A
  subset holds the responses with the n smallest of V uniform numbers. Compared bit by bit, with the
  same bit of 64 numbers in one random word (`sim.world.sampling.plane`), a few words decide.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from guard_core.config import floor_share
from guard_core.rules import Observations, Rule
from guard_core.rules.confidence import Scope, subgroup_sizes
from guard_core.rules.evidence import EvolRL
from sim.world.observe import BASE, SAME, SPREAD, AnswerObserver, ObservedVisit
from sim.world.sampling import LANES, PLANES, RULE, fold, plane, stream

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Words = NDArray[np.uint64]

_LOWEST = -4.0
"""Below every u."""


@njit(cache=True, nogil=True)
def novelties(
    answers_RPK: NDArray[np.int32],
    label_RP: NDArray[Any],
    ordinary_RPK: Floats,
    strength: float,
    out_RPK: Floats,
) -> None:
    """Compute 1 - (mean similarity to the same side + largest similarity to all others) / 2.

    Args:
        answers_RPK: trained responses, equal answers next to each other; -1 unparseable, last.
        ordinary_RPK: u of every response.
        strength: b, at least 0.
        out_RPK: output; 0 for unparseable responses.
    """
    R, P, K = answers_RPK.shape
    for r in range(R):
        for p in range(P):
            answer_K, u_K, out_K = answers_RPK[r, p], ordinary_RPK[r, p], out_RPK[r, p]
            out_K[:] = 0.0
            n_parsed, n_wins, won, lost, first, second = 0, 0, 0.0, 0.0, _LOWEST, _LOWEST
            while n_parsed < K and answer_K[n_parsed] >= 0:
                u, wins = u_K[n_parsed], answer_K[n_parsed] == label_RP[r, p]
                n_parsed, n_wins = n_parsed + 1, n_wins + wins
                won, lost = won + (u if wins else 0.0), lost + (0.0 if wins else u)
                second, first = max(second, min(first, u)), max(first, u)
            start = 0
            while start < n_parsed:
                stop, top, after = start, _LOWEST, _LOWEST
                while stop < n_parsed and answer_K[stop] == answer_K[start]:
                    after, top = max(after, min(top, u_K[stop])), max(top, u_K[stop])
                    stop += 1
                wins = answer_K[start] == label_RP[r, p]
                n_side = n_wins if wins else n_parsed - n_wins
                u_side = won if wins else lost
                alike = SAME * strength * (stop - start - 1)
                for k in range(start, stop):
                    u, mean, most = u_K[k], 0.0, 0.0
                    if n_side > 1:
                        mean = BASE + SPREAD * u + (alike + SPREAD * (u_side - u)) / (n_side - 1)
                    if n_parsed > 1:
                        most = SPREAD * (second if u == first else first)
                        if stop - start > 1:
                            own = SPREAD * (after if u == top else top)
                            most = max(most, SAME * strength + own)
                        most += BASE + SPREAD * u
                    out_K[k] = 1 - (mean + most) / 2
                start = stop


_EMPTY, _ONE, _ALL = np.uint64(0), np.uint64(1), np.uint64(0xFFFFFFFFFFFFFFFF)
_PAIRS, _FOURS = np.uint64(0x5555555555555555), np.uint64(0x3333333333333333)
_BYTES, _ONES = np.uint64(0x0F0F0F0F0F0F0F0F), np.uint64(0x0101010101010101)


def fills_words(n_votes: int) -> bool:
    """Return whether the numbers of a subset fill words, or lie side by side in one."""
    return n_votes % LANES == 0 or LANES % n_votes == 0


@njit(cache=True, nogil=True)
def subgroup_labels(
    seed: int,
    first: int,
    epoch: int,
    problems_RP: Ints,
    answers_RPV: NDArray[np.int32],
    weights_RPV: Floats,
    prior_RPA: Floats,
    n_drawn: int,
    out_RPG: Ints,
) -> None:
    """Choose the label of every subgroup: the answer with most confidence in its subset.

    Args:
        answers_RPV: answers of all responses, -1 for unparseable.
        weights_RPV: their confidences, at least 0.
        prior_RPA: remembered scores times the share that is drawn; all 0 without memory.
        out_RPG: output; the smallest of equal answers, -2 where none has a confidence above 0.
    """
    R, P, V = answers_RPV.shape
    score_A = np.empty(prior_RPA.shape[2])
    words_3W = np.empty((3, -(-V // LANES)), np.uint64)
    for r in range(R):
        key = stream(seed, first + r, RULE, epoch)
        for p in range(P):
            answer_V, weight_V, prior_A = answers_RPV[r, p], weights_RPV[r, p], prior_RPA[r, p]
            sure = _sure_label(answer_V, weight_V, prior_A, n_drawn, score_A)
            if sure >= 0:
                out_RPG[r, p] = sure
                continue
            leaf = fold(key, problems_RP[r, p])
            for g in range(out_RPG.shape[2]):
                draw_subset(leaf, g * V, V, n_drawn, words_3W)
                score_A[:] = prior_A
                for v in range(V):
                    drawn = (words_3W[0, v // LANES] >> np.uint64(v % LANES)) & _ONE
                    score_A[answer_V[v]] += weight_V[v] if drawn and answer_V[v] >= 0 else 0.0
                out_RPG[r, p, g] = np.argmax(score_A) if score_A.max() > 0 else -2


@njit
def _sure_label(
    answer_V: NDArray[np.int32], weight_V: Floats, prior_A: Floats, n_drawn: int, most_A: Floats
) -> int:
    """Return the answer that wins in every possible subset; -1 if there may be none."""
    V, n_A = answer_V.shape[0], np.zeros(prior_A.shape[0], np.int64)
    most_A[:] = prior_A
    for v in range(V):
        if answer_V[v] >= 0:
            n_A[answer_V[v]] += 1
            most_A[answer_V[v]] += weight_V[v]
    top, least = np.argmax(n_A), np.inf
    for v in range(V):
        least = min(least, weight_V[v]) if answer_V[v] == top else least
    fewest = n_A[top] - (V - n_drawn)
    score = prior_A[top] + fewest * least
    most_A[top] = 0.0
    return int(top) if fewest > 0 and score > most_A.max() else -1


@njit
def draw_subset(leaf: Any, start: int, V: int, n: int, words_3W: Words) -> None:
    """Write the members as bits of `words_3W[0]`; numbers equal in all bits are all in or all out.

    Args:
        leaf: names the random numbers.
        start: the first of the V numbers.
        words_3W: output, and room for those not decided and those whose number goes on with a 0.
    """
    drawn_W, open_W, zero_W = words_3W[0], words_3W[1], words_3W[2]
    drawn_W[:], open_W[:] = _EMPTY, _ALL >> np.uint64(max(LANES - V, 0))
    missing, n_open, shift = n, V, np.uint64(start % LANES)
    for bit in range(PLANES):
        if n_open <= missing:
            break
        n_zeros = 0
        for w in range(drawn_W.shape[0]):
            zero_W[w] = open_W[w] & ~(plane(leaf, start // LANES + w, bit) >> shift)
            n_zeros += _size(zero_W[w])
        if n_zeros > missing:
            open_W[:], n_open = zero_W, n_zeros
            continue
        for w in range(drawn_W.shape[0]):
            drawn_W[w] |= zero_W[w]
            open_W[w] &= ~zero_W[w]
        missing, n_open = missing - n_zeros, n_open - n_zeros
        if missing == 0:
            return
    for w in range(drawn_W.shape[0]):
        drawn_W[w] |= open_W[w]


@njit(inline="always")
def _size(x: Any) -> Any:
    """Number of bits set; written so that compilers know it for a population count."""
    x = x - ((x >> _ONE) & _PAIRS)
    x = (x & _FOURS) + ((x >> np.uint64(2)) & _FOURS)
    return np.int64((((x + (x >> np.uint64(4))) & _BYTES) * _ONES) >> np.uint64(56))


def fast_rewards(rule: Rule, n_votes: int) -> FastRewards | None:
    """The compiled part of a rule with this number of votes; None where it runs on arrays alone."""
    if isinstance(rule, Scope) and not (rule.confidence == "logprob" and fills_words(n_votes)):
        return None
    return FAST.get(type(rule))


def _evol_rl(
    rule: EvolRL, observer: AnswerObserver, visit: ObservedVisit, obs: Observations, label_RP: Ints
) -> Floats:
    novelty_RPK = np.empty(obs.trained.shape)
    ordinary_RPK = observer.ordinary(visit)
    novelties(obs.trained, label_RP, ordinary_RPK, observer.signal, novelty_RPK)
    return rule.rewards(obs, label_RP, novelty_RPK)


def _scope(
    rule: Scope, observer: AnswerObserver, visit: ObservedVisit, obs: Observations, label_RP: Ints
) -> Floats:
    V, p_RPA = obs.votes.n_votes, visit.p_RPA
    n_drawn = max(1, floor_share(rule.subset, V))
    prior_RPA = np.zeros_like(p_RPA) if obs.prior is None else n_drawn / V * obs.prior
    n_subgroups = sum(V // size for size in subgroup_sizes(V))
    labels_RPG = np.empty((*p_RPA.shape[:2], n_subgroups), np.int64)
    of = (visit.epoch, visit.problems_RP, obs.of("answers"), rule.weights(obs), prior_RPA)
    subgroup_labels(*observer.seeds, *of, n_drawn, labels_RPG)
    return rule.rewards(obs, labels_RPG)


FastRewards = Callable[[Any, AnswerObserver, ObservedVisit, Observations, Ints], Floats]
"""(R, P, K) rewards of a rule's trained responses, from a batch and its labels."""
FAST: dict[type[Rule], FastRewards] = {EvolRL: _evol_rl, Scope: _scope}
"""By class; a subclass of one's own runs on arrays."""
