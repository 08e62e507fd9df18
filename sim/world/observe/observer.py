"""All observations of a run, drawn on demand for one batch after the other, and their strengths.

One number, `SimConfig.signal` = s, sets all of them.

    confidence   right responses lead wrong ones by 2 s in units where the variance at even odds is
                 1 and s is the correlation with being right there: AUROC = Phi(s sqrt(2 / (1-s^2)))
                 to .003, the noise being nearly normal
    tool         confirms right responses with (1 + s) / 2, wrong ones with (1 - s) / 2
    verifier     the same
    rewording    a share s of its errors are others than the question's
    similarity   responses with one answer are more alike by an amount in proportion to s
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from guard_core import Votes
from guard_core.rules import Need, Observations, Rule, make_rule
from sim.settings.config import SimConfig
from sim.world.observe.observations import (
    CERTAINTY,
    ENTROPY,
    LOGPROB,
    Scale,
    Teacher,
    draw_confidence,
    draw_ordinary,
    draw_second,
    draw_verdicts,
    expand,
    similarities,
)
from sim.world.random import RULE, TOOL, VERDICT, fill_lanes, fold, stream


def only_read(config: SimConfig) -> SimConfig:
    """The settings with the default signal where no observation of the rule depends on it.

    Runs that cannot differ then have equal settings, by which a sweep knows them.
    """
    if make_rule(config.rule).needs - {Need.TEACHER}:
        return config
    return replace(config, signal=SimConfig.__dataclass_fields__["signal"].default)


Floats = NDArray[np.float64]


_SCALES = {Need.STEP_LOGPROB: LOGPROB, Need.ENTROPY: ENTROPY, Need.CERTAINTY: CERTAINTY}


@dataclass(frozen=True, slots=True)
class Visit:
    """One batch as the simulator knows it."""

    epoch: int
    """0 before training."""
    batch: int
    """Number over the whole run, from 1; 0 before training."""
    problems_RP: NDArray[np.int64]
    truth_RP: NDArray[np.int32]
    """Read by the observation models alone."""
    votes: Votes
    p_RPA: Floats
    """The probabilities that the votes were drawn from."""


class Observer:
    """Draws the observations of a rule; the numbers depend neither on the rule nor on the order."""

    def __init__(self, config: SimConfig, rule: Rule) -> None:
        """Start before visit 0."""
        self._config, self.rule = config, rule
        self.signal = config.signal
        self._teacher = Teacher(config) if Need.TEACHER in rule.needs else None

    @property
    def seeds(self) -> tuple[int, int]:
        """Seed of the run and number of its first replicate."""
        return self._config.seed, self._config.first_replicate

    def see(
        self,
        visit: Visit,
        prior_RPA: Floats | None = None,
        *,
        spared: frozenset[Need] = frozenset(),
        draws: bool = True,
    ) -> Observations:
        """Draw all observations that the rule needs, except verdicts, which need a label.

        Args:
            prior_RPA: the scores of earlier visits, see `guard_core.Guard.remembered`.
            spared: observations that are left out.
            draws: draw the rule's own random numbers; none are drawn at visit 0.
        """
        needs, shape = self.rule.needs - spared, visit.p_RPA.shape[:2]
        answers_RPV = self.answers(visit)
        observed: dict[str, Floats | NDArray[np.int32] | NDArray[np.bool_]] = {}
        for need, scale in _SCALES.items():
            if need in needs:
                observed[need] = self.confidence(visit, answers_RPV, scale)
        if Need.TOOL in needs:
            observed["tool"] = self.tool(visit, answers_RPV)
        if needs & {Need.PARAPHRASE, Need.TEACHER}:
            second_RPA, n_votes = self.second(visit), visit.votes.n_votes
            second_RPV = np.empty((*shape, n_votes), np.int32)
            expand(second_RPA, second_RPA, n_votes, second_RPV)
            observed["second"] = second_RPV
        if Need.SIMILARITY in needs and visit.epoch:
            answers_RPK = answers_RPV[..., : visit.votes.n_samples]
            observed["similarity"] = similarities(answers_RPK, self.ordinary(visit), self.signal)
        draws_RPD = self.draws(visit) if draws and visit.epoch else np.zeros((*shape, 0))
        return Observations(visit.votes, draws_RPD, answers_RPV, prior=prior_RPA, **observed)

    def answers(self, visit: Visit) -> NDArray[np.int32]:
        """(R, P, V) answers of all responses."""
        votes = visit.votes
        answers_RPV = np.empty((*visit.p_RPA.shape[:2], votes.n_votes), np.int32)
        expand(votes.counts, votes.samples, votes.n_samples, answers_RPV)
        return answers_RPV

    def confidence(self, visit: Visit, answers_RPV: NDArray[np.int32], scale: Scale) -> Floats:
        """(R, P, V) confidence of the responses, see `sim.world.observe.observations`."""
        out_RPV = np.empty(answers_RPV.shape)
        draw_confidence(*self._at(visit), answers_RPV, self.signal, scale, out_RPV)
        return out_RPV

    def tool(self, visit: Visit, answers_RPV: NDArray[np.int32]) -> NDArray[np.bool_]:
        """(R, P, V) whether a tool confirms each response."""
        return self._judged(TOOL, visit, answers_RPV) == 1

    def second(self, visit: Visit) -> NDArray[np.int64]:
        """(R, P, A) votes of the second set; once per visit, since a teacher follows along."""
        p_RPA, independence = visit.p_RPA, self.signal
        if self._teacher is not None:
            p_RPA = self._teacher.follow(visit.batch, visit.problems_RP, p_RPA)
            independence = 0.0
        c, counts_RPA = self._config, np.empty(p_RPA.shape, np.int64)
        draw_second(
            c.seed,
            c.first_replicate,
            visit.epoch,
            visit.problems_RP,
            visit.truth_RP,
            p_RPA,
            1.0 - c.unparseable,
            independence,
            visit.votes.n_votes,
            counts_RPA,
        )
        return counts_RPA

    def ordinary(self, visit: Visit) -> Floats:
        """(R, P, K) how ordinary each trained response is, see `sim.world.observe.observations`."""
        c = self._config
        u_RPK = np.empty((*visit.p_RPA.shape[:2], visit.votes.n_samples))
        draw_ordinary(c.seed, c.first_replicate, visit.epoch, visit.problems_RP, u_RPK)
        return u_RPK

    def verdicts(self, visit: Visit, answers_RPQ: NDArray[np.int64]) -> NDArray[np.int8]:
        """(R, P, Q) verdicts on responses with these answers, -2 where nothing is asked."""
        return self._judged(VERDICT, visit, answers_RPQ)

    def draws(self, visit: Visit) -> Floats:
        """(R, P, D) uniform numbers for the rule's own use."""
        c, votes = self._config, visit.votes
        n = self.rule.n_draws(votes.n_votes, votes.n_samples)
        draws_RPD = np.empty((*visit.p_RPA.shape[:2], n))
        _fill(c.seed, c.first_replicate, visit.epoch, visit.problems_RP, draws_RPD)
        return draws_RPD

    def _judged(self, purpose: int, visit: Visit, answers_RPQ: NDArray[Any]) -> NDArray[np.int8]:
        verdicts_RPQ = np.empty(answers_RPQ.shape, np.int8)
        rates = (1 + self.signal) / 2, (1 - self.signal) / 2
        draw_verdicts(purpose, *self._at(visit), answers_RPQ, *rates, verdicts_RPQ)
        return verdicts_RPQ

    def _at(self, visit: Visit) -> tuple[int, int, int, NDArray[np.int64], NDArray[np.int32]]:
        c = self._config
        return c.seed, c.first_replicate, visit.epoch, visit.problems_RP, visit.truth_RP


@njit(cache=True, nogil=True)
def _fill(
    seed: int, first: int, epoch: int, problems_RP: NDArray[np.int64], out_RPD: Floats
) -> None:
    R, P = out_RPD.shape[:2]
    for r in range(R):
        key = stream(seed, first + r, RULE, epoch)
        for p in range(P):
            fill_lanes(fold(key, problems_RP[r, p]), out_RPD[r, p])
