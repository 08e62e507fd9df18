"""Random features: problems share parameters and interfere, with no direction that was designed.

    z_ia = log p0_ia + sum_d Phi_iad * theta_d,    Phi_iad ~ Normal(0, 1 / D), drawn once

theta (D = feature_dim parameters) is all that is trained, along sum_a Phi_iad * g_ia. A gradient on
answer a of problem i moves its own logit by about step * g and every other logit of every problem
by step * g * Phi_ia . Phi_jb, of mean 0 and standard deviation 1 / sqrt(D): the smaller D, the more
problems interfere. The features do not distinguish correct answers from wrong ones.
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
    step_row,
)
from sim.world.policies.base import Bools, Floats, Ints, OptimizedPolicy, replicate_numbers
from sim.world.populations import Population
from sim.world.random import generator

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
        _logits(self._z_RNA, self._phi_RNDA, self.theta_RD, problems_RP, out_RPA)

    def _take_steps(
        self, problems_RP: Ints, step: float, gradient_RPA: Floats, drop_RP: Bools, norm_RP: Floats
    ) -> None:
        model = (self._phi_RNDA, self.theta_RD, self._optimizer, self._moments)
        _update(*model, problems_RP, step, gradient_RPA, drop_RP, norm_RP)


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
def _logits(
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
def _update(
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
