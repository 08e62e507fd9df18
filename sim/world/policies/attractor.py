"""Two shared directions: one lifts all correct answers, one all attractors.

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
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from sim.settings.config import SimConfig
from sim.world.optimizer import (
    Moments,
    Optimizer,
    begin_step,
    mean_and_clip,
    moments,
    own_square,
    step_row,
)
from sim.world.policies.base import Bools, Floats, Ints, OptimizedPolicy, replicate_numbers
from sim.world.populations import Population
from sim.world.random import generator

Places = NDArray[np.int16]


class Attractor(OptimizedPolicy):
    """The mechanism that is meant to explain the paper's rows."""

    def __init__(
        self, config: SimConfig, population: Population, load_RN2: Floats | None = None
    ) -> None:
        """Start at the population's probabilities, with both directions at 0.

        Args:
            config: of the run.
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
