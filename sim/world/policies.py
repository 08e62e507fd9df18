"""Answer policies: the logits of every problem, and the effect of an update on one problem.

Softmax over the A answers of each problem, starting at the population's log p0. A policy has two
methods, each one compiled call per batch: the answer probabilities of given problems, and an update
along given logit gradients (those of `sim.engine.kernel`, turned into steps by
`sim.world.optimizer`).

independent  every problem has its own logits: the null model
attractor    own logits, and one shared direction each for correct answers and for attractors
features     no own logits: all are linear in a few shared parameters with random features

The norm of an update is that of the change it makes to the policy's parameters. In a mini-batch of
several problems every one of them is given the norm of the whole step.

Two shared directions: one lifts all correct answers, one all attractors.

    z_ia = log p0_ia + u_ia + [a = c] * psi_i * theta_C + [a = b] * phi_i * theta_A

c is the correct answer and b the attractor of problem i. An update with gradient g_i moves

    u_ia    along g_ia,                   rate step
    theta_C along psi_i * t(g_ic),        rate step * kappa_corr
    theta_A along phi_i * t(g_ib),        rate step * kappa_att
    t(g) = g where g > 0 (a reward), neg_transfer * g where g < 0 (a penalty)

psi_i ~ Normal(1, corr_load_sd) and phi_i ~ Normal(1, load_sd) are drawn once per problem. With
neg_transfer = 1 this is gradient ascent in (u, theta_C, theta_A), and kappa * phi_i * phi_j is how
far problem i moves problem j. Problems are Learned where psi_i is large and theta_C grows: with a
spread corr_load_sd of 2 to 4 and kappa_corr of .03 to .06, never with the default numbers.

Random features: problems share parameters and interfere, with no direction that was designed.

    z_ia = log p0_ia + sum_d Phi_iad * theta_d,    Phi_iad ~ Normal(0, 1 / D), drawn once

theta (D = feature_dim parameters) is all that is trained, along sum_a Phi_iad * g_ia. A gradient on
answer a of problem i moves its own logit by about step * g and every other logit of every problem
by step * g * Phi_ia . Phi_jb, of mean 0 and standard deviation 1 / sqrt(D): the smaller D, the more
problems interfere. The features do not distinguish correct answers from wrong ones.

What makes a problem Learned (below .15 at first, right at the end)? Measured under plain TTRL, 20
to 60 replicates, percent of the problems:

* attractor with its default numbers: never. The correct answer of such a problem loses its votes.
* independent: never at the default spread of the wrong answers.
* attractor with correct answers that gain very unevenly from each other: 1.6 for llama-aime24 at
  corr_load_sd = 4, kappa_corr = .06, kappa_att = .22, step = .1; 0.06 for llama-math500 at
  corr_load_sd = 2, kappa_corr = .056, kappa_att = .555. The price is more problems that stay right.
* features: without being designed to, interference lifts as well as it drowns. 1.2 for llama-amc
  (feature_dim = 30, step = .75), 2.8 for llama-aime24 (15, .26), 1.0 for llama-math500 (8, .58).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Protocol

import numpy as np
from numba import njit
from numpy.typing import NDArray

from sim.settings.config import SimConfig
from sim.world.optimizer import (
    Moments,
    Optimizer,
    begin_step,
    make_optimizer,
    mean_and_clip,
    moments,
    own_square,
    step_row,
)
from sim.world.populations import Population
from sim.world.random import generator
from sim.world.sampling import softmax_rows

Bools = NDArray[np.bool_]
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

    def update(
        self,
        problems_RP: Ints,
        step: float,
        gradient_RPA: Floats,
        drop_RP: Bools | None = None,
    ) -> Floats:
        """Take the optimizer steps of one batch, see `sim.world.optimizer`.

        Args:
            step: step size of the schedule.
            gradient_RPA: weighted gradient of every problem, 0 where it was dropped.
            drop_RP: problems that left the batch, none if left out. It matters beyond the zero
                gradient for mini-batches of several problems and for Adam.

        Returns:
            (R, P) norm of the parameter change of the optimizer step that the problem was
            scheduled for, 0 where that step was left out.
        """
        ...


def replicate_numbers(config: SimConfig) -> list[int]:
    """Number of the replicate whose draws each replicate uses for its problems."""
    if config.fixed_population:
        return [0] * config.replicates
    return [config.first_replicate + r for r in range(config.replicates)]


class OptimizedPolicy(ABC):
    """A policy whose parameters are moved by `sim.world.optimizer`."""

    def __init__(self, config: SimConfig, p0_RNA: Floats) -> None:
        """Start at the given probabilities."""
        self._z_RNA = np.log(p0_RNA)
        self._optimizer = make_optimizer(config)

    def probabilities(self, problems_RP: Ints, out_RPA: Floats) -> int:
        """Implement `Policy.probabilities`."""
        self._write_logits(problems_RP, out_RPA)
        return softmax_rows(out_RPA)

    def update(
        self, problems_RP: Ints, step: float, gradient_RPA: Floats, drop_RP: Bools | None = None
    ) -> Floats:
        """Implement `Policy.update`."""
        norm_RP = np.empty(problems_RP.shape)
        if drop_RP is None:
            drop_RP = np.zeros(problems_RP.shape, np.bool_)
        self._take_steps(problems_RP, step, gradient_RPA, drop_RP, norm_RP)
        return norm_RP

    @abstractmethod
    def _write_logits(self, problems_RP: Ints, out_RPA: Floats) -> None:
        """Write the logits of the given problems."""

    @abstractmethod
    def _take_steps(
        self, problems_RP: Ints, step: float, gradient_RPA: Floats, drop_RP: Bools, norm_RP: Floats
    ) -> None:
        """Take the optimizer steps of one batch and write their norms."""


Places = NDArray[np.int16]


class Attractor(OptimizedPolicy):
    """The mechanism that is meant to explain the paper's rows."""

    def __init__(
        self, config: SimConfig, population: Population, load_RN2: Floats | None = None
    ) -> None:
        """Start at the population's probabilities, with both directions at 0.

        Args:
            population: its problems.
            load_RN2: loadings psi and phi; drawn by `loadings` if left out.
        """
        super().__init__(config, population.p0_RNA)
        places = [population.truth_RN, population.attractor_RN]
        # Small, since memory is what a visit waits for.
        self._place_RN2 = np.stack(places, axis=-1).astype(np.int16)
        self._load_RN2 = loadings(config) if load_RN2 is None else load_RN2
        self._kappa_2 = np.array([config.kappa_corr, config.kappa_att], np.float64)
        self._neg_transfer = float(config.neg_transfer)
        self.theta_R2 = np.zeros((config.replicates, 2))
        """theta_C and theta_A of every replicate."""
        self._own = moments(self._optimizer, *self._z_RNA.shape)
        self._shared = moments(self._optimizer, config.replicates, 2, 1)

    def _write_logits(self, problems_RP: Ints, out_RPA: Floats) -> None:
        _logits(self._z_RNA, self._place_RN2, self._load_RN2, self.theta_R2, problems_RP, out_RPA)

    def _take_steps(
        self, problems_RP: Ints, step: float, gradient_RPA: Floats, drop_RP: Bools, norm_RP: Floats
    ) -> None:
        model = (
            self._z_RNA,
            self._place_RN2,
            self._load_RN2,
            self.theta_R2,
            self._kappa_2,
            self._neg_transfer,
        )
        if self._optimizer.is_plain:
            _update_plain(*model, problems_RP, step, gradient_RPA, norm_RP)
            return
        optimizer = (self._optimizer, self._own, self._shared)
        _update(*model, *optimizer, problems_RP, step, gradient_RPA, drop_RP, norm_RP)


class Independent(Attractor):
    """Every problem has its own logits: the null model, without loadings on any direction."""

    def __init__(self, config: SimConfig, population: Population) -> None:
        """Start at the population's probabilities."""
        super().__init__(config, population, np.zeros((*population.truth_RN.shape, 2)))


def loadings(config: SimConfig) -> Floats:
    """(R, N, 2) loadings psi and phi; they belong to the problems, as the population does."""
    shape = (config.n_problems, 2)
    numbers = replicate_numbers(config)
    draws = [generator(config.seed, r, "loadings").normal(size=shape) for r in numbers]
    spread = config.load_sd if config.corr_load_sd is None else config.corr_load_sd
    return 1 + np.array([spread, config.load_sd]) * np.stack(draws)


@njit(cache=True, nogil=True)
def _logits(
    z_RNA: Floats,
    place_RN2: Places,
    load_RN2: Floats,
    theta_R2: Floats,
    problems_RP: Ints,
    out_RPA: Floats,
) -> None:
    R, P, A = out_RPA.shape
    for r in range(R):
        for p in range(P):
            n = problems_RP[r, p]
            for a in range(A):
                out_RPA[r, p, a] = z_RNA[r, n, a]
            for s in range(2):
                out_RPA[r, p, place_RN2[r, n, s]] += load_RN2[r, n, s] * theta_R2[r, s]


@njit(cache=True, nogil=True)
def _update_plain(
    z_RNA: Floats,
    place_RN2: Places,
    load_RN2: Floats,
    theta_R2: Floats,
    kappa_2: Floats,
    neg_transfer: float,
    problems_RP: Ints,
    step: float,
    gradient_RPA: Floats,
    norm_RP: Floats,
) -> None:
    """One problem per plain gradient step, what all default runs do; apart for its speed."""
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


@njit(cache=True, nogil=True)
def _update(
    z_RNA: Floats,
    place_RN2: Places,
    load_RN2: Floats,
    theta_R2: Floats,
    kappa_2: Floats,
    neg_transfer: float,
    optimizer: Optimizer,
    own: Moments,
    shared: Moments,
    problems_RP: Ints,
    step: float,
    gradient_RPA: Floats,
    drop_RP: Bools,
    norm_RP: Floats,
) -> None:
    R, P, _ = gradient_RPA.shape
    pull_2 = np.empty(2)
    for r in range(R):
        for first in range(0, P, optimizer.mini_batch):
            last, kept = begin_step(optimizer, first, drop_RP[r], norm_RP[r])
            if kept == 0:
                continue
            pull_2[:] = 0.0
            for p in range(first, last):
                if not drop_RP[r, p]:
                    n = problems_RP[r, p]
                    for s in range(2):
                        pull = gradient_RPA[r, p, place_RN2[r, n, s]]
                        if pull < 0:
                            pull *= neg_transfer
                        pull_2[s] += load_RN2[r, n, s] * pull
            whole = own_square(gradient_RPA[r], drop_RP[r], first, last)
            whole += pull_2[0] * pull_2[0] + pull_2[1] * pull_2[1]
            scale = mean_and_clip(optimizer, whole, kept)
            square = 0.0
            for p in range(first, last):
                if not drop_RP[r, p]:
                    n = problems_RP[r, p]
                    square += step_row(
                        z_RNA[r, n], gradient_RPA[r, p], scale, step, optimizer, own, r, n
                    )
            for s in range(2):
                square += step_row(
                    theta_R2[r, s : s + 1],
                    pull_2[s : s + 1],
                    scale,
                    step * kappa_2[s],
                    optimizer,
                    shared,
                    r,
                    s,
                )
            norm_RP[r, first:last] = np.sqrt(square)


Features_RNDA = NDArray[np.float32]
"""Single precision: at D = 300 the features are all of the memory, R * N * D * A * 4 bytes."""


class Features(OptimizedPolicy):
    """Logits linear in few parameters that all problems share."""

    def __init__(self, config: SimConfig, population: Population) -> None:
        """Start at the population's probabilities, with all parameters at 0."""
        super().__init__(config, population.p0_RNA)
        self._phi_RNDA = features(config)
        self.theta_RD = np.zeros((config.replicates, config.feature_dim))
        """The parameters of every replicate."""
        self._moments = moments(self._optimizer, config.replicates, 1, config.feature_dim)

    def _write_logits(self, problems_RP: Ints, out_RPA: Floats) -> None:
        _logits_features(self._z_RNA, self._phi_RNDA, self.theta_RD, problems_RP, out_RPA)

    def _take_steps(
        self, problems_RP: Ints, step: float, gradient_RPA: Floats, drop_RP: Bools, norm_RP: Floats
    ) -> None:
        model = (self._phi_RNDA, self.theta_RD, self._optimizer, self._moments)
        _update_features(*model, problems_RP, step, gradient_RPA, drop_RP, norm_RP)


def features(config: SimConfig) -> Features_RNDA:
    """(R, N, D, A) features, or (1, N, D, A) where all replicates have the same problems."""
    numbers = [0] if config.fixed_population else replicate_numbers(config)
    shape = (config.n_problems, config.feature_dim, config.n_answers)
    phi_RNDA = np.empty((len(numbers), *shape), np.float32)
    for r, number in enumerate(numbers):
        rng = generator(config.seed, number, "loadings")
        rng.standard_normal(dtype=np.float32, out=phi_RNDA[r])
    phi_RNDA /= np.float32(np.sqrt(config.feature_dim))
    return phi_RNDA


@njit(cache=True, nogil=True)
def _logits_features(
    z_RNA: Floats,
    phi_RNDA: Features_RNDA,
    theta_RD: Floats,
    problems_RP: Ints,
    out_RPA: Floats,
) -> None:
    R, P, A = out_RPA.shape
    z_A = np.empty(A)
    for r in range(R):
        f = min(r, phi_RNDA.shape[0] - 1)
        for p in range(P):
            n = problems_RP[r, p]
            z_A[:] = z_RNA[r, n]
            # Answers innermost: a sum per answer that the compiler may run side by side.
            for d in range(theta_RD.shape[1]):
                for a in range(A):
                    z_A[a] += phi_RNDA[f, n, d, a] * theta_RD[r, d]
            out_RPA[r, p] = z_A


@njit(cache=True, nogil=True)
def _update_features(
    phi_RNDA: Features_RNDA,
    theta_RD: Floats,
    optimizer: Optimizer,
    moments: Moments,
    problems_RP: Ints,
    step: float,
    gradient_RPA: Floats,
    drop_RP: Bools,
    norm_RP: Floats,
) -> None:
    R, P, A = gradient_RPA.shape
    D = theta_RD.shape[1]
    pull_D = np.empty(D)
    for r in range(R):
        f = min(r, phi_RNDA.shape[0] - 1)
        for first in range(0, P, optimizer.mini_batch):
            last, kept = begin_step(optimizer, first, drop_RP[r], norm_RP[r])
            if kept == 0:
                continue
            pull_D[:] = 0.0
            for p in range(first, last):
                if not drop_RP[r, p]:
                    n = problems_RP[r, p]
                    for d in range(D):
                        pull = 0.0
                        for a in range(A):
                            pull += phi_RNDA[f, n, d, a] * gradient_RPA[r, p, a]
                        pull_D[d] += pull
            whole = 0.0
            for d in range(D):
                whole += pull_D[d] * pull_D[d]
            scale = mean_and_clip(optimizer, whole, kept)
            square = step_row(theta_RD[r], pull_D, scale, step, optimizer, moments, r, 0)
            norm_RP[r, first:last] = np.sqrt(square)


__all__ = [
    "POLICIES",
    "Attractor",
    "Features",
    "Independent",
    "Policy",
    "make_policy",
]

POLICIES: dict[str, Callable[[SimConfig, Population], Policy]] = {
    "independent": Independent,
    "attractor": Attractor,
    "features": Features,
}


def make_policy(config: SimConfig, population: Population) -> Policy:
    """Return the policy that the settings name."""
    return POLICIES[config.policy](config, population)
