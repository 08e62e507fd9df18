"""How a run starts under a rule of its own: the observer, visit 0, and who decides."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from guard_core import GuardState, Votes
from guard_core.rules import make_rule
from sim.engine.reference_rules import ReferenceRules
from sim.rules.fast_rules import fast_scores, is_fast
from sim.rules.ruled import CompiledRules
from sim.settings.config import SimConfig
from sim.world.observe import Observer, Visit

_CHUNK = 64
"""Problems whose scores at visit 0 are computed at once; bounds the memory."""


class Ruled:
    """What a run under a rule has beside one under plain TTRL."""

    def __init__(self, config: SimConfig, truth_RN: NDArray[np.int32]) -> None:
        """Start before visit 0.

        Args:
            config: of the run.
            truth_RN: true answers by problem, for the observation models.
        """
        self._config = config
        self._rule = make_rule(config.rule, config.rule_options)
        self.observer = Observer(config, self._rule)
        self._truth_RN = truth_RN
        self._compiled = config.engine == "compiled" and is_fast(
            self._rule, config.guard, config.n_votes
        )

    def first_scores(self, votes: Votes, p_of: NDArray[np.float64]) -> NDArray[np.float64] | None:
        """The rule's scores at visit 0; None where they are the votes.

        Args:
            votes: of all problems.
            p_of: (R, N, A) the probabilities that they were drawn from.
        """
        if self._rule.labels_by_votes():
            return None
        parts = []
        for start in range(0, p_of.shape[1], _CHUNK):
            at = slice(start, start + _CHUNK)
            visit = self._first_visit(votes, p_of, at)
            scores = fast_scores(self._rule, self.observer, visit) if self._compiled else None
            parts.append(self._rule.scores(self.observer.see(visit)) if scores is None else scores)
        return np.concatenate(parts, axis=1)

    def learner(self, state: GuardState) -> ReferenceRules | CompiledRules:
        """Who decides: compiled code where it knows the rule and the guard's settings."""
        kind = CompiledRules if self._compiled else ReferenceRules
        return kind(self._config, state, self.observer)

    def _first_visit(self, votes: Votes, p_of: NDArray[np.float64], at: slice) -> Visit:
        p_RPA = np.ascontiguousarray(p_of[:, at])
        counts, samples = (np.ascontiguousarray(a[:, at]) for a in (votes.counts, votes.samples))
        part = Votes(counts, samples, votes.n_votes, votes.n_samples)
        problems_P = np.arange(at.start, at.start + p_RPA.shape[1])
        problems_RP = np.tile(problems_P, (p_RPA.shape[0], 1))
        truth_RP = np.ascontiguousarray(self._truth_RN[:, at])
        return Visit(0, 0, problems_RP, truth_RP, part, p_RPA)
