"""Scores and weights of rules, compiled; guard_core's functions are the source of truth."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from sim.world.random import TOOL, fold, stream, unit

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Answers = NDArray[np.int32]


@njit(cache=True)
def weighted_votes(answers_RPV: Answers, weights_RPV: Floats, out_RPA: Floats) -> None:
    """Sum of the weights of every answer's responses, in their order: `Scope.scores`."""
    R, P, V = answers_RPV.shape
    out_RPA[:] = 0.0
    for r in range(R):
        for p in range(P):
            for v in range(V):
                if answers_RPV[r, p, v] >= 0:
                    out_RPA[r, p, answers_RPV[r, p, v]] += weights_RPV[r, p, v]


@njit(cache=True)
def confirmed_votes(
    answers_RPV: Answers, tool_RPV: NDArray[np.bool_], weight: float, out_RPA: Floats
) -> None:
    """`T3RL.scores`."""
    R, P, V = answers_RPV.shape
    out_RPA[:] = 0.0
    for r in range(R):
        for p in range(P):
            for v in range(V):
                if answers_RPV[r, p, v] >= 0:
                    one = 1.0 + (weight - 1.0) * (1.0 if tool_RPV[r, p, v] else 0.0)
                    out_RPA[r, p, answers_RPV[r, p, v]] += one


@njit(cache=True)
def confirmed_counts(
    seed: int,
    first: int,
    epoch: int,
    problems_RP: Ints,
    truth_RP: NDArray[np.int32],
    counts_RPA: Ints,
    samples_RPA: Ints,
    n_samples: int,
    n_votes: int,
    tpr: float,
    fpr: float,
    weight: float,
    out_RPA: Floats,
) -> None:
    """The same from the counts, without the single responses, for a whole-numbered weight.

    The numbers are those of `sim.world.observe.judged.draw_tool` for the responses in the order of
    `sim.world.observe.responses.expand`.
    """
    R, P, A = counts_RPA.shape
    u_V = np.empty(n_votes)
    # How many of the first v would be confirmed if all were right, or wrong.
    right_V, wrong_V = np.zeros(n_votes + 1, np.int64), np.zeros(n_votes + 1, np.int64)
    for r in range(R):
        key = stream(seed, first + r, TOOL, epoch)
        for p in range(P):
            leaf = fold(key, problems_RP[r, p])
            for v in range(n_votes):
                u_V[v] = unit(leaf, v)
            for v in range(n_votes):
                right_V[v + 1] = right_V[v] + (u_V[v] < tpr)
                wrong_V[v + 1] = wrong_V[v] + (u_V[v] < fpr)
            trained, rest = 0, n_samples
            for a in range(A):
                until = trained + samples_RPA[r, p, a]
                until_rest = rest + counts_RPA[r, p, a] - samples_RPA[r, p, a]
                confirmed = wrong_V[until] - wrong_V[trained] + wrong_V[until_rest] - wrong_V[rest]
                if a == truth_RP[r, p]:
                    confirmed = right_V[until] - right_V[trained]
                    confirmed += right_V[until_rest] - right_V[rest]
                trained, rest = until, until_rest
                out_RPA[r, p, a] = counts_RPA[r, p, a] + (weight - 1.0) * confirmed


@njit(cache=True)
def harmonic_shares(
    counts_RPA: Ints, n_votes: int, second_RPA: Ints, n_second: int, out_RPA: Floats
) -> None:
    """`SelfHarmony.scores`."""
    R, P, A = counts_RPA.shape
    for r in range(R):
        for p in range(P):
            for a in range(A):
                first, second = counts_RPA[r, p, a] / n_votes, second_RPA[r, p, a] / n_second
                total = first + second
                out_RPA[r, p, a] = 2 * first * second / (total if total > 0 else 1.0)


@njit(cache=True)
def ask_majority(counts_RPA: Ints, n_votes: int, label_RP: Ints, out_RPQ: Ints) -> None:
    """The majority's half of `CoVerRL.questions`: answers asked about, -2 for none."""
    R, P, Q = out_RPQ.shape
    for r in range(R):
        for p in range(P):
            wins = counts_RPA[r, p, label_RP[r, p]] if label_RP[r, p] >= 0 else 0
            asked = Q if wins >= Q else wins - wins % 2
            asked = asked if wins < n_votes else 0
            for q in range(Q):
                out_RPQ[r, p, q] = label_RP[r, p] if q < asked else -2


@njit(cache=True)
def count_verdicts(verdicts_RPQ: NDArray[np.int8], out_RP: Floats) -> None:
    """`CoVerRL.weigh`, of the majority's verdicts."""
    R, P, Q = verdicts_RPQ.shape
    for r in range(R):
        for p in range(P):
            right, wrong = 0, 0
            for q in range(Q):
                right += verdicts_RPQ[r, p, q] == 1
                wrong += verdicts_RPQ[r, p, q] == 0
            out_RP[r, p] = 1.0 if right > wrong or right + wrong == 0 else 0.0


@njit(cache=True)
def label_shares(counts_RPA: Ints, label_RP: Ints, n_all: int, out_RP: Floats) -> None:
    """Share of the label among `n_all` responses, or among the parseable ones where that is 0."""
    R, P, A = counts_RPA.shape
    for r in range(R):
        for p in range(P):
            total = n_all
            if n_all == 0:
                for a in range(A):
                    total += counts_RPA[r, p, a]
            label = label_RP[r, p]
            out_RP[r, p] = counts_RPA[r, p, label] / max(total, 1) if label >= 0 else 0.0
