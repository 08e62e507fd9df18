"""Answer policies: the logits of every problem, and the effect of an update on one problem.

Softmax over the A answers of each problem, starting at the population's log p0 (docs/method.md,
section 14). A policy gives the answer probabilities of given problems, and makes an update along
given logit gradients (those of `sim.engine.kernel`).

`attractor`: one shared direction lifts all correct answers, one all attractors.

    z_ia = log p0_ia + u_ia + [a = c] * psi_i * theta_C + [a = b] * phi_i * theta_A

c is the correct answer and b the attractor of problem i. An update with gradient g_i moves

    u_ia    along g_ia,                   rate step
    theta_C along psi_i * t(g_ic),        rate step * kappa_corr
    theta_A along phi_i * t(g_ib),        rate step * kappa_att
    t(g) = g where g > 0 (a reward), neg_transfer * g where g < 0 (a penalty)

psi_i ~ Normal(1, corr_load_sd) and phi_i ~ Normal(1, load_sd) are drawn once per problem. With
neg_transfer = 1 this is gradient ascent in (u, theta_C, theta_A).

`features`: problems share parameters and interfere, with no direction that was designed.

    z_ia = log p0_ia + sum_d Phi_iad * theta_d,    Phi_iad ~ Normal(0, 1 / D), drawn once

theta (D = feature_dim parameters) is all that is trained, along sum_a Phi_iad * g_ia. A gradient on
answer a of problem i moves its own logit by about step * g and every other logit of every problem
by step * g * Phi_ia . Phi_jb, of mean 0 and standard deviation 1 / sqrt(D).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from guard_core import Votes
from sim.settings.config import SimConfig
from sim.world import sampling
from sim.world.optimizer import make_optimizer, start_rows, take_steps
from sim.world.populations import drawn_numbers
from sim.world.sampling import Bools, Floats, Ints, Population, draw_votes, generator, softmax_rows


def sample_votes(
    config: SimConfig, epoch: int, problems_RP: Ints, p_RPA: Floats, parseable: float
) -> Votes:
    """Return the votes of a batch; rows of `p_RPA` sum to 1, see `draw_votes`."""
    at = config.seed, config.first_replicate, sampling.VOTES, epoch, problems_RP
    sizes = config.n_votes, config.n_samples
    return Votes(*draw_votes(*at, p_RPA, parseable, *sizes), *sizes)


class Directions(NamedTuple):
    """Own logits and two shared directions, as compiled code changes them in place."""

    z_RNA: Floats
    """Own logits."""
    place_RN2: NDArray[np.int16]
    """Answers that the directions move, the truth and the attractor; small, since memory is what a
    visit waits for."""
    load_RN2: Floats
    """Loadings psi and phi."""
    theta_R2: Floats
    """theta_C and theta_A of every replicate."""
    kappa_2: Floats
    """kappa_corr and kappa_att."""
    neg_transfer: float
    """Factor on penalties."""


class Update(NamedTuple):
    """Gradient that moves the policy."""

    gradient_RPA: Floats
    """Weighted gradient in the logits, 0 where the problem is dropped."""
    drop_RP: Bools
    streams_RSPB: Floats | None = None
    """(R, 2, P, A + 1) weighted advantages per answer of the majority and the minority stream, the
    last place for unparseable responses; only for the policy `measured`."""


class Policy(ABC):
    """The simulated model of all problems."""

    plain: Directions | None = None
    """Parameters that compiled visits can train; None where an update needs more than those."""

    @abstractmethod
    def probabilities(self, problems_RP: Ints, out_RPA: Floats) -> int:
        """Write the answer probabilities of the given problems.

        Returns:
            -1, or the flat place r * P + p of the first problem with a logit that is not finite.
        """

    @abstractmethod
    def draw(self, epoch: int, problems_RP: Ints, p_RPA: Floats) -> tuple[Votes, Floats]:
        """Return votes drawn from `probabilities`, and the law of an answer that can be read."""

    @abstractmethod
    def train(
        self, place: tuple[int, int], scale_R: Floats, problems_RP: Ints, votes: Votes, by: Update
    ) -> Floats:
        """Take the optimizer steps of one batch.

        Args:
            place: the epoch, and the batch's number in the run, from 0.
            scale_R: factors on the learning rate.

        Returns:
            (R, P) norm of the parameter change of the optimizer step that the problem was
            scheduled for, 0 where that step was left out; not finite where a logit is not.
        """

    def evaluated(self) -> Policy:
        """Return the policy that evaluations use."""
        return self

    def notes(self) -> dict[str, Any]:
        """Return what a run's manifest says about the policy at the end."""
        return {}


class Logits(Policy):
    """What policies have in common whose update is a gradient in the logits."""

    def __init__(self, config: SimConfig) -> None:
        self._config, self._steps = config, config.steps()
        self.optimizer = make_optimizer(config)

    def draw(self, epoch: int, problems_RP: Ints, p_RPA: Floats) -> tuple[Votes, Floats]:
        """As `Policy.draw`."""
        parseable = 1.0 - self._config.unparseable
        return sample_votes(self._config, epoch, problems_RP, p_RPA, parseable), p_RPA

    def train(
        self, place: tuple[int, int], scale_R: Floats, problems_RP: Ints, votes: Votes, by: Update
    ) -> Floats:
        """As `Policy.train`; the brake belongs to the measured policy alone."""
        return self.update(problems_RP, self._steps[place[1]], by.gradient_RPA, by.drop_RP)

    @abstractmethod
    def update(
        self, problems_RP: Ints, step: float, gradient_RPA: Floats, drop_RP: Bools
    ) -> Floats:
        """Take the optimizer steps of one batch, see `Update`; returns as `Policy.train`."""


class Attractor(Logits):
    """The mechanism that is meant to explain the paper's rows, and the null model `independent`."""

    def __init__(self, config: SimConfig, population: Population) -> None:
        """Start at the population's probabilities, with both directions at 0."""
        super().__init__(config)
        self.parameters = Directions(
            np.log(population.p0_RNA),
            np.stack([population.truth_RN, population.attractor_RN], axis=-1).astype(np.int16),
            loadings(config),
            np.zeros((config.replicates, 2)),
            np.array([config.kappa_corr, config.kappa_att], np.float64),
            float(config.neg_transfer),
        )
        # One problem per plain gradient step: nothing but `step * gradient`.
        alters = self.optimizer.adam or self.optimizer.max_norm < np.inf
        self.plain = self.parameters if config.mini_batch == 1 and not alters else None
        self.local = start_rows(self.optimizer, self.parameters.z_RNA)
        self.shared = start_rows(self.optimizer, self.parameters.theta_R2[..., None])

    def probabilities(self, problems_RP: Ints, out_RPA: Floats) -> int:
        """As `Policy.probabilities`."""
        write_logits(self.parameters, problems_RP, out_RPA)
        return softmax_rows(out_RPA)

    def update(
        self, problems_RP: Ints, step: float, gradient_RPA: Floats, drop_RP: Bools
    ) -> Floats:
        """As `Logits.update`."""
        at = self.parameters
        if self.plain is not None:
            norm_RP = np.empty(problems_RP.shape)
            update_plain(at, problems_RP, step, gradient_RPA, norm_RP)
            return norm_RP
        pull_RP2 = np.empty((*problems_RP.shape, 2))
        _pull_directions(at, problems_RP, gradient_RPA, pull_RP2)
        rows = (self.local, self.shared, at.kappa_2)
        gradients = (gradient_RPA, pull_RP2[..., None])
        return take_steps(self.optimizer, step, *rows, problems_RP, *gradients, drop_RP)


def loadings(config: SimConfig) -> Floats:
    """(R, N, 2) loadings psi and phi; they belong to the problems, as the population does.

    All are 0 for `independent`, where every problem has nothing but its own logits.
    """
    shape, numbers = (config.n_problems, 2), drawn_numbers(config)
    if config.policy == "independent":
        return np.zeros((len(numbers), *shape))
    draws = [generator(config.seed, r, "loadings").normal(size=shape) for r in numbers]
    spread = config.load_sd if config.corr_load_sd is None else config.corr_load_sd
    return 1 + np.array([spread, config.load_sd]) * np.stack(draws)


@njit(cache=True, nogil=True)
def write_logits(policy: Directions, problems_RP: Ints, out_RPA: Floats) -> None:
    """Write the logits of the given problems."""
    z_RNA, place_RN2, load_RN2, theta_R2 = policy[:4]
    R, P, A = out_RPA.shape
    for r in range(R):
        for p in range(P):
            n = problems_RP[r, p]
            for a in range(A):
                out_RPA[r, p, a] = z_RNA[r, n, a]
            for s in range(2):
                out_RPA[r, p, place_RN2[r, n, s]] += load_RN2[r, n, s] * theta_R2[r, s]


@njit(cache=True, nogil=True)
def update_plain(
    policy: Directions, problems_RP: Ints, step: float, gradient_RPA: Floats, norm_RP: Floats
) -> None:
    """One problem per plain gradient step, what all default runs do; apart for its speed."""
    z_RNA, place_RN2, load_RN2, theta_R2, kappa_2, neg_transfer = policy
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
                pull = _passed_on(gradient_RPA[r, p, place_RN2[r, n, s]], neg_transfer)
                change = step * kappa_2[s] * load_RN2[r, n, s] * pull
                theta_R2[r, s] += change
                square += change * change
            norm_RP[r, p] = np.sqrt(square)


@njit(cache=True, nogil=True)
def _pull_directions(
    policy: Directions, problems_RP: Ints, gradient_RPA: Floats, out_RP2: Floats
) -> None:
    for r in range(out_RP2.shape[0]):
        for p in range(out_RP2.shape[1]):
            n = problems_RP[r, p]
            for s in range(2):
                pull = gradient_RPA[r, p, policy.place_RN2[r, n, s]]
                out_RP2[r, p, s] = policy.load_RN2[r, n, s] * _passed_on(pull, policy.neg_transfer)


@njit
def _passed_on(gradient: float, neg_transfer: float) -> float:
    """t(g) of the module's docstring."""
    return neg_transfer * gradient if gradient < 0 else gradient


Features_RNDA = NDArray[np.float32]
"""Single precision: at D = 300 the features are all of the memory, R * N * D * A * 4 bytes."""


class Features(Logits):
    """Logits linear in few parameters that all problems share."""

    def __init__(self, config: SimConfig, population: Population) -> None:
        super().__init__(config)
        self._z_RNA = np.log(population.p0_RNA)
        numbers = [*dict.fromkeys(drawn_numbers(config))]
        shape = (len(numbers), config.n_problems, config.feature_dim, config.n_answers)
        self.phi_RNDA: Features_RNDA = np.empty(shape, np.float32)
        """Features; (1, N, D, A) where all replicates have the same problems."""
        for number, phi_NDA in zip(numbers, self.phi_RNDA, strict=True):
            rng = generator(config.seed, number, "loadings")
            rng.standard_normal(dtype=np.float32, out=phi_NDA)
        self.phi_RNDA /= np.float32(np.sqrt(config.feature_dim))
        self.theta_RD = np.zeros((config.replicates, config.feature_dim))
        self._local = start_rows(self.optimizer, self._z_RNA[..., :0].copy())
        self._shared = start_rows(self.optimizer, self.theta_RD[:, None])

    def probabilities(self, problems_RP: Ints, out_RPA: Floats) -> int:
        """As `Policy.probabilities`."""
        _logits_features(self._z_RNA, self.phi_RNDA, self.theta_RD, problems_RP, out_RPA)
        return softmax_rows(out_RPA)

    def update(
        self, problems_RP: Ints, step: float, gradient_RPA: Floats, drop_RP: Bools
    ) -> Floats:
        """As `Logits.update`."""
        pull_RPD = np.empty((*problems_RP.shape, self.theta_RD.shape[1]))
        _pull_features(self.phi_RNDA, problems_RP, gradient_RPA, pull_RPD)
        rows = (self._local, self._shared, np.ones(1))
        gradients = (gradient_RPA[..., :0], pull_RPD[:, :, None])
        return take_steps(self.optimizer, step, *rows, problems_RP, *gradients, drop_RP)


@njit(cache=True, nogil=True)
def _logits_features(
    z_RNA: Floats, phi_RNDA: Features_RNDA, theta_RD: Floats, problems_RP: Ints, out_RPA: Floats
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
def _pull_features(
    phi_RNDA: Features_RNDA, problems_RP: Ints, gradient_RPA: Floats, out_RPD: Floats
) -> None:
    R, P, D = out_RPD.shape
    for r in range(R):
        f = min(r, phi_RNDA.shape[0] - 1)
        for p in range(P):
            n = problems_RP[r, p]
            for d in range(D):
                pull = 0.0
                for a in range(gradient_RPA.shape[2]):
                    pull += phi_RNDA[f, n, d, a] * gradient_RPA[r, p, a]
                out_RPD[r, p, d] = pull


POLICIES: dict[str, type[Attractor | Features]] = {
    "independent": Attractor,
    "attractor": Attractor,
    "features": Features,
}
