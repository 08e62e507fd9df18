"""A rule of the field on the compiled guard, see `sim.engine.simulation.Learner`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from guard_core import Draws, GuardState, Votes
from guard_core.rules import make_rule
from sim.engine.gradient import Update
from sim.engine.learner import CompiledGuard, Targets
from sim.engine.reference_rules import sharpen, visit_of
from sim.rules.fast_pay import paid_sums
from sim.rules.fast_rules import SCORES, WEIGHTS
from sim.rules.paid import learn_paid, weigh
from sim.rules.told import Told
from sim.settings.config import SimConfig
from sim.world.observe import Observer

Floats = NDArray[np.float64]


class CompiledRules(CompiledGuard):
    """Decides batch by batch; the rules of `sim.rules.fast_rules.is_fast`."""

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
        rule, config = self._rule, self._config
        visit = visit_of(config, self._epoch, start, self._order_RN, self._truth_RN, votes, p_RPA)
        told = Told(self._observer, visit, self._prior(visit.problems_RP))
        scored = SCORES.get(type(rule))
        scores_RPA = None if scored is None else scored(rule, told)
        at = slice(start, start + p_RPA.shape[1])
        targets = self._decide(at, votes, trained_RPA, scores_RPA)
        update = self._pay(at, told, trained_RPA, targets)
        if rule.loss == "none":
            update.gradient_RPA[...], update.drop_RP[...] = 0.0, True
        elif type(rule) in WEIGHTS:
            weigh(WEIGHTS[type(rule)](rule, told, targets.label_RP), *update)
        return update

    def _prior(self, problems_RP: NDArray[np.int64]) -> Floats | None:
        """The discounted memory before this visit, for rules that make labels of their own."""
        guard = self._config.guard
        if guard.label_from != "memory" or self._rule.follows_label:
            return None
        memory_RPA = np.take_along_axis(self._state.memory_RNA, problems_RP[..., None], axis=1)
        return guard.discount * memory_RPA

    def _pay(self, at: slice, told: Told, trained_RPA: NDArray[Any], targets: Targets) -> Update:
        """The gradient of the rule's rewards, or of its loss."""
        rule, votes, p_RPA = self._rule, told.votes, told.visit.p_RPA
        if rule.loss == "rewards" and rule.pays == "label":
            return self._learn(at, trained_RPA, p_RPA, targets)
        update = Update(np.empty_like(p_RPA), np.zeros(told.shape, np.bool_))
        if rule.loss == "entropy":
            sharpen(p_RPA, update.gradient_RPA)
        elif rule.loss == "rewards":
            learn_paid(
                self._settings_1,
                paid_sums(rule, told, targets.label_RP),
                votes.samples,
                votes.n_samples,
                targets.rival_hits_RP,
                targets.minority_RPA,
                self._seen_RN[:, at],
                p_RPA,
                *update,
            )
        return update
