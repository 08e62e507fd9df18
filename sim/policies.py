"""Answer policies: how a problem's logits are made, and what an update on one problem moves.

Softmax over the A answers of each problem. A policy has two methods: the answer probabilities of
given problems, and an update. Let g_ia be the weighted gradient of `sim.gradient` for problem i of
the batch, eta the step of the schedule, c the correct answer and b the attractor of problem i.

independent  z_ia = log p0_ia + u_ia
             u_ia += eta * g_ia
attractor    z_ia = log p0_ia + u_ia + [a = c] * psi_i * theta_C + [a = b] * phi_i * theta_A
             u_ia    += eta * g_ia
             theta_C += eta * kappa_corr * psi_i * t(g_ic)
             theta_A += eta * kappa_att  * phi_i * t(g_ib)
             t(g) = g where g > 0 (a reward), neg_transfer * g where g < 0 (a penalty)
             psi_i, phi_i ~ Normal(1, load_sd), drawn per problem once

With neg_transfer = 1 this is gradient descent in (u, theta_C, theta_A) with learning rates eta,
eta * kappa_corr and eta * kappa_att: kappa * phi_i * phi_j is how far problem i moves problem j.
All problems of a batch are updated from the same state.

The norm of an update is that of the change it makes to the parameters (u_i, theta_C, theta_A).
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numba import njit
from numpy.typing import NDArray

from sim.config import SimConfig
from sim.populations import Population
from sim.random import generator

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Policy(Protocol):
    """A model of what the network would answer, for R replicates at once."""

    def probabilities(self, problems_RP: Ints, out_RPA: Floats) -> int:
        """Write the answer probabilities of the given problems.

        Returns:
            -1, or the flat place r * P + p of the first problem with a logit that is not finite.
        """
        ...

    def update(self, problems_RP: Ints, step: float, gradient_RPA: Floats) -> Floats:
        """Move the parameters by `step` along the gradients of the given problems.

        Returns:
            (R, P) norms of the parameter changes, 0 where the gradient is 0.
        """
        ...


class Independent:
    """Every problem has its own logits: the null model."""

    def __init__(self, config: SimConfig, population: Population) -> None:
        """Start at the population's probabilities."""
        self._z_RNA = np.log(population.p0_RNA)

    def probabilities(self, problems_RP: Ints, out_RPA: Floats) -> int:
        """See `Policy`."""
        return _softmax(self._z_RNA, problems_RP, out_RPA)

    def update(self, problems_RP: Ints, step: float, gradient_RPA: Floats) -> Floats:
        """See `Policy`."""
        norm_RP = np.empty(problems_RP.shape)
        _move(self._z_RNA, problems_RP, step, gradient_RPA, norm_RP)
        return norm_RP


class Attractor:
    """Two shared directions: one lifts all correct answers, one all attractors."""

    def __init__(self, config: SimConfig, population: Population) -> None:
        """Start at the population's probabilities, with both directions at 0."""
        self._z_RNA = np.log(population.p0_RNA)
        self._place_RN2 = np.stack([population.truth_RN, population.attractor_RN], axis=-1)
        self._load_RN2 = _loadings(config)
        self._kappa_2 = np.array([config.kappa_corr, config.kappa_att])
        self._neg_transfer = float(config.neg_transfer)
        self.theta_R2 = np.zeros((config.replicates, 2))
        """theta_C and theta_A of every replicate."""

    def probabilities(self, problems_RP: Ints, out_RPA: Floats) -> int:
        """See `Policy`."""
        return _softmax_shared(
            self._z_RNA, self._place_RN2, self._load_RN2, self.theta_R2, problems_RP, out_RPA
        )

    def update(self, problems_RP: Ints, step: float, gradient_RPA: Floats) -> Floats:
        """See `Policy`."""
        norm_RP = np.empty(problems_RP.shape)
        _move_shared(
            self._z_RNA,
            self._place_RN2,
            self._load_RN2,
            self.theta_R2,
            self._kappa_2,
            self._neg_transfer,
            problems_RP,
            step,
            gradient_RPA,
            norm_RP,
        )
        return norm_RP


POLICIES: dict[str, type[Independent] | type[Attractor]] = {
    "independent": Independent,
    "attractor": Attractor,
}


def make_policy(config: SimConfig, population: Population) -> Policy:
    """The policy that the settings name."""
    return POLICIES[config.policy](config, population)


def _loadings(config: SimConfig) -> Floats:
    """(R, N, 2) loadings psi and phi; they belong to the problems, as the population does."""
    numbers = [config.first_replicate + r for r in range(config.replicates)]
    if config.fixed_population:
        numbers = [0] * config.replicates
    shape = (config.n_problems, 2)
    draws = [generator(config.seed, r, "loadings").normal(size=shape) for r in numbers]
    return 1 + config.load_sd * np.stack(draws)


@njit(inline="always")
def _normalise(z_A: Floats, out_A: Floats) -> bool:
    """Softmax in place of `out_A`; False where a logit is not finite."""
    top = -np.inf
    for a in range(z_A.shape[0]):
        if not np.isfinite(z_A[a]):
            return False
        top = max(top, z_A[a])
    total = 0.0
    for a in range(z_A.shape[0]):
        out_A[a] = np.exp(z_A[a] - top)
        total += out_A[a]
    for a in range(z_A.shape[0]):
        out_A[a] /= total
    return True


@njit(cache=True)
def _softmax(z_RNA: Floats, problems_RP: Ints, out_RPA: Floats) -> int:
    R, P = problems_RP.shape
    bad = -1
    for r in range(R):
        for p in range(P):
            if not _normalise(z_RNA[r, problems_RP[r, p]], out_RPA[r, p]) and bad < 0:
                bad = r * P + p
    return bad


@njit(cache=True)
def _softmax_shared(
    z_RNA: Floats,
    place_RN2: Ints,
    load_RN2: Floats,
    theta_R2: Floats,
    problems_RP: Ints,
    out_RPA: Floats,
) -> int:
    R, P = problems_RP.shape
    z_A = np.empty(z_RNA.shape[2])
    bad = -1
    for r in range(R):
        for p in range(P):
            n = problems_RP[r, p]
            z_A[:] = z_RNA[r, n]
            for s in range(2):
                z_A[place_RN2[r, n, s]] += load_RN2[r, n, s] * theta_R2[r, s]
            if not _normalise(z_A, out_RPA[r, p]) and bad < 0:
                bad = r * P + p
    return bad


@njit(cache=True)
def _move(
    z_RNA: Floats, problems_RP: Ints, step: float, gradient_RPA: Floats, norm_RP: Floats
) -> None:
    R, P, A = gradient_RPA.shape
    for r in range(R):
        for p in range(P):
            n = problems_RP[r, p]
            square = 0.0
            for a in range(A):
                change = step * gradient_RPA[r, p, a]
                z_RNA[r, n, a] += change
                square += change * change
            norm_RP[r, p] = np.sqrt(square)


@njit(cache=True)
def _move_shared(
    z_RNA: Floats,
    place_RN2: Ints,
    load_RN2: Floats,
    theta_R2: Floats,
    kappa_2: Floats,
    neg_transfer: float,
    problems_RP: Ints,
    step: float,
    gradient_RPA: Floats,
    norm_RP: Floats,
) -> None:
    R, P, A = gradient_RPA.shape
    for r in range(R):
        for p in range(P):
            n = problems_RP[r, p]
            square = 0.0
            for a in range(A):
                change = step * gradient_RPA[r, p, a]
                z_RNA[r, n, a] += change
                square += change * change
            for s in range(2):
                pull = gradient_RPA[r, p, place_RN2[r, n, s]]
                if pull < 0:
                    pull *= neg_transfer
                change = step * kappa_2[s] * load_RN2[r, n, s] * pull
                theta_R2[r, s] += change
                square += change * change
            norm_RP[r, p] = np.sqrt(square)
