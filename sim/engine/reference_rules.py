"""A rule of the field in the simulator by guard_core itself; `sim.engine.guard` agrees with it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from guard_core import Decision, Draws, GuardState, Votes, policy_streams
from guard_core.advantages import PolicyStreams
from guard_core.rules import (
    Need,
    Observations,
    answer_streams,
    make_rule,
    response_streams,
    weighed,
)
from sim.engine.gradient import Update, logit_gradient
from sim.engine.reference import ReferenceGuard
from sim.settings.config import SimConfig
from sim.world.observe import Observer, Visit

Floats = NDArray[np.float64]


class ReferenceRules(ReferenceGuard):
    """Decides batch by batch, see `sim.engine.simulation.Learner`."""

    def __init__(self, config: SimConfig, state: GuardState, observer: Observer) -> None:
        """Start from a primed state.

        Args:
            config: of the run.
            state: of the guard.
            observer: draws what the rule is told.
        """
        super().__init__(config, state)
        self._rule = make_rule(config.rule, config.rule_options)
        self._observer = observer
        self._epoch = 0

    def begin(
        self,
        order_RN: NDArray[np.int64],
        truth_RN: NDArray[np.int32],
        draws: Draws,
        seen_RN: NDArray[np.void],
    ) -> None:
        """See `sim.engine.simulation.Learner`."""
        super().begin(order_RN, truth_RN, draws, seen_RN)
        self._epoch += 1

    def step(self, start: int, votes: Votes, trained_RPA: NDArray[Any], p_RPA: Floats) -> Update:
        """See `sim.engine.simulation.Learner`."""
        visit = visit_of(
            self._config, self._epoch, start, self._order_RN, self._truth_RN, votes, p_RPA
        )
        at = slice(start, start + p_RPA.shape[1])
        rows, draws = self._batch(at)
        seen = self._observer.see(visit, self._guard.remembered(rows))
        scores = None if self._rule.labels_by_votes() else self._rule.scores(seen)
        decision = self._decide(at, rows, votes, draws, scores)
        if self._config.labels == "truth":
            decision = decision.trained_on(visit.truth_RP)
        if Need.VERDICTS in self._rule.needs:
            seen = replace(seen, verdicts=self._verdicts(visit, seen, decision))
        return self._update(seen, decision, p_RPA)

    def _verdicts(self, visit: Visit, seen: Observations, decision: Decision) -> NDArray[np.int8]:
        place_RPQ = self._rule.questions(seen, decision.label)
        answers_RPQ = np.take_along_axis(seen.of("answers"), np.maximum(place_RPQ, 0), axis=-1)
        return self._observer.verdicts(visit, np.where(place_RPQ < 0, -2, answers_RPQ))

    def _update(self, seen: Observations, decision: Decision, p_RPA: Floats) -> Update:
        rule, config, out_RPA = self._rule, self._config.guard, np.empty_like(p_RPA)
        if rule.loss == "entropy":
            sharpen(p_RPA, out_RPA)
            return Update(out_RPA, np.zeros(p_RPA.shape[:2], np.bool_))
        by_response = rule.pays == "response"
        pair = (response_streams if by_response else answer_streams)(rule, seen, decision, config)
        streams = weighed(rule, seen, decision.label, policy_streams(*pair, decision, config))
        streams = PolicyStreams(*(np.ascontiguousarray(part) for part in streams))
        if by_response:
            answers_RPK = seen.of("answers")[..., : seen.votes.n_samples]
            paid_RPK = streams.majority + streams.minority
            response_gradient(answers_RPK, paid_RPK, streams.weight, streams.drop, p_RPA, out_RPA)
        else:
            votes = seen.votes
            logit_gradient(votes.samples, votes.n_samples, p_RPA, *streams, out_RPA)
        return Update(out_RPA, streams.drop)


def visit_of(
    config: SimConfig,
    epoch: int,
    start: int,
    order_RN: NDArray[np.int64],
    truth_RN: NDArray[np.int32],
    votes: Votes,
    p_RPA: Floats,
) -> Visit:
    """The batch that starts at a place of an epoch.

    Args:
        config: of the run.
        epoch: from 1.
        start: place of the batch's first visit.
        order_RN: problems in visiting order.
        truth_RN: their true answers.
        votes: of the batch.
        p_RPA: the probabilities that they were drawn from.
    """
    at = slice(start, start + p_RPA.shape[1])
    batch = (epoch - 1) * config.n_batches + start // config.batch_size + 1
    problems_RP = np.ascontiguousarray(order_RN[:, at])
    truth_RP = np.ascontiguousarray(truth_RN[:, at])
    return Visit(epoch, batch, problems_RP, truth_RP, votes, p_RPA)


@njit(cache=True)
def response_gradient(
    answers_RPK: NDArray[np.int32],
    paid_RPK: Floats,
    weight_RP: Floats,
    drop_RP: NDArray[np.bool_],
    p_RPA: Floats,
    out_RPA: Floats,
) -> None:
    """`sim.engine.gradient.logit_gradient` for advantages of single responses.

    Args:
        answers_RPK: answers of the trained responses, -1 for unparseable ones, which have no
            gradient.
        paid_RPK: their advantages.
        weight_RP: factor on the problem's loss.
        drop_RP: the problem left the batch.
        p_RPA: answer probabilities among parseable responses.
        out_RPA: output.
    """
    R, P, K = answers_RPK.shape
    A = p_RPA.shape[2]
    for r in range(R):
        for p in range(P):
            out_RPA[r, p, :] = 0.0
            total = 0.0
            for k in range(K):
                if answers_RPK[r, p, k] >= 0:
                    out_RPA[r, p, answers_RPK[r, p, k]] += paid_RPK[r, p, k]
                    total += paid_RPK[r, p, k]
            scale = 0.0 if drop_RP[r, p] else weight_RP[r, p] / K
            for a in range(A):
                out_RPA[r, p, a] = scale * (out_RPA[r, p, a] - p_RPA[r, p, a] * total)


@njit(cache=True)
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
