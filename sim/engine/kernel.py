"""Plain visits in compiled code, an epoch at once, and the gradient of an update.

The law is guard_core's, see `guard_core.machine_code`. What is added is the simulator's: the truth
as a label, and the GRPO update as a gradient in a problem's logits. The samples' advantages depend
on the answer alone, so with n_a of K samples on answer a

    g_a = (1/K) * sum_k A_k * (1[a_k = a] - p_a) = (n_a * A_a - p_a * sum_b n_b * A_b) / K.

Both streams of the guard enter as their sum, which is exact where the ratio rho is 1: the batch's
updates are all computed at the probabilities that its votes were drawn from. Unparseable samples
count in K and in the standardisation; their constant log-probability has no gradient. With two
answers and plain TTRL, x = logit p moves by +-2*step*sqrt(q*(1-q)*(K-1)/K), q the share among the
samples (standardisation with n-1, the floor of 1e-6 aside), away from the loser.

`update = "expected"` takes the sampling noise out of the update and leaves it in the vote: given
label, minority candidates, weight, beta and skip, the count n_a of the K samples is replaced by its
mean over a fresh group, K * (1 - unparseable) * p_a. It is not the mean of the sampled update over
all draws that lead to the same label, whose K samples are among the votes that made the label.

Plain visits allocate no array, so reference counts are turned off, as in `machine_code.law`. Their
parts are inlined: a call would copy every field of every record of arrays that it is given.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numba import njit

from guard_core import machine_code
from guard_core.config import settings
from guard_core.rcsu import skip_cap
from guard_core.visit import Memory
from sim.engine.rows import RECORD, Epoch
from sim.settings.config import SimConfig
from sim.world.policies import Directions, update_plain, write_logits
from sim.world.sampling import (
    VOTES,
    Bools,
    Floats,
    Ints,
    Records,
    draw_row,
    exp_rows,
    fold,
    room_for,
    softmax_rows,
    stream,
)


@njit(cache=True, nogil=True)
def sharpen(p_RPA: Floats, out_RPA: Floats) -> None:
    """The direction in the logits that lowers the answers' entropy H, d(-H)/dz_a.

    It is p_a (log p_a + H): the exact gradient of the loss of one-shot EM, whose tokens stand for
    answers here.
    """
    R, P, A = p_RPA.shape
    for r in range(R):
        for p in range(P):
            entropy = 0.0
            for a in range(A):
                share = p_RPA[r, p, a]
                out_RPA[r, p, a] = np.log(share) if share > 0 else 0.0
                entropy -= share * out_RPA[r, p, a]
            for a in range(A):
                out_RPA[r, p, a] = p_RPA[r, p, a] * (out_RPA[r, p, a] + entropy)


_njit: Any = partial(njit, _nrt=False)  # type: ignore[call-overload]
_law = machine_code.law()
_batch_std, _net_advantages = _law.batch_std, _law.net_advantages
prime, decide = _law.prime_batches, _law.visit_batches


class Batch(NamedTuple):
    """Memory for one batch of one replicate, which all batches of its size use in turn.

    A copy of eight numbers costs less than a view of them in a larger array.
    """

    cap: int
    """Largest number of problems that are skipped."""
    order_1P: Ints
    """The problems of the batch."""
    p_1PA: Floats
    room_3C: Ints
    """Working memory of `draw_row`."""
    counts_1PA: Ints
    samples_1PA: Ints
    candidate_votes_1PA: Ints
    """Responses per answer that minority candidates are chosen by."""
    minority_1PA: Bools
    """Minority candidates; without the label once it is known what is trained on."""
    gradient_1PA: Floats
    norm_1P: Floats
    records_1P: Records
    label_P: Ints
    """The answer that is trained on, -1 for none."""
    hits_P: Floats
    """Samples on the label."""
    rival_hits_P: Floats
    """Samples on minority candidates."""
    key_P: Floats

    @classmethod
    def of_size(cls, n_problems: int, config: SimConfig) -> Batch:
        """Make room for batches of this size."""
        guard, shape = config.guard, (1, n_problems, config.n_answers)
        over_samples = settings(guard, config.n_votes, config.n_samples).minority_over_samples
        counts_1PA, samples_1PA = np.empty((2, *shape), np.int64)
        return cls(
            cap=skip_cap(n_problems, guard),
            order_1P=np.empty(shape[:2], np.int64),
            p_1PA=np.empty(shape),
            room_3C=room_for(config.n_answers),
            counts_1PA=counts_1PA,
            samples_1PA=samples_1PA,
            candidate_votes_1PA=samples_1PA if over_samples else counts_1PA,
            minority_1PA=np.empty(shape, np.bool_),
            gradient_1PA=np.empty(shape),
            norm_1P=np.empty(shape[:2]),
            records_1P=np.empty(shape[:2], RECORD),
            label_P=np.empty(n_problems, np.int64),
            hits_P=np.empty(n_problems),
            rival_hits_P=np.empty(n_problems),
            key_P=np.empty(n_problems),
        )


class Plain(NamedTuple):
    """What all epochs of a run of plain visits share."""

    seed: int
    first: int
    """Number of the first replicate."""
    parseable: float
    """Chance that a response holds an answer."""
    on_truth: bool
    """Train on the true answer in place of the label."""
    settings_1: Records
    batches: tuple[Batch, Batch]
    """Memory for whole batches, and for the last one, which may be smaller."""
    memory: Memory
    policy: Directions
    right_RN: Floats
    """Output; chance that a response to each problem is right after the latest epoch."""


@_njit(cache=True, nogil=True)
def visit_all(run: Plain, epoch: Epoch, bad_R: Ints) -> None:
    """Make all visits of an epoch, one replicate after the other, whose memory fits the cache.

    Votes, decides, learns and updates as the loop of `sim.engine.run` does with plain settings.

    Args:
        bad_R: output; place of the visit at which a replicate ends, its logits not finite, or -1.
    """
    (R, N), size = epoch.problems_RN.shape, run.batches[0].key_P.shape[0]
    for r in range(R):
        one, start, bad = slice(r, r + 1), 0, -1
        memory, policy = run.memory, run.policy
        memory_1 = Memory(
            memory.problems[one], memory.flips[one], memory.match_rates[one], memory.votes[one]
        )
        model = Directions(
            policy.z_RNA[one],
            policy.place_RN2[one],
            policy.load_RN2[one],
            policy.theta_R2[one],
            policy.kappa_2,
            policy.neg_transfer,
        )
        drawn = (epoch.tie_RN[one], epoch.skip_RN[one], epoch.pick_RN[one])
        key = stream(run.seed, run.first + r, VOTES, epoch.epoch)
        # The sum is kept in memory that is overwritten: the reads would be removed without a use.
        run.batches[0].key_P[0] = _fetch(memory_1, model, drawn)
        for batch in run.batches:
            while start + batch.key_P.shape[0] <= N and bad < 0:
                bad = _vote(run, epoch, r, start, key, batch, model)
                if bad < 0:
                    decide(
                        run.settings_1,
                        memory_1,
                        drawn,
                        batch.order_1P,
                        batch.counts_1PA,
                        batch.counts_1PA,
                        batch.cap,
                        batch.candidate_votes_1PA,
                        batch.minority_1PA,
                        batch.key_P,
                        batch.records_1P,
                    )
                    _learn(run, model, batch)
                    lr = epoch.lr_RB[r, start // size]
                    update_plain(model, batch.order_1P, lr, batch.gradient_1PA, batch.norm_1P)
                    bad = _record(epoch, r, start, batch)
                start += batch.key_P.shape[0]
        bad_R[r] = bad
        _evaluate(run, model, run.right_RN[r])


@_njit()
def _evaluate(run: Plain, model: Directions, right_N: Floats) -> None:
    """Write the chance of the truth in every problem, while the parameters are in the cache."""
    start = 0
    for batch in run.batches:
        p_1PA, order_P = batch.p_1PA, batch.order_1P[0]
        while start + order_P.shape[0] <= right_N.shape[0]:
            for p in range(order_P.shape[0]):
                order_P[p] = start + p
            write_logits(model, batch.order_1P, p_1PA)
            exp_rows(p_1PA)
            for p in range(order_P.shape[0]):
                total = 0.0
                for a in range(p_1PA.shape[2]):
                    total += p_1PA[0, p, a]
                right_N[start + p] = p_1PA[0, p, model.place_RN2[0, start + p, 0]] / total
            start += order_P.shape[0]


@_njit(inline="always")
def _vote(
    run: Plain, epoch: Epoch, r: int, start: int, key: Any, batch: Batch, model: Directions
) -> int:
    """Draw and count the votes of a batch; returns its first place that is not finite, or -1."""
    order_P, records_P, s = batch.order_1P[0], batch.records_1P[0], run.settings_1[0]
    p_PA, counts_PA, samples_PA = batch.p_1PA[0], batch.counts_1PA[0], batch.samples_1PA[0]
    for p in range(order_P.shape[0]):
        order_P[p] = epoch.problems_RN[r, start + p]
    write_logits(model, batch.order_1P, batch.p_1PA)
    bad = softmax_rows(batch.p_1PA)
    if bad >= 0:
        return start + bad
    for p in range(order_P.shape[0]):
        n = order_P[p]
        n_parsed = draw_row(
            fold(key, n),
            p_PA[p],
            run.parseable,
            s.n_votes,
            s.n_samples,
            batch.room_3C,
            counts_PA[p],
            samples_PA[p],
        )
        records_P[p].n_unparseable = s.n_votes - n_parsed
        records_P[p].right = counts_PA[p, model.place_RN2[0, n, 0]]
    return -1


@_njit(inline="always")
def _learn(run: Plain, model: Directions, batch: Batch) -> None:
    """Compute the gradient in the logits, 0 where a problem is dropped."""
    s, records_P, order_P = run.settings_1[0], batch.records_1P[0], batch.order_1P[0]
    p_PA, samples_PA, gradient_PA = batch.p_1PA[0], batch.samples_1PA[0], batch.gradient_1PA[0]
    votes_PA, minority_PA = batch.candidate_votes_1PA[0], batch.minority_1PA[0]
    P, A = samples_PA.shape
    for p in range(P):
        label = model.place_RN2[0, order_P[p], 0] if run.on_truth else records_P[p].label
        hits, rival_hits = 0.0, 0.0
        if label >= 0:
            hits += samples_PA[p, label]
            minority_PA[p, label] = False
        for a in range(A):
            rival_hits += samples_PA[p, a] if minority_PA[p, a] else 0
        batch.label_P[p], batch.hits_P[p], batch.rival_hits_P[p] = label, hits, rival_hits
    std, rival_std = 0.0, 0.0
    if s.advantage_scale_batch:
        std = _batch_std(s, batch.hits_P, 1.0, records_P)
        rival_std = _batch_std(s, batch.rival_hits_P, s.minority_reward, records_P)
    for p in range(P):
        seen, gradient_A = records_P[p], gradient_PA[p]
        hits, stds = (batch.hits_P[p], batch.rival_hits_P[p]), (std, rival_std)
        label, minority_A, votes_A = batch.label_P[p], minority_PA[p], votes_PA[p]
        _net_advantages(s, seen, label, minority_A, votes_A, hits, stds, gradient_A)
        total = 0.0
        for a in range(A):
            gradient_A[a] = samples_PA[p, a] * gradient_A[a]
            total += gradient_A[a]
        scale = (seen.weight if s.weight_on_loss else 1.0) / s.n_samples
        for a in range(A):
            gradient_A[a] = scale * (gradient_A[a] - p_PA[p, a] * total)


@_njit(inline="always")
def _record(epoch: Epoch, r: int, start: int, batch: Batch) -> int:
    """Write a batch to the epoch; returns the place of its first norm that is not finite, or -1."""
    S, _, A = epoch.counts_SNA.shape
    for p in range(batch.norm_1P.shape[1]):
        if not np.isfinite(batch.norm_1P[0, p]):
            return start + p
        epoch.norm_RN[r, start + p] = batch.norm_1P[0, p]
        epoch.records_RN[r, start + p] = batch.records_1P[0, p]
        if r < S:
            for a in range(A):
                epoch.counts_SNA[r, start + p, a] = batch.counts_1PA[0, p, a]
    return -1


@_njit()
def _fetch(memory: Memory, policy: Directions, drawn: tuple[Floats, Floats, Floats]) -> float:
    """Read a replicate's rows in order, which brings them into the cache before the visits."""
    total, (tie_1N, skip_1N, pick_1N) = 0.0, drawn
    for n in range(policy.z_RNA.shape[1]):
        total += policy.z_RNA[0, n, 0] + policy.load_RN2[0, n, 0] + policy.place_RN2[0, n, 0]
        total += memory.problems[0, n].label + memory.flips[0, n, 0]
        total += memory.match_rates[0, n, 0] + tie_1N[0, n] + skip_1N[0, n] + pick_1N[0, n]
    return total
