"""`guard_core.votes.choose_label` for a batch of R replicates, compiled.

guard_core is the single source of truth. This package repeats its functions, named in the
docstrings, with the same operations in the same order, so that the results agree to the last bit;
the tests hold the two against each other. A function does its part for all visits of the batch and
reads in `seen_RN` what the parts before it found.

Every function that Python calls stands in one file with all that it calls, because numba renews
its cache when that file changes and looks at no other.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Records = NDArray[np.void]


@njit(cache=True)
def choose_labels(
    rules_1: Records,
    facts_RN: Records,
    memory_RNA: Floats,
    order_RN: Ints,
    tie_RN: Floats,
    counts_RPA: Ints,
    n_votes: int,
    start: int,
    seen_RN: Records,
) -> None:
    """Give every problem of the batch its label, and say whether it flipped and how it matched.

    Args:
        rules_1: the guard's settings, see `sim.engine.guard_settings`.
        facts_RN: the guard's state, see `sim.engine.state`; labels are changed.
        memory_RNA: votes of all visits; changed where labels are taken from them.
        order_RN: problems in visiting order.
        tie_RN: `Draws.tie`, problem by problem and not visit by visit.
        counts_RPA: votes per answer.
        n_votes: V.
        start: place of the batch's first visit in the epoch.
        seen_RN: output, see `sim.engine.rows.SEEN`; columns `start` to `start + P` are written.
    """
    rules = rules_1[0]
    if rules.memory:
        _remember(rules.discount, memory_RNA, order_RN, counts_RPA, start)
        _label_by_memory(rules, facts_RN, memory_RNA, order_RN, tie_RN, counts_RPA, start, seen_RN)
    else:
        _label_by_votes(rules, facts_RN, order_RN, tie_RN, counts_RPA, start, seen_RN)
    _find_majority(rules.current, order_RN, tie_RN, counts_RPA, start, seen_RN)
    _record_label(facts_RN, order_RN, counts_RPA, n_votes, start, seen_RN)


@njit(cache=True)
def choose_scored_labels(
    rules_1: Records,
    facts_RN: Records,
    memory_RNA: Floats,
    order_RN: Ints,
    tie_RN: Floats,
    scores_RPA: Floats,
    counts_RPA: Ints,
    n_votes: int,
    start: int,
    seen_RN: Records,
) -> None:
    """The same where labels, and what a memory sums, come from a rule's scores.

    Args:
        rules_1: see `choose_labels`.
        facts_RN: the same.
        memory_RNA: the same.
        order_RN: the same.
        tie_RN: the same.
        scores_RPA: at least 0; the answer with the most becomes the label, 0 never does.
        counts_RPA: votes per answer.
        n_votes: V.
        start: place of the batch's first visit in the epoch.
        seen_RN: output.
    """
    rules = rules_1[0]
    if rules.memory:
        _remember(rules.discount, memory_RNA, order_RN, scores_RPA, start)
        _label_by_memory(rules, facts_RN, memory_RNA, order_RN, tie_RN, counts_RPA, start, seen_RN)
    else:
        _label_by_votes(rules, facts_RN, order_RN, tie_RN, scores_RPA, start, seen_RN)
    _find_majority(False, order_RN, tie_RN, counts_RPA, start, seen_RN)
    _record_label(facts_RN, order_RN, counts_RPA, n_votes, start, seen_RN)


@njit
def _label_by_votes(
    rules: Any,
    facts_RN: Records,
    order_RN: Ints,
    tie_RN: Floats,
    counts_RPA: Any,
    start: int,
    seen_RN: Records,
) -> None:
    """By this visit's votes or scores, or by those before training."""
    R, P, _A = counts_RPA.shape
    first, incumbent = rules.tie_first, rules.tie_incumbent
    for r in range(R):
        for p in range(P):
            n = order_RN[r, start + p]
            old = facts_RN[r, n].label
            top, n_tied, winner = _winner(counts_RPA, r, p, tie_RN, n, old, first, incumbent)
            keep = top == 0 or (rules.frozen and old >= 0)
            seen_RN[r, start + p].label = old if keep else winner
            seen_RN[r, start + p].tie = top > 0 and n_tied > 1


@njit
def _remember(
    discount: float, memory_RNA: Floats, order_RN: Ints, counts_RPA: Any, start: int
) -> None:
    """Add the votes to the discounted ones of all visits before."""
    R, P, A = counts_RPA.shape
    for r in range(R):
        for p in range(P):
            n = order_RN[r, start + p]
            for a in range(A):
                memory_RNA[r, n, a] = discount * memory_RNA[r, n, a] + counts_RPA[r, p, a]


@njit
def _label_by_memory(
    rules: Any,
    facts_RN: Records,
    memory_RNA: Floats,
    order_RN: Ints,
    tie_RN: Floats,
    counts_RPA: Ints,
    start: int,
    seen_RN: Records,
) -> None:
    """By the votes of all visits, where anybody voted at this one."""
    R, P, A = counts_RPA.shape
    first, incumbent = rules.tie_first, rules.tie_incumbent
    for r in range(R):
        for p in range(P):
            n = order_RN[r, start + p]
            old = facts_RN[r, n].label
            top, n_tied, winner = _winner(memory_RNA, r, n, tie_RN, n, old, first, incumbent)
            voted = False
            for a in range(A):
                voted |= counts_RPA[r, p, a] > 0
            voted = voted and top > 0
            seen_RN[r, start + p].label = winner if voted else old
            seen_RN[r, start + p].tie = voted and n_tied > 1


@njit
def _find_majority(
    is_label: bool,
    order_RN: Ints,
    tie_RN: Floats,
    counts_RPA: Ints,
    start: int,
    seen_RN: Records,
) -> None:
    """Winner of this visit's votes: the label, or ties at random if labels come from elsewhere."""
    R, P, _A = counts_RPA.shape
    for r in range(R):
        for p in range(P):
            seen_RN[r, start + p].majority = seen_RN[r, start + p].label
            if not is_label:
                n = order_RN[r, start + p]
                top, _n_tied, winner = _winner(counts_RPA, r, p, tie_RN, n, -1, False, False)
                if top > 0:
                    seen_RN[r, start + p].majority = winner


@njit
def _record_label(
    facts_RN: Records,
    order_RN: Ints,
    counts_RPA: Ints,
    n_votes: int,
    start: int,
    seen_RN: Records,
) -> None:
    """Flip and match rate of the new label, as in `monitor.advance` and `Guard.step`."""
    R, P, _A = counts_RPA.shape
    for r in range(R):
        for p in range(P):
            n = order_RN[r, start + p]
            old, label = facts_RN[r, n].label, seen_RN[r, start + p].label
            got = counts_RPA[r, p, label] if label >= 0 else 0
            seen_RN[r, start + p].flipped = label != old and old >= 0
            seen_RN[r, start + p].match_rate = got / n_votes
            facts_RN[r, n].label = label


@njit(inline="always")
def _winner(
    scores: Any, r: int, i: int, tie_RN: Floats, n: int, old: int, first: bool, incumbent: bool
) -> tuple[Any, int, int]:
    """Highest score in row `scores[r, i]`, how many answers have it, and which of them wins."""
    top = scores[r, i, 0]
    n_tied = 0
    winner = 0
    for a in range(scores.shape[2]):
        if scores[r, i, a] > top:
            top = scores[r, i, a]
            n_tied = 0
            winner = a
        n_tied += scores[r, i, a] == top
    if n_tied == 1 or first:
        return top, n_tied, winner
    if incumbent and old >= 0 and scores[r, i, old] == top:
        return top, n_tied, old
    # A draw just below 1 times n can round up to n in guard_core's single precision.
    place = min(int(tie_RN[r, n] * n_tied), n_tied - 1)
    while place > 0:
        winner += 1
        place -= scores[r, i, winner] == top
    return top, n_tied, winner
