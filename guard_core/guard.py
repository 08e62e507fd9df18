"""The guard as a pure function, (state, votes, draws) -> (state, decision), and its parts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from guard_core.arrays import Array, divide, floor_share, namespace, ordered_sum, widen
from guard_core.config import GuardConfig
from guard_core.decision import Decision, Route
from guard_core.state import GuardState, Rates, advance
from guard_core.votes import Draws, Label, Votes, choose_label


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


def frs_weight(rows: GuardState, rates: Rates, config: GuardConfig) -> tuple[Array, Array]:
    """Weight every problem by how far its label can be trusted (paper equations 6-11).

    Args:
        config: `l1`, `l2`, `w_min`, `tau_MR`, `tau_FR` and `W` are read.

    Returns:
        Weights (..., P), and `c2_fired` (..., P) with this visit counted.
    """
    xp = namespace(rates.flip_rate)
    real = rates.flip_rate.dtype
    c1 = rates.contested & (rates.match_rate > config.tau_MR)
    c2 = ~rows.had_competition & (rows.visits >= config.W)
    c2 = c2 & (rates.mean_match_rate > config.tau_MR) & (rows.c2_fired < config.W)
    weight = 1 - config.l1 * rates.flip_rate
    weight = weight * (1 - config.l2 * xp.astype(c1, real))
    weight = weight * (1 - config.l2 / 2 * xp.astype(c2, real))
    weight = xp.where(weight < config.w_min, config.w_min, weight)
    return weight, rows.c2_fired + xp.astype(c2, rows.c2_fired.dtype)


def candidate_votes(votes: Votes, config: GuardConfig) -> Array:
    """(..., P, A) responses per answer that candidates are chosen by."""
    return votes.samples if config.minority_over == "samples" else votes.counts


def minority_candidates(votes: Votes, is_label: Array, config: GuardConfig) -> Array:
    """Answers other than the label with enough responses (paper equation 12).

    Args:
        is_label: (..., P, A) bool; the label's place.

    Returns:
        (..., P, A) bool.
    """
    least = max(1, floor_share(config.minority_share, votes.n_samples))
    return (candidate_votes(votes, config) >= least) & ~is_label


def protect(
    rows: GuardState, rates: Rates, minority: Array, config: GuardConfig
) -> tuple[Array, Array, Array]:
    """Turn protection on or off and set its strength (paper equation 13).

    Args:
        minority: (..., P, A) bool from `minority_candidates`.
        config: `beta_max`, `beta_schedule`, `T_steady`, `tau_FR` and `empty_minority` are read.

    Returns:
        `mps_active` and `steady` of the rows, updated, and `beta` (..., P), 0 where it is off.
    """
    xp = namespace(rates.flip_rate)
    steady = xp.where(rates.contested, 0, rows.steady + 1)
    active = rates.contested | (rows.mps_active & (steady < config.T_steady))
    strength = rates.flip_rate
    if config.beta_schedule == "saturating":
        # Any flip rate above a threshold of 0 saturates; the floor only avoids 0 / 0.
        strength = divide(strength, max(config.tau_FR, 1e-6))
        strength = xp.where(strength > 1, 1.0, strength)
    beta = config.beta_max * strength * xp.astype(active, strength.dtype)
    if config.empty_minority == "plain":
        beta = beta * xp.astype(xp.any(minority, axis=-1), beta.dtype)
    return active, steady, beta


def at_high_risk(
    had_competition: Array, visits: Array, mean_match_rate: Array, config: GuardConfig
) -> Array:
    """Problems that were contested once and are confident again (paper section 3.5).

    Args:
        had_competition: (..., P) of `GuardState`.
        visits: (..., P) of `GuardState`, this one included.
        mean_match_rate: (..., P) of `Rates`.

    Returns:
        (..., P) bool.
    """
    return had_competition & (visits >= config.W) & (mean_match_rate > config.theta_MR)


def choose_skips(high_risk: Array, draws: Draws, config: GuardConfig) -> Array:
    """Leave out high-risk problems at random, up to the batch's cap.

    Args:
        high_risk: (..., P) bool.
        draws: `skip` decides who is a candidate, `pick` who of them fits under the cap.
        config: `p_skip`, `skip_share`, `skip_cap` and `skip_order` are read.

    Returns:
        (..., P) bool. Equal `pick` draws are settled in batch order.
    """
    xp = namespace(high_risk)
    cap = skip_cap(high_risk.shape[-1], config)
    candidate = high_risk & (draws.skip < config.p_skip)
    if cap == 0:
        return xp.zeros_like(candidate)
    if config.skip_order == "first":
        return candidate & (_running(xp, candidate) <= cap)
    # Draws lie below 1, so 2 sends everybody else behind the candidates.
    key = xp.where(candidate, draws.pick, 2.0)
    last = xp.sort(key, axis=-1)[..., cap - 1 : cap]
    below = candidate & (key < last)
    level = candidate & (key == last)
    room = cap - xp.sum(xp.astype(below, xp.int64), axis=-1, keepdims=True)
    return below | (level & (_running(xp, level) <= room))


def skip_cap(n_problems: int, config: GuardConfig) -> int:
    """Largest number of a batch's problems that may be skipped."""
    cap = floor_share(config.skip_share, n_problems)
    return max(1, cap) if config.skip_cap == "at_least_one" else cap


def _running(xp: object, flags: Array) -> Array:
    return xp.cumulative_sum(xp.astype(flags, xp.int64), axis=-1)  # type: ignore[attr-defined]


class Support(NamedTuple):
    """Support of every problem's label by the scores that it was chosen by."""

    share: Array
    """(..., P) score of the label over the sum of all, 0 where there is none."""
    margin: Array
    """(..., P) its lead over the best other answer in the same unit, 0 where it does not lead."""

    @classmethod
    def of(cls, scores: Array, is_label: Array) -> Support:
        """Compare the label with the other answers.

        Args:
            scores: (..., P, A) floats, at least 0.
            is_label: (..., P, A) bool.
        """
        xp = namespace(scores)
        nothing = xp.zeros_like(scores)
        own = xp.max(xp.where(is_label, scores, nothing), axis=-1)
        best = xp.max(xp.where(is_label, nothing, scores), axis=-1)
        total = ordered_sum(scores)
        total = xp.where(total > 0, total, xp.ones_like(total))
        lead = (own - best) / total
        return cls(own / total, xp.where(lead > 0, lead, xp.zeros_like(lead)))

    def weigh(self, weight: Array, config: GuardConfig) -> Array:
        """Return the weights (..., P) times `margin ** margin_power`."""
        # Products are the same in every library to the last bit; powers are not.
        for _ in range(config.margin_power):
            weight = weight * self.margin
        return weight
