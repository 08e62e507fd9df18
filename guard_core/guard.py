"""The guard as a pure function: (state, votes, draws) -> (state, decision)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from guard_core.arrays import Array, divide, namespace, widen
from guard_core.config import GuardConfig
from guard_core.decision import Decision, Route
from guard_core.frs import frs_weight
from guard_core.label import Label, choose_label
from guard_core.margin import Support
from guard_core.monitor import advance
from guard_core.mps import candidate_votes, minority_candidates, protect
from guard_core.rcsu import at_high_risk, choose_skips
from guard_core.state import GuardState, Rates
from guard_core.votes import Draws, Votes


@dataclass(frozen=True, slots=True)
class Guard:
    """TTRL-Guard's per-problem monitor and its three interventions (paper section 3).

    The pattern is Optax's: `init` makes a state, `step` maps a state and an observation to a new
    state and a decision. Nothing is hidden and nothing random happens inside.

        guard = Guard(GuardConfig.paper())
        state = guard.init(n_problems, like=array)
        rows, decision = guard.step(state.take(problems), votes, draws)
        state = state.put(problems, rows)
    """

    config: GuardConfig

    def init(
        self,
        n_problems: int,
        like: Array,
        *,
        leading: tuple[int, ...] = (),
        n_answers: int = 0,
    ) -> GuardState:
        """The state before any visit.

        Args:
            n_problems: N.
            like: an array whose library, device and float type the state takes.
            leading: leading axes, such as replicates.
            n_answers: A, if known; saves the vote memory from growing.

        Raises:
            ValueError: there is no problem.
        """
        if n_problems < 1:
            raise ValueError(f"n_problems = {n_problems}: must be at least 1")
        return GuardState.empty((*leading, n_problems), like, self.config, n_answers)

    def prime(
        self, state: GuardState, votes: Votes, draws: Draws, scores: Array | None = None
    ) -> GuardState:
        """Take in visit 0, the votes drawn before training (docs/method.md, section 2).

        It sets label and memory, and is neither a visit nor a flip.

        Args:
            state: of (..., N) problems.
            votes: counts (..., N, A).
            draws: only `tie` is read.
            scores: as for `step`.
        """
        votes, scores, memory = self._remember(state, votes, scores)
        chosen = self._label(state, votes, memory if self._remembers else scores, draws)
        return replace(state, label=chosen.label, memory=memory)

    def step(
        self, rows: GuardState, votes: Votes, draws: Draws, scores: Array | None = None
    ) -> tuple[GuardState, Decision]:
        """Record one visit of every row and decide on it (docs/method.md, sections 2 to 7).

        Args:
            rows: `state.take(problems)`, (..., P).
            votes: this visit's votes, (..., P, A).
            draws: uniform random numbers, (..., P).
            scores: (..., P, A) at least 0; what the label has most of, and what a memory sums,
                where a rule of `guard_core.rules` has another choice than the votes themselves.
                Match rates are shares of the votes in any case.
        """
        config = self.config
        votes, scores, memory = self._remember(rows, votes, scores)
        chosen_by = memory if self._remembers else scores
        chosen = self._label(rows, votes, chosen_by, draws)
        xp = namespace(rows.match_rates)
        match_rate = divide(xp.astype(chosen.got, rows.match_rates.dtype), votes.n_votes)
        rows, rates = advance(rows, chosen.label, match_rate, memory, config)
        weight, fired, skip = self._weigh(rows, rates, chosen_by, chosen)
        minority = minority_candidates(votes, chosen.is_label, config)
        beta, active, steady = xp.zeros_like(match_rate), rows.mps_active, rows.steady
        if config.mps:
            active, steady, beta = protect(rows, rates, minority, config)
        high_risk = at_high_risk(rows.had_competition, rows.visits, rates.mean_match_rate, config)
        if config.rcsu:
            skip = skip | choose_skips(high_risk & ~skip, draws, config)
        rows = replace(rows, c2_fired=fired, mps_active=active, steady=steady)
        counted = candidate_votes(votes, config)
        return rows, _decision(
            rows, rates, chosen, weight, beta, minority, high_risk, skip, counted
        )

    def remembered(self, rows: GuardState) -> Array | None:
        """(..., P, A) scores of earlier visits as this visit's label counts them.

        Args:
            rows: of the batch, before `step`.

        Returns:
            The memory times `discount`; None where labels do not remember.
        """
        if not self._remembers:
            return None
        # A factor of 1 changes nothing, and at this size a product is a noticeable cost.
        return rows.memory if self.config.discount == 1 else self.config.discount * rows.memory

    def _remember(
        self, rows: GuardState, votes: Votes, scores: Array | None
    ) -> tuple[Votes, Array, Array]:
        """Add the scores to the memory, all padded to one width of at least one answer."""
        width = max(1, votes.counts.shape[-1], rows.memory.shape[-1])
        if votes.counts.shape[-1] != width:
            counts, samples = widen(votes.counts, width), widen(votes.samples, width)
            votes = Votes(counts, samples, votes.n_votes, votes.n_samples)
        scores = votes.counts if scores is None else widen(scores, width)
        old = self.remembered(rows)
        if old is None:
            return votes, scores, rows.memory
        new = namespace(rows.memory).astype(scores, rows.memory.dtype)
        return votes, scores, widen(old, width) + new

    def _weigh(
        self, rows: GuardState, rates: Rates, scores: Array, chosen: Label
    ) -> tuple[Array, Array, Array]:
        """Return weights, `c2_fired`, and the problems that are skipped for a weak label."""
        config, xp = self.config, namespace(rates.match_rate)
        weight, fired = xp.ones_like(rates.match_rate), rows.c2_fired
        weak = xp.zeros_like(rates.contested)
        if config.frs:
            weight, fired = frs_weight(rows, rates, config)
        if config.margin_power > 0 or config.min_share > 0:
            support = Support.of(xp.astype(scores, weight.dtype), chosen.is_label)
            weight, weak = support.weigh(weight, config), support.share < config.min_share
        return weight, fired, weak

    @property
    def _remembers(self) -> bool:
        return self.config.label_from == "memory"

    def _label(self, rows: GuardState, votes: Votes, scores: Array, draws: Draws) -> Label:
        return choose_label(votes, scores, rows.label, draws.tie, self.config)


def _decision(
    rows: GuardState,
    rates: Rates,
    chosen: Label,
    weight: Array,
    beta: Array,
    minority: Array,
    high_risk: Array,
    skip: Array,
    counted: Array,
) -> Decision:
    xp = namespace(rates.match_rate)
    # A bool as a number is STABLE or AT_RISK already.
    route = xp.astype(rates.contested, xp.int8)
    route = xp.where(high_risk, int(Route.HIGH_RISK), route)
    route = xp.where(skip, int(Route.SKIPPED), route)
    return Decision(
        label=rows.label,
        flipped=rates.flipped,
        tied=chosen.tied,
        visits=rows.visits,
        match_rate=rates.match_rate,
        flip_rate=rates.flip_rate,
        mean_match_rate=rates.mean_match_rate,
        had_competition=rows.had_competition,
        weight=weight,
        beta=beta,
        high_risk=high_risk,
        skip=skip,
        route=route,
        minority=minority,
        candidate_votes=counted,
    )
