"""Votes of a visit, and what a rule observes besides, as models of known strength.

Only here may the truth enter an observation. One number, `SimConfig.signal` = s, sets the strength
of all of them; at 0 they contain no more information than the votes.

Confidence of a response: one number, read as log-prob, entropy or certainty.

    x_i = s (2 [right_i] - 1) + sqrt(1 - s^2) e_i,    e_i bell-shaped

The variance at even odds is 1 and s is the correlation with being right there, so that AUROC =
Phi(s sqrt(2 / (1-s^2))) to .003. Unparseable responses count as wrong. e_i is the sum of a random
word's eight bytes, minus `MIDDLE` and over `WIDTH`: mean 0, variance 1, within +-4.88, excess
kurtosis -.15. Sums of whole numbers do not depend on the order.

Similarity of two responses.

    s_ij = .5 + .3 s [a_i = a_j] + .1 (u_i + u_j),    s_ii = 1

u_i, uniform in [-1, 1], is how ordinary a response is: some resemble all others, some none.
Unparseable responses share no answer. The truth has no part in it.

Judges of single responses, a tool and a verifier: both say yes to a right response with (1 + s) / 2
and to a wrong one, unparseable ones among them, with (1 - s) / 2, independently for every response
and question.

Second vote set of a rewording: V answers from (1 - s) p + s p'. p' keeps the right answer's
probability and hands the wrong ones' on by a uniform permutation of the wrong answers, one per
problem for the whole run. At s = 0 it makes the very errors of the question, so it adds votes and
no news; at s = 1 the most popular errors of the two agree by chance alone.

Second vote set of a teacher: V answers from the exponential moving average of the problem's answer
probabilities, started before training, at `guard_core.schedule.teacher_rate`. A problem's average
is brought up to date when it is visited: the batches since its last visit count as if its
probabilities had been today's all along.

Given the counts, the V responses are exchangeable within the K trained ones and within the rest, so
any fixed order will do: the trained ones first, each part by answer, unparseable ones at its end.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from guard_core import Votes
from guard_core.rules import Need, Observations, Rule
from guard_core.rules.rule import SECOND_VOTES
from guard_core.schedule import teacher_rate
from sim.settings.config import SimConfig
from sim.world import sampling
from sim.world.sampling import Bools, Floats, Ints, Shorts, draw_votes, fold, stream, unit

MIDDLE = 4 * 255
"""Mean of a sum of eight bytes."""
WIDTH = float(np.sqrt(8 * (256**2 - 1) / 12))
"""Its standard deviation."""

Scale = tuple[float, float]
"""Mean of a confidence, and its slope in x."""
SCALES: dict[Need, Scale] = {
    Need.STEP_LOGPROB: (-0.8, 0.12),
    Need.ENTROPY: (0.8, -0.12),
    Need.CERTAINTY: (17.0, 1.5),
}
"""Of the size that language models show, in nats; log-probs stay below 0 and entropies above it."""
BASE, SAME, SPREAD = 0.5, 0.3, 0.1
U_STEP = 2.0**-15
"""u lies in the middle of one of the 65536 steps from -1 to 1."""

_BYTES = np.uint64(0x00FF00FF00FF00FF)
_LAST = np.uint64(0xFFFF)
_S8, _S16, _S32 = np.uint64(8), np.uint64(16), np.uint64(32)
_exp = np.vectorize(math.exp, otypes=[float])
"""The exponential of the C library: the last bits of NumPy's depend on the processor."""


def with_unparseable(counts_RPA: Ints, n: int) -> Ints:
    """Return (R, P, A + 1) counts among n responses, the last place for unparseable ones."""
    missing_RP1 = n - counts_RPA.sum(axis=-1, keepdims=True)
    return np.concatenate([counts_RPA, missing_RP1], axis=-1)


@njit(inline="always")
def bell(key: Any, draw: Any) -> Any:
    """A sum of eight bytes minus `MIDDLE`, a whole number: draw 0, 1, ... of a key."""
    x = sampling.word(key, draw)
    x = (x & _BYTES) + ((x >> _S8) & _BYTES)
    x = x + (x >> _S32)
    return np.int64((x + (x >> _S16)) & _LAST) - MIDDLE


def similarities(answers_RPK: Shorts, u_RPK: Floats, strength: float) -> Floats:
    """(R, P, K, K) of s_ij."""
    same = (answers_RPK[..., :, None] == answers_RPK[..., None, :]) & (answers_RPK >= 0)[..., None]
    s_RPKK = BASE + SAME * strength * same + SPREAD * (u_RPK[..., :, None] + u_RPK[..., None, :])
    K = answers_RPK.shape[-1]
    s_RPKK[..., np.arange(K), np.arange(K)] = 1.0
    return s_RPKK


def listed(counts_RPA: Ints, n: int) -> Shorts:
    """(R, P, n) answers of n responses, in order; -1 for unparseable ones, at the end."""
    counts_RPB = with_unparseable(counts_RPA, n)
    ids_B = np.append(np.arange(counts_RPA.shape[-1]), -1).astype(np.int32)
    ids_M = np.repeat(np.broadcast_to(ids_B, counts_RPB.shape), counts_RPB.reshape(-1))
    return ids_M.reshape(*counts_RPA.shape[:-1], n)


@njit(cache=True, nogil=True)
def reworded(
    seed: int, first: int, problems_RP: Ints, truth_RP: Shorts, p_RPA: Floats, signal: float
) -> Floats:
    """(R, P, A) (1 - s) p + s p', p' with the wrong answers permuted (Fisher and Yates)."""
    R, P, A = p_RPA.shape
    q_RPA, other_A = np.empty((R, P, A)), np.empty(A)
    for r in range(R):
        key = stream(seed, first + r, sampling.SECOND_ORDER, 0)
        for p in range(P):
            leaf, truth = fold(key, problems_RP[r, p]), truth_RP[r, p]
            other_A[:] = p_RPA[r, p]
            for place in range(A - 2, 0, -1):
                at = int(unit(leaf, place) * (place + 1))
                # Places among the wrong answers; those from the truth on lie one further.
                i, j = place + (place >= truth), at + (at >= truth)
                other_A[i], other_A[j] = other_A[j], other_A[i]
            q_RPA[r, p] = (1 - signal) * p_RPA[r, p] + signal * other_A
    return q_RPA


class AnswerTeacher:
    """The moving average of every problem's answer probabilities."""

    def __init__(self, config: SimConfig) -> None:
        batches = max(config.epochs * config.n_batches, 1)
        rate_B = np.array([teacher_rate(done, batches) for done in range(batches)])
        self._kept_B = np.append(0.0, np.cumsum(np.log1p(-rate_B)))
        self._q_RNA = np.zeros((config.replicates, config.n_problems, config.n_answers))
        self._last_RN = np.zeros(self._q_RNA.shape[:2], np.int64)

    def follow(self, batch: int, problems_RP: Ints, p_RPA: Floats) -> Floats:
        """(R, P, A) the teacher's probabilities of a batch, see `ObservedVisit.batch`."""
        at = np.arange(len(problems_RP))[:, None], problems_RP
        kept_RP = np.zeros(problems_RP.shape)
        if batch > 0:
            kept_RP = _exp(self._kept_B[batch] - self._kept_B[self._last_RN[at]])
        self._last_RN[at] = batch
        q_RPA = kept_RP[..., None] * self._q_RNA[at] + (1 - kept_RP[..., None]) * p_RPA
        self._q_RNA[at] = q_RPA
        return q_RPA


@dataclass(frozen=True, slots=True)
class ObservedVisit:
    """One batch as the simulator knows it."""

    epoch: int
    """0 before training."""
    batch: int
    """Number over the whole run, from 1; 0 before training."""
    problems_RP: Ints
    truth_RP: Shorts
    """Read by the observation models alone."""
    votes: Votes
    p_RPA: Floats
    """The probabilities that the votes were drawn from."""


class AnswerObserver:
    """Draws the observations of a rule; the numbers depend neither on the rule nor on the order."""

    def __init__(self, config: SimConfig, rule: Rule) -> None:
        self._config, self.rule = config, rule
        self.signal = config.signal
        self._teacher = AnswerTeacher(config) if Need.TEACHER in rule.needs else None

    def see(self, visit: ObservedVisit, prior_RPA: Floats | None = None) -> Observations:
        """Draw all observations that the rule needs, except verdicts, which need a label.

        Args:
            prior_RPA: of `guard_core.Guard.remembered`.
        """
        needs, answers_RPV = self.rule.needs, self.answers(visit)
        votes, observed = visit.votes, dict[str, Floats | Shorts | Bools]()
        for need, scale in SCALES.items():
            if need in needs:
                observed[need] = self.confidence(visit, answers_RPV, scale)
        if Need.TOOL in needs:
            observed["tool"] = self.confirmed(sampling.TOOL, visit, answers_RPV)
        if needs & SECOND_VOTES:
            observed["second"] = listed(self.second(visit), votes.n_votes)
        if Need.SIMILARITY in needs:
            answers_RPK = answers_RPV[..., : votes.n_samples]
            observed["similarity"] = similarities(answers_RPK, self.ordinary(visit), self.signal)
        n_draws = self.rule.n_draws(votes.n_votes, votes.n_samples)
        draws_RPD = self._numbers(sampling.RULE, visit, n_draws)
        return Observations(votes, draws_RPD, answers_RPV, prior=prior_RPA, **observed)

    def answers(self, visit: ObservedVisit) -> Shorts:
        """(R, P, V) answers of all responses."""
        votes = visit.votes
        trained_RPK = listed(votes.samples, votes.n_samples)
        rest = listed(votes.counts - votes.samples, votes.n_votes - votes.n_samples)
        return np.concatenate([trained_RPK, rest], axis=-1)

    def confidence(self, visit: ObservedVisit, answers_RPV: Shorts, scale: Scale) -> Floats:
        """(R, P, V) confidence of the responses."""
        s, (mean, slope) = self.signal, scale
        noise_RPV = self._numbers(sampling.CONFIDENCE, visit, answers_RPV.shape[-1])
        noise_RPV *= np.sqrt(1 - s * s) / WIDTH
        right_RPV = answers_RPV == visit.truth_RP[..., None]
        return mean + slope * (np.where(right_RPV, s, -s) + noise_RPV)

    def second(self, visit: ObservedVisit) -> Ints:
        """(R, P, A) votes of the second set; once per visit, since a teacher follows along."""
        c, problems_RP = self._config, visit.problems_RP
        key = c.seed, c.first_replicate
        if self._teacher is None:
            p_RPA = reworded(*key, problems_RP, visit.truth_RP, visit.p_RPA, self.signal)
        else:
            p_RPA = self._teacher.follow(visit.batch, problems_RP, visit.p_RPA)
        law = p_RPA, 1.0 - c.unparseable, c.n_votes, 0
        return draw_votes(*key, sampling.SECOND, visit.epoch, problems_RP, *law)[0]

    def ordinary(self, visit: ObservedVisit) -> Floats:
        """(R, P, K) how ordinary each trained response is."""
        uniform_RPK = self._numbers(sampling.ODDNESS, visit, visit.votes.n_samples)
        return U_STEP * (np.floor(uniform_RPK * 2.0**16) + 0.5) - 1.0

    def verdicts(self, visit: ObservedVisit, answers_RPQ: Ints) -> NDArray[np.int8]:
        """(R, P, Q) verdicts on responses with these answers, -2 where nothing is asked."""
        yes_RPQ = self.confirmed(sampling.VERDICT, visit, answers_RPQ)
        return np.where(answers_RPQ == -2, -1, yes_RPQ).astype(np.int8)

    def confirmed(self, purpose: int, visit: ObservedVisit, answers_RPQ: NDArray[Any]) -> Bools:
        """(R, P, Q) whether a judge, `TOOL` or `VERDICT`, confirms responses with these answers."""
        right_RPQ = answers_RPQ == visit.truth_RP[..., None]
        chance_RPQ = np.where(right_RPQ, (1 + self.signal) / 2, (1 - self.signal) / 2)
        return self._numbers(purpose, visit, answers_RPQ.shape[-1]) < chance_RPQ

    def _numbers(self, purpose: int, visit: ObservedVisit, n: int) -> Floats:
        c = self._config
        return numbers(c.seed, c.first_replicate, purpose, visit.epoch, visit.problems_RP, n)


@njit(cache=True, nogil=True)
def numbers(seed: int, first: int, purpose: int, epoch: int, problems_RP: Ints, D: int) -> Floats:
    """(R, P, D) numbers: uniform in [0, 1), and for `CONFIDENCE` as of `bell`."""
    R, P = problems_RP.shape
    x_RPD = np.empty((R, P, D))
    for r in range(R):
        key = stream(seed, first + r, purpose, epoch)
        for p in range(P):
            leaf = fold(key, problems_RP[r, p])
            if purpose == sampling.RULE:
                sampling.fill_lanes(leaf, x_RPD[r, p])
                continue
            for d in range(D):
                x_RPD[r, p, d] = bell(leaf, d) if purpose == sampling.CONFIDENCE else unit(leaf, d)
    return x_RPD
