"""The policy `measured`: the start model linearised over its token tree, trained as a real one.

docs/method.md, section 15, has its law. X_e, in which gradients turn, is a random sum of measured
gradients, not white noise: real gradients change within the directions in which those of all edges
differ. Only a file with all d weights is used whole by every replicate.

With parts switched off, every problem of a replicate reads weights of its own. AdamW's change of
the weights is a sum over the gradients of all visited problems, each divided by the common root
mean square. So the change that problem i causes can be separated: with `others` switched off
problem i reads the part that its own gradients caused, with `own` switched off the part that all
other gradients caused. Both parts keep the common mean square, so an update is of the size that it
has in the whole model. Weight decay and, with curvature, the distance from the start are those of
the weights that a problem reads.
"""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numba import njit

from guard_core import Votes
from sim.settings.config import SimConfig
from sim.world import training, tree
from sim.world.observe import with_unparseable
from sim.world.policies import Policy, Update, sample_votes
from sim.world.populations import P_MIN
from sim.world.sampling import Floats, Ints, generator
from sim.world.training import Adam, TrainedBatch, add_gradients
from sim.world.tree import TokenTree, Weights, on_all_weights

MOST_UNSEEN, MOST_GROWTH = 0.15, 1.0
"""Beyond one of these a run is outside of the linear range."""


class Apart(NamedTuple):
    """The weights that each of N problems reads."""

    reads_own: bool
    """A problem reads its own updates, else those of all others."""
    start: Weights
    """Before training, but for the common mean square."""
    linear: Weights
    """The same without curvature, whose directions are computed when they are read: all problems
    move at every step."""
    w_ND: Floats
    first_ND: Floats
    """Adam's mean gradients."""
    travelled_ND: Floats
    """Integral of `turning` d(scale w)."""

    @classmethod
    def of(cls, start: Weights, n_problems: int, reads_own: bool) -> Apart:
        """Return weights that are alike for all problems."""
        linear = start._replace(basis=start.basis[:0], u=np.zeros(0))
        return cls(reads_own, start, linear, *np.zeros((3, n_problems, len(start.w))))

    def read_by(self, problem: int) -> Weights:
        """Return the weights that a problem reads."""
        start, w_D = self.start, self.w_ND[problem]
        moved_D, u_K = on_all_weights(start, w_D), start.basis @ self.travelled_ND[problem]
        return start._replace(w=w_D, moved=moved_D, u=u_K, first_moment=self.first_ND[problem])

    def train(
        self,
        trees: TokenTree,
        adam: Adam,
        taken: int,
        batch: TrainedBatch,
        key: np.uint64,
        norm_P: Floats,
    ) -> int:
        """Take one optimizer step per problem of a batch; as `training.train_batch`."""
        drawn = []
        for p, n in enumerate(batch.problems_P):
            one = training.rows_of(batch, p, p + 1)
            edges, leaves = tree.largest(trees, one.problems_P)
            before_1E, leaves_1L = np.empty((1, edges)), np.empty((1, leaves), np.int64)
            tokens_1 = training.draw_batch(trees, self.read_by(n), one, key, before_1E, leaves_1L)
            drawn.append((one, before_1E, leaves_1L, tokens_1[0]))
        gradient_D = np.empty(self.w_ND.shape[1])
        for p, (one, before_1E, leaves_1L, tokens) in enumerate(drawn):
            n, norm_P[p] = batch.problems_P[p], 0.0
            at = self.read_by(n)
            if not add_gradients(trees, at, adam.kl_coef, one, before_1E, leaves_1L, gradient_D):
                norm_P[p] = np.nan
                return taken
            if tokens:
                gradient_D /= tokens
                taken += 1
                norm_P[p] = move_all(self, gradient_D, n, batch.rates_P[p], adam, taken)
        return taken


@njit(cache=True, nogil=True)
def move_all(
    apart: Apart, gradient_D: Floats, problem: int, rate: float, adam: Adam, t: int
) -> float:
    """Move what every problem reads by the gradient of one visited problem, clipped in place.

    `t` counts the steps with this one. Returns the norm of the change that the visited problem
    reads.
    """
    start, w_ND, travelled_ND = apart.linear, apart.w_ND, apart.travelled_ND
    training.take_in(start, gradient_D, adam)
    none_D, norm = np.zeros_like(gradient_D), 0.0
    for n in range(w_ND.shape[0]):
        before_D = w_ND[n].copy()
        read_n = (w_ND[n], on_all_weights(start, w_ND[n]), start.u, apart.first_ND[n])
        at = Weights(*start[:9], *read_n, *start[13:])
        turned = tree.turning(at)
        felt_D = gradient_D if (n == problem) == apart.reads_own else none_D
        change = training.move(at, felt_D, rate, adam, t)
        if n == problem:
            norm = change
        for i in range(before_D.shape[0]):
            travelled_ND[n, i] += turned * start.scale[i] * (w_ND[n, i] - before_D[i])
    return norm


class Trust(NamedTuple):
    """Distance of a run from the measured model, means over the replicates."""

    unseen: float
    """Probability of responses that the start model never gave."""
    growth: float | None
    """g |theta - theta_0|, relative squared change of the gradients; None if g is not measured."""

    def line(self) -> str:
        """The line of a run's summary."""
        growth = "not measured" if self.growth is None else f"{self.growth:.2f}"
        text = f"measured policy: mass on unseen responses {self.unseen:.3f}, growth {growth}"
        if self.unseen <= MOST_UNSEEN and (self.growth or 0.0) <= MOST_GROWTH:
            return text
        return (
            f"{text}; outside of the linear range ({MOST_UNSEEN:g}, {MOST_GROWTH:g}): compare "
            "with --growth 0 for the interval"
        )


class Measured(Policy):
    """The token trees of all problems under the weights of R replicates."""

    def __init__(self, config: SimConfig) -> None:
        assert config.response is not None  # SimConfig asks for it
        response = tree.read_measured(config.response, config.n_problems, config.n_answers)
        self._config, self._tree, self._rates = config, tree.tree_of(response), config.rates()
        if "leak" in config.parts_off:
            self._tree = tree.without_unseen(self._tree)
        self._growth = config.growth if response.facts.growth is None else response.facts.growth
        growth = self._growth if config.growth is None else config.growth
        features = np.ascontiguousarray(response.features, np.float32)
        stored = {"averages": config.ema_decay > 0, "rounded": config.dtype == "bfloat16"}
        rngs = [generator(config.seed, number, "weights") for number in config.replicate_numbers]
        self._weights = [
            tree.draw_weights(response, features, growth or 0.0, rng, **stored) for rng in rngs
        ]
        self._apart_R: list[Apart] = []
        if {"own", "others"} & set(config.parts_off):
            n, reads_own = config.n_problems, "own" not in config.parts_off
            self._apart_R = [Apart.of(start, n, reads_own) for start in self._weights]
        self._taken_R = [0] * config.replicates
        max_norm = training.MAX_GRAD_NORM if config.max_grad_norm is None else config.max_grad_norm
        self._adam = Adam(max_norm, config.mini_batch, config.kl_coef, config.ema_decay)

    def evaluated(self) -> Measured:
        """Return the policy that evaluations use: at the average of the weights, if one is kept."""
        if not self._config.ema_decay:
            return self
        at_mean = copy(self)
        at_mean._weights = [weights.averaged() for weights in self._weights]
        return at_mean

    def probabilities(self, problems_RP: Ints, out_RPA: Floats) -> int:
        """As `Policy.probabilities`; rows sum to 1 less the chance of no readable answer."""
        out_PB = np.empty((problems_RP.shape[1], out_RPA.shape[-1] + 1))
        for r in range(len(out_RPA)):
            self._write(r, problems_RP[r], out_PB)
            out_RPA[r] = out_PB[:, :-1]
        bad = np.flatnonzero(np.isnan(out_RPA[..., 0]))
        return int(bad[0]) if len(bad) else -1

    def draw(self, epoch: int, problems_RP: Ints, p_RPA: Floats) -> tuple[Votes, Floats]:
        """As `Policy.draw`."""
        # Unparseable is drawn as the last answer, which takes what the others leave.
        p_RPB = np.pad(p_RPA, ((0, 0), (0, 0), (0, 1)))
        votes = sample_votes(self._config, epoch, problems_RP, p_RPB, 1.0)
        parts = (votes.counts, votes.samples)
        counts_RPA, samples_RPA = (np.ascontiguousarray(part[..., :-1]) for part in parts)
        votes = replace(votes, counts=counts_RPA, samples=samples_RPA)
        p_RPA = np.maximum(p_RPA, P_MIN)
        return votes, p_RPA / p_RPA.sum(axis=-1, keepdims=True)

    def train(
        self, place: tuple[int, int], scale_R: Floats, problems_RP: Ints, votes: Votes, by: Update
    ) -> Floats:
        """As `Policy.train`; the norm is that of the weights' change."""
        assert by.streams_RSPB is not None  # every learner gives them to this policy
        c, (epoch, number), norm_RP = self._config, place, np.zeros(problems_RP.shape)
        rate_P = np.array(self._rates[number])[np.arange(norm_RP.shape[1]) // c.mini_batch]
        rates_RP = scale_R[:, None] * rate_P
        samples_RPB = with_unparseable(votes.samples, votes.n_samples)
        visits = (problems_RP, rates_RP, samples_RPB, by.streams_RSPB, by.drop_RP)
        for r, weights in enumerate(self._weights):
            key = np.uint64(training.leaf_key(c.seed, c.first_replicate + r, epoch))
            batch = TrainedBatch(*(part[r] for part in visits))
            given = (self._adam, self._taken_R[r], batch, key, norm_RP[r])
            if self._apart_R:
                self._taken_R[r] = self._apart_R[r].train(self._tree, *given)
            else:
                self._taken_R[r] = training.train_batch(self._tree, weights, *given)
        return norm_RP

    def notes(self) -> dict[str, Any]:
        """As `Policy.notes`: how far the run has left the measured model."""
        problems_N = np.arange(self._config.n_problems)
        out_NB = np.empty((len(problems_N), self._config.n_answers + 1))
        unseen = [self._write(r, problems_N, out_NB).mean() for r in range(len(self._weights))]
        apart = [part.read_by(n) for part in self._apart_R for n in range(len(problems_N))]
        far = np.mean([tree.distance(at) for at in apart or self._weights])
        growth = None if self._growth is None else float(self._growth * far)
        return {"trust": Trust(float(np.mean(unseen)), growth)._asdict()}

    def _write(self, replicate: int, problems_P: Ints, out_PB: Floats) -> Floats:
        unseen_P = np.empty(len(problems_P))
        if not self._apart_R:
            tree.batch_probs(self._tree, self._weights[replicate], problems_P, out_PB, unseen_P)
            return unseen_P
        for p, n in enumerate(problems_P):
            at, one = self._apart_R[replicate].read_by(int(n)), slice(p, p + 1)
            tree.batch_probs(self._tree, at, problems_P[one], out_PB[one], unseen_P[one])
        return unseen_P
