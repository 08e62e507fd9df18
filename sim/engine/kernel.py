"""Visits in compiled code, a batch or an epoch at once.

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

Nothing here allocates an array, so reference counts are turned off, as in `machine_code.law`.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from guard_core import PolicyStreams, Route, machine_code
from guard_core.config import settings
from guard_core.rcsu import skip_cap
from guard_core.visit import Memory
from guard_core.votes import Array
from sim.engine.rows import tally
from sim.settings.config import SimConfig
from sim.world.policies import Directions, Update, update_plain, write_logits
from sim.world.sampling import Bools, Floats, Ints, Records, Shorts, draw_votes, softmax_rows

_BELOW_ONE = 1.0 - 1e-12
"""Keeps the sum over any set of answers below K in spite of rounding: it goes under a root."""


def weighted_streams(streams: PolicyStreams, config: SimConfig) -> Floats | None:
    """Return `Update.streams_RSPB` of streams per answer; None for policies that do not read it."""
    if config.policy != "measured":
        return None
    pair = np.broadcast_arrays(streams.majority, streams.minority)
    return np.stack(pair, axis=1) * streams.weight[:, None, :, None]


def expected_samples(p_RPA: Array, parseable: float, n_samples: int) -> Array:
    """(R, P, A) mean counts of the answers among K fresh samples; they need not be whole."""
    return (_BELOW_ONE * parseable * n_samples) * p_RPA


def sit_out(config: SimConfig, draws_RP: Floats, records_RP: Records, update: Update) -> Update:
    """Skip a batch's problems with probability `skip_rate`, in addition to the guard's.

    The control for a guard that skips. The visits' records are changed in place.
    """
    out_RP = draws_RP < config.skip_rate
    records_RP["skipped"] |= out_RP
    records_RP["route"][out_RP] = Route.SKIPPED
    drop_RP = update.drop_RP | (out_RP & (config.guard.advantages.skip_by == "drop"))
    gradient_RPA = np.where(out_RP[..., None], 0.0, update.gradient_RPA)
    streams_RSPB = update.streams_RSPB
    if streams_RSPB is not None:
        streams_RSPB = np.where(out_RP[:, None, :, None], 0.0, streams_RSPB)
    return Update(gradient_RPA, drop_RP, streams_RSPB)


@njit(cache=True, nogil=True)
def sums_gradient(
    sums_RPA: Floats,
    n_samples: int,
    p_RPA: Floats,
    weight_RP: Floats,
    drop_RP: Bools,
    out_RPA: Floats,
) -> None:
    """Write the weighted gradients of a batch, 0 where a problem is dropped."""
    R, P, A = p_RPA.shape
    for r in range(R):
        for p in range(P):
            scale, total = 0.0 if drop_RP[r, p] else weight_RP[r, p] / n_samples, 0.0
            for a in range(A):
                total += sums_RPA[r, p, a]
            for a in range(A):
                out_RPA[r, p, a] = scale * (sums_RPA[r, p, a] - p_RPA[r, p, a] * total)


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


Counts = NDArray[Any]
"""Samples per answer: integers, or floats where they are expected ones."""

_njit: Any = partial(njit, _nrt=False)  # type: ignore[call-overload]


_law = machine_code.law()
_batch_std, _net_advantages = _law.batch_std, _law.net_advantages
prime, decide = _law.prime_batches, _law.visit_batches


class Targets(NamedTuple):
    """The answers of a batch that are trained on, and the trained samples that hit them."""

    candidate_votes_RPA: Ints
    """Responses per answer that minority candidates are chosen by."""
    minority_RPA: Bools
    """Minority candidates; after `count_hits` without the label."""
    label_RP: Ints
    """The answer that is trained on, -1 for none."""
    hits_RP: Floats
    rival_hits_RP: Floats
    """On minority candidates."""

    @classmethod
    def empty(cls, candidate_votes_RPA: Ints) -> Targets:
        """Make room for what `decide` and `count_hits` write."""
        shape = candidate_votes_RPA.shape
        minority_RPA, label_RP = np.empty(shape, np.bool_), np.empty(shape[:2], np.int64)
        hits_RP, rival_hits_RP = np.empty(shape[:2]), np.empty(shape[:2])
        return cls(candidate_votes_RPA, minority_RPA, label_RP, hits_RP, rival_hits_RP)


@_njit(cache=True, nogil=True)
def count_hits(
    on_truth: bool, truth_RP: Shorts, samples_RPA: Counts, records_RP: Records, targets: Targets
) -> None:
    """Write what is trained on, and the samples that hit it or a minority candidate.

    Args:
        on_truth: train on the true answer in place of the label.
        targets: what is trained on is taken out of the minority candidates.
    """
    _, minority_RPA, label_RP, hits_RP, rival_hits_RP = targets
    R, P, A = samples_RPA.shape
    for r in range(R):
        for p in range(P):
            label = truth_RP[r, p] if on_truth else records_RP[r, p].label
            hits, rival_hits = 0.0, 0.0
            if label >= 0:
                hits += samples_RPA[r, p, label]
                minority_RPA[r, p, label] = False
            for a in range(A):
                rival_hits += samples_RPA[r, p, a] if minority_RPA[r, p, a] else 0
            label_RP[r, p], hits_RP[r, p], rival_hits_RP[r, p] = label, hits, rival_hits


@_njit(cache=True, nogil=True)
def learn(
    settings_1: Records,
    samples_RPA: Counts,
    targets: Targets,
    records_RP: Records,
    p_RPA: Floats,
    gradient_RPA: Floats,
    drop_RP: Bools,
) -> None:
    """Compute the gradient in the logits after `count_hits`, 0 where a problem is dropped."""
    s = settings_1[0]
    candidate_votes_RPA, minority_RPA, label_RP, hits_RP, rival_hits_RP = targets
    R, P, A = samples_RPA.shape
    for r in range(R):
        std, rival_std = 0.0, 0.0
        if s.advantage_scale_batch:
            std = _batch_std(s, hits_RP[r], 1.0, records_RP[r])
            rival_std = _batch_std(s, rival_hits_RP[r], s.minority_reward, records_RP[r])
        for p in range(P):
            seen, gradient_A = records_RP[r, p], gradient_RPA[r, p]
            votes_A, minority_A = candidate_votes_RPA[r, p], minority_RPA[r, p]
            hits, stds = (hits_RP[r, p], rival_hits_RP[r, p]), (std, rival_std)
            _net_advantages(s, seen, label_RP[r, p], minority_A, votes_A, hits, stds, gradient_A)
            total = 0.0
            for a in range(A):
                gradient_A[a] = samples_RPA[r, p, a] * gradient_A[a]
                total += gradient_A[a]
            drop_RP[r, p] = s.skip_by_drop and seen.skipped
            scale = (seen.weight if s.weight_on_loss else 1.0) / s.n_samples
            scale = 0.0 if drop_RP[r, p] else scale
            for a in range(A):
                gradient_A[a] = scale * (gradient_A[a] - p_RPA[r, p, a] * total)


class Batch(NamedTuple):
    """Memory for one batch of one replicate, R = 1, which all batches of its size use in turn."""

    cap: int
    """Largest number of problems that are skipped."""
    p_RPA: Floats
    counts_RPA: Ints
    samples_RPA: Ints
    targets: Targets
    key_P: Floats
    gradient_RPA: Floats
    drop_RP: Bools

    @classmethod
    def of_size(cls, n_problems: int, config: SimConfig) -> Batch:
        """Make room for batches of this size."""
        guard, shape = config.guard, (1, n_problems, config.n_answers)
        over_samples = settings(guard, config.n_votes, config.n_samples).minority_over_samples
        p_RPA, gradient_RPA = np.empty((2, *shape))
        counts_RPA, samples_RPA = np.empty((2, *shape), np.int64)
        targets = Targets.empty(samples_RPA if over_samples else counts_RPA)
        votes, gradient = (p_RPA, counts_RPA, samples_RPA, targets), gradient_RPA
        keys, drop = np.empty(n_problems), np.empty(shape[:2], np.bool_)
        return cls(skip_cap(n_problems, guard), *votes, keys, gradient, drop)


class Visits(NamedTuple):
    """An epoch of plain visits: what is given, and what is written in visiting order."""

    draws: tuple[Floats, Floats, Floats]
    """(R, N) each; `Draws.tie`, `skip` and `pick`, by problem."""
    order_RN: Ints
    truth_RN: Shorts
    step_B: Floats
    records_RN: Records
    norm_RN: Floats
    counts_SNA: NDArray[np.int32]


@_njit(cache=True, nogil=True)
def visit_all(
    where: tuple[int, int, int],
    rest: tuple[float, bool, Records],
    batches: tuple[Batch, Batch],
    visits: Visits,
    memory: Memory,
    policy: Directions,
    bad_R: Ints,
) -> None:
    """Make all visits of an epoch, one replicate after the other, whose memory fits the cache.

    Votes, decides, learns and updates as the loop of `sim.engine.run` does with plain settings.

    Args:
        where: seed, number of the first replicate, and epoch.
        rest: chance that a response holds an answer, whether the truth is trained on, settings.
        batches: memory for a batch, and for the last one, which may be smaller.
        bad_R: output; place of the visit at which a replicate ends, its logits not finite, or -1.
    """
    draws, order_RN, truth_RN, step_B, records_RN, norm_RN, counts_SNA = visits
    parseable, on_truth, settings_1 = rest
    (R, N), size = order_RN.shape, batches[0].key_P.shape[0]
    s, (seed, first, epoch) = settings_1[0], where
    for r in range(R):
        one, bad = slice(r, r + 1), -1
        own = Memory(
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
        drawn = (draws[0][one], draws[1][one], draws[2][one])
        # The sum is kept in memory that is overwritten: the reads would be removed without a use.
        batches[0].key_P[0] = _fetch(own, model)
        for b in range(step_B.shape[0]):
            start, stop = b * size, min((b + 1) * size, N)
            at, shape = slice(start, stop), (1, stop - start)
            batch = batches[0] if stop - start == size else batches[1]
            order_RP, truth_RP = order_RN[r, at].reshape(shape), truth_RN[r, at].reshape(shape)
            seen_RP, norm_RP = records_RN[r, at].reshape(shape), norm_RN[r, at].reshape(shape)
            p_RPA, counts_RPA, samples_RPA = batch.p_RPA, batch.counts_RPA, batch.samples_RPA
            write_logits(model, order_RP, p_RPA)
            bad = softmax_rows(p_RPA)
            if bad < 0:
                votes = (s.n_votes, counts_RPA, samples_RPA, s.n_samples)
                draw_votes(seed, first + r, epoch, order_RP, p_RPA, parseable, *votes)
                tally(counts_RPA, truth_RP, s.n_votes, 0, seen_RP)
                targets, votes = batch.targets, (counts_RPA, counts_RPA)
                marks = (targets.candidate_votes_RPA, targets.minority_RPA, batch.key_P)
                decide(settings_1, own, drawn, order_RP, *votes, batch.cap, *marks, seen_RP)
                count_hits(on_truth, truth_RP, samples_RPA, seen_RP, batch.targets)
                of = (batch.targets, seen_RP, p_RPA, batch.gradient_RPA, batch.drop_RP)
                learn(settings_1, samples_RPA, *of)
                update_plain(model, order_RP, step_B[b], batch.gradient_RPA, norm_RP)
                for p in range(stop - start - 1, -1, -1):
                    bad = bad if np.isfinite(norm_RP[0, p]) else p
            if bad >= 0:
                bad += start
                break
            if r < counts_SNA.shape[0]:
                for p in range(stop - start):
                    for a in range(counts_SNA.shape[2]):
                        counts_SNA[r, start + p, a] = counts_RPA[0, p, a]
        bad_R[r] = bad


@_njit()
def _fetch(memory: Memory, policy: Directions) -> float:
    """Read a replicate's rows in order, which brings them into the cache before the visits."""
    total = 0.0
    for n in range(policy.z_RNA.shape[1]):
        total += policy.z_RNA[0, n, 0] + policy.load_RN2[0, n, 0] + policy.place_RN2[0, n, 0]
        total += memory.problems[0, n].label + memory.flips[0, n, 0]
        total += memory.match_rates[0, n, 0]
    return total
