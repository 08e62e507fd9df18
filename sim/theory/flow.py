"""The mean flow of the answer probabilities: problems that are coupled, and more than two answers.

Without the noise of finite V and K, an update moves the logits by their expected gradient f, so
dp_a/dt = p_a (f_a - sum_b p_b f_b): a replicator equation whose fitness is what an answer earns,
averaged over the labels that V votes can give (docs/method.md, section 14). Left out is the drift
of a finite sample around this flow, which decides near its unstable points only.

Vote memory with two answers is a Polya urn: it holds the sum S of all votes, correct minus wrong,
whose sign is the label. Training moves the policy towards the label, so later votes agree with it.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.fft import irfft, rfft
from numpy.typing import ArrayLike
from scipy.fft import next_fast_len
from scipy.integrate import cumulative_trapezoid
from scipy.optimize import root_scalar
from scipy.stats import poisson

from lab.base.errors import UserError
from sim.theory.chain import smooth_moves, solve_lock_in
from sim.theory.process import Floats, Process, binomial, check_count, logit, reader

_TABLE = 2001
_LEAST_SPAN = 64
"""Sums beyond this, and beyond the votes of two visits, are never left again."""
_TOLD = 1e-4
_SETTLED = 16
"""Visits after which a remembered majority changes no more, near the crossing."""


class Coupling(NamedTuple):
    """Influence of problems on each other, as in the simulator's policy `attractor`."""

    kappa_att: float = 0.25
    """Of the wrong answers."""
    kappa_corr: float = 0.012
    """Of the correct answers."""
    neg_transfer: float = 0.3
    """Factor on what a penalty passes on to other problems."""


DEFAULT = Coupling()


class MeanField(NamedTuple):
    """The mean flow of N coupled two-answer problems over T visits of each."""

    x_TN: Floats
    """(T + 1, N) logits of the correct answer, before training and after every visit."""
    wrong_TN: Floats
    """(T + 1, N) probability of a wrong label."""


def mean_field(
    p0_N: ArrayLike, process: Process, n_visits: int, coupling: Coupling = DEFAULT
) -> MeanField:
    """Integrate the mean flow of the policy `attractor` with two answers and loadings of 1.

    A visit of problem i moves its own logit by 2 step (U - D), all correct answers by
    step kappa_corr (U - n D) and all wrong ones by step kappa_att (D - n U), where U and D are the
    mean sizes of the update with a correct and with a wrong label and n is `neg_transfer`. Every
    problem feels all N, so an epoch is integrated in N small steps.
    """
    check_count("n_visits", n_visits, 1)
    x_N = np.array([logit(float(p)) for p in np.atleast_1d(np.asarray(p0_N))])
    table_N = np.linspace(-(edge := process.barrier()), edge, _TABLE)
    up_N, down_N = _sizes(process, table_N)
    path = [x_N]
    for _ in range(n_visits):
        for _ in range(x_N.size):
            U_N, D_N = (np.interp(x_N, table_N, size_N) for size_N in (up_N, down_N))
            own_N, shared = _forces(U_N, D_N, coupling)
            x_N = x_N + process.step * (own_N / x_N.size + shared / x_N.size)
        path.append(x_N)
    x_TN = np.array(path)
    wrong_TN = process.wrong_vote(np.clip(x_TN, -edge, edge).ravel()).reshape(x_TN.shape)
    return MeanField(x_TN, wrong_TN)


def critical_coupling(p0_N: ArrayLike, process: Process, kappa_corr: float = 0.012) -> Floats:
    """(N,) `kappa_att` above which the mean logit of each problem falls at the first visits.

    It is (2 (U_i - D_i) + kappa_corr C) / A with C = sum_j U_j - n D_j and A = sum_j D_j - n U_j,
    in the words of `mean_field`: 0 where the problem falls in any case, infinite where wrong labels
    are so rare (A <= 0) that penalties outweigh them.
    """
    x_N = np.array([logit(float(p)) for p in np.atleast_1d(np.asarray(p0_N))])
    U_N, D_N = _sizes(process, x_N)
    own_N, shared = _forces(U_N, D_N, Coupling(0.0, kappa_corr))
    rise_N = own_N + shared
    pull = -_forces(U_N, D_N, Coupling(1.0, 0.0))[1]
    return np.maximum(rise_N, 0.0) / pull if pull > 0 else np.full(x_N.size, math.inf)


def collapse(p0: float, n_problems: int, process: Process, coupling: Coupling = DEFAULT) -> float:
    """Probability that a problem of a population of N equal ones ends on the wrong answer.

    The diffusion limit around the mean flow, solved by its scale function: with drift m(x) and
    variance v(x) of a logit in an epoch, the probability is the share of exp(-int 2 m / v) above
    x0. Every update moves all problems, so drift and variance both grow with N: the noise of
    finite V and K does not average out in a large population, and the population falls or rises as
    a whole. Valid for small steps and where the coupling dominates, N kappa >> 2, so that the
    problems move together; .08 below the engine at 1.1 times the critical coupling.
    """
    check_count("n_problems", n_problems, 1)
    x0, edge = logit(p0), process.barrier()
    x_N = np.union1d(np.linspace(-edge, edge, _TABLE), np.clip(x0, -edge, edge))
    law, n = process.law(x_N), coupling.neg_transfer
    size_M = law.sizes_M / 2.0
    rise = 2.0 / n_problems + coupling.kappa_corr + n * coupling.kappa_att
    fall = 2.0 / n_problems + n * coupling.kappa_corr + coupling.kappa_att
    drift_N = rise * (law.up_NM @ size_M) - fall * (law.down_NM @ size_M)
    variance_N = rise**2 * (law.up_NM @ size_M**2) + fall**2 * (law.down_NM @ size_M**2)
    potential_N = cumulative_trapezoid(2.0 * drift_N / variance_N, x_N, initial=0.0)
    mass_N = cumulative_trapezoid(np.exp(potential_N.min() - potential_N), x_N, initial=0.0)
    return 1.0 - float(np.interp(x0, x_N, mass_N)) / float(mass_N[-1])


def _sizes(process: Process, x_N: Floats) -> tuple[Floats, Floats]:
    """(N,) mean sizes of the update, per step, with a correct and with a wrong label."""
    law = process.law(x_N)
    size_M = law.sizes_M / (2.0 * process.step)
    return law.up_NM @ size_M, law.down_NM @ size_M


def _forces(U_N: Floats, D_N: Floats, coupling: Coupling) -> tuple[Floats, float]:
    """(N,) force of each problem on its own logit, and that of all on every logit, per step."""
    rises = coupling.kappa_corr * float((U_N - coupling.neg_transfer * D_N).sum())
    falls = coupling.kappa_att * float((D_N - coupling.neg_transfer * U_N).sum())
    return 2.0 * (U_N - D_N), rises - falls


def plurality(p_A: ArrayLike, n_votes: int) -> Floats:
    """(A,) probability that each of A answers gets most of V votes, ties broken at random.

    Exact: V votes are A independent Poisson counts given their sum, so the chance that answer a
    wins with m votes is a coefficient of a product of polynomials. Ties divide by their number,
    which a Gauss-Legendre quadrature over [0, 1] integrates without error.
    """
    check_count("n_votes", n_votes, 1)
    p_A = np.asarray(p_A, np.float64)
    if np.any(p_A < 0) or abs(p_A.sum() - 1.0) > 1e-9:
        raise UserError(f"theory: p must be probabilities that sum to 1, and sums to {p_A.sum():g}")
    counts_V = np.arange(n_votes + 1)
    chance_AV = poisson.pmf(counts_V, n_votes * p_A[:, None])
    nodes, weights = np.polynomial.legendre.leggauss(p_A.size // 2 + 1)
    wins_A = np.zeros(p_A.size)
    for most in range(1, n_votes + 1):
        below_AV = chance_AV * (counts_V < most)
        for node, weight in zip((nodes + 1) / 2, weights / 2, strict=True):
            others_AV = below_AV.copy()
            others_AV[:, most] = node * chance_AV[:, most]
            rest_A = _all_but_one(others_AV, n_votes - most)
            wins_A += weight * chance_AV[:, most] * rest_A
    return wins_A / wins_A.sum()


def _all_but_one(polynomials_AV: Floats, degree: int) -> Floats:
    """(A,) coefficient of a degree in the product of all polynomials but each one."""
    ones = np.eye(1, degree + 1)[0]
    before, after = [ones], [ones]
    for own_V in polynomials_AV[:-1]:
        before.append(np.convolve(before[-1], own_V)[: degree + 1])
    for own_V in polynomials_AV[:0:-1]:
        after.append(np.convolve(after[-1], own_V)[: degree + 1])
    return np.array([left @ right[::-1] for left, right in zip(before, after[::-1], strict=True)])


def replicator(p_A: ArrayLike, n_votes: int, step: float, n_visits: int) -> Floats:
    """(T + 1, A) mean flow of the answers of one problem under the expected update.

    With the label drawn from `plurality` and an infinite group of samples, the label's logit moves
    by step F and that of any other answer a by -step F p_a / (1 - q), with q the label's
    probability and F = sqrt(q (1 - q)): the simulator's `update="expected"`. All p_A are above 0.
    """
    check_count("n_visits", n_visits, 1)
    path = [np.asarray(p_A, np.float64)]
    for _ in range(n_visits):
        q_A = path[-1]
        size_A = plurality(q_A, n_votes) * np.sqrt(q_A * (1.0 - q_A))
        against_A = size_A / (1.0 - q_A)
        z_A = np.log(q_A) + step * (size_A - q_A * (against_A.sum() - against_A))
        path.append(np.exp(z_A - z_A.max()) / np.exp(z_A - z_A.max()).sum())
    return np.array(path)


def memory_wrong(p0: float, process: Process, n_visits: int) -> Floats:
    """(T + 1,) probability that the remembered majority is wrong at visit 0, 1, .. T.

    Exact for TTRL on the labels of an undiscounted vote memory (`label_from="memory"`): the state
    is the logit on a grid and the sum S, and the recursion runs backwards.
    """
    x0 = logit(p0)
    check_count("n_visits", n_visits, 1)
    n_votes, x_N = process.n_votes, smooth_moves(process).x_N
    start_1 = np.clip(np.array([x0]), *x_N[[0, -1]])
    span = max(2 * n_votes, _LEAST_SPAN)
    sums_S = np.arange(-span, span + 1)
    wrong_NS = np.tile(np.where(sums_S == 0, 0.5, sums_S < 0), (x_N.size, 1))
    # Visit 0 votes and moves nothing.
    first = slice(span - n_votes, span + n_votes + 1, 2)
    first_V = binomial(n_votes, start_1)[0]
    length = next_fast_len(sums_S.size + 2 * n_votes)
    # Adding votes to the sum is a correlation with their law, a product of transforms.
    law_MNF = np.conj(rfft(_vote_sums(process, x_N), length))
    moves = [
        tuple(reader(x_N, np.clip(x_N + way, *x_N[[0, -1]])) for way in (size, -size))
        for size in process.sizes()
    ]
    wrong_T = np.empty(n_visits + 1)
    for t in range(n_visits + 1):
        wrong_T[t] = first_V @ (reader(x_N, start_1) @ wrong_NS[:, first])[0]
        voted_NF = np.zeros(law_MNF.shape[1:], np.complex128)
        for (up_NN, down_NN), law_NF in zip(moves, law_MNF, strict=True):
            # The sum, which already holds the visit's votes, gives the label.
            up_NS, down_NS = up_NN @ wrong_NS[:, span:], down_NN @ wrong_NS[:, : span + 1]
            tie_N1 = (up_NS[:, :1] + down_NS[:, -1:]) / 2.0
            after_NS = np.hstack([down_NS[:, :-1], tie_N1, up_NS[:, 1:]])
            after_NS = np.pad(after_NS, ((0, 0), (n_votes, n_votes)), mode="edge")
            voted_NF += rfft(after_NS, length) * law_NF
        wrong_NS = irfft(voted_NF, length)[:, : sums_S.size]
    return wrong_T


def memory_crossing(p0: float, n_votes: int) -> float:
    """The step at which vote memory and TTRL end a problem alike often on the wrong answer; K = V.

    Memory is wrong more often at smaller steps and less often at larger ones (docs/method.md,
    section 17). For p0 from .52 to .6 and V from 8 to 64 the root lies where step * sqrt(V) is
    1.00 to 1.16.

    Raises:
        UserError: at p0 both are wrong too rarely, or too nearly alike, for the grid to tell.
    """

    def gap(scaled: float) -> float:
        process = Process(scaled / math.sqrt(n_votes), n_votes, n_votes)
        memory = float(memory_wrong(p0, process, _SETTLED)[-1])
        return memory - float(solve_lock_in(smooth_moves(process)).at(p0))

    if abs(gap(0.5)) < _TOLD:
        raise UserError(f"theory: p0 = {p0}, V = {n_votes}: no crossing is resolved; try p0 = .55")
    return root_scalar(gap, bracket=(0.5, 3.0), xtol=1e-3).root / math.sqrt(n_votes)


def _vote_sums(process: Process, x_N: Floats) -> Floats:
    """(M, N, 2 V + 1) law of a visit's sum -V .. V and of the size of its move."""
    n_votes, n_samples = process.n_votes, process.n_samples
    sampled_NK, rest_NR = binomial(n_samples, x_N), binomial(n_votes - n_samples, x_N)
    law_MND = np.zeros((process.sizes().size, x_N.size, 2 * n_votes + 1))
    for k, sampled_N in enumerate(sampled_NK.T):
        sums = slice(2 * k, 2 * (k + n_votes - n_samples) + 1, 2)
        law_MND[min(k, n_samples - k)][:, sums] += sampled_N[:, None] * rest_NR
    return law_MND
