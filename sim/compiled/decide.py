"""`guard_core.Guard.step` for a batch of R replicates, compiled.

guard_core is the single source of truth: every function here repeats one of its functions, named
in the docstring, with the same operations in the same order, so that the results agree to the last
bit; the tests hold the two against each other. A function does its part for all visits of the batch
and reads in `seen` what the parts before it found.

All of it stands in one file, because numba renews its cache when the file of the outermost
function changes and does not look at others.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from guard_core import Draws, GuardState, Route

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
Records = NDArray[np.void]

_STABLE, _AT_RISK, _HIGH_RISK, _SKIPPED = (int(route) for route in Route)


_FACTS = np.dtype(
    [
        ("label", np.int32),
        ("visits", np.int32),
        ("c2_fired", np.int32),
        ("steady", np.int32),
        ("had_competition", np.bool_),
        ("mps_active", np.bool_),
    ],
    align=True,
)


class State(NamedTuple):
    """`GuardState` of all problems; changed in place."""

    facts: Records
    """(R, N) what is one number per problem; side by side, for a visit needs all of it."""
    flips: NDArray[np.integer[Any]]
    match_rates: Floats
    memory: Floats

    @classmethod
    def of(cls, state: GuardState) -> State:
        """A copy of the guard's own state."""
        facts = np.empty(state.label.shape, _FACTS)
        for name in _FACTS.names or ():
            facts[name] = getattr(state, name)
        return cls(facts, *(np.array(getattr(state, name)) for name in cls._fields[1:]))


class Plan(NamedTuple):
    """What is settled before an epoch, (R, N)."""

    order: Ints
    """Problems in visiting order."""
    tie: Floats
    """`Draws` of the epoch, problem by problem and not visit by visit."""
    skip: Floats
    pick: Floats

    @classmethod
    def of(cls, order_RN: Ints, draws: Draws) -> Plan:
        """The same arrays."""
        return cls(order_RN, draws.tie, draws.skip, draws.pick)


class Part(NamedTuple):
    """The batch's visits in the epoch: `start` to `stop`, the last one not included."""

    start: int
    stop: int


@njit(cache=True)
def decide(
    rules_1: Records,
    facts_RN: Records,
    flips_RNW: NDArray[np.integer[Any]],
    match_rates_RNW: Floats,
    memory_RNA: Floats,
    order_RN: Ints,
    tie_RN: Floats,
    skip_RN: Floats,
    pick_RN: Floats,
    counts_RPA: Ints,
    counted_RPA: Ints,
    n_votes: int,
    n_samples: int,
    start: int,
    seen_RN: Records,
    minority_RPA: Flags,
) -> None:
    """Record one visit of every problem of the batch and decide what to do with it.

    Args:
        rules_1: of the guard, see `sim.compiled.rules`.
        facts_RN: `State.facts`; here and below the batch's part is changed.
        flips_RNW: `State.flips`.
        match_rates_RNW: `State.match_rates`.
        memory_RNA: `State.memory`.
        order_RN: `Plan.order`.
        tie_RN: `Plan.tie`.
        skip_RN: `Plan.skip`.
        pick_RN: `Plan.pick`.
        counts_RPA: votes per answer.
        counted_RPA: responses per answer that minority candidates are chosen by.
        n_votes: V.
        n_samples: K.
        start: place of the batch's first visit in the epoch.
        seen_RN: output, see `sim.rows.SEEN`; columns `start` to `start + P` are written.
        minority_RPA: output; minority candidates.
    """
    rules = rules_1[0]
    # Put together here: numba would pickle the classes of its arguments into its cache.
    state = State(facts_RN, flips_RNW, match_rates_RNW, memory_RNA)
    plan = Plan(order_RN, tie_RN, skip_RN, pick_RN)
    least = max(1, int(rules.minority_share * n_samples))
    part = Part(start, start + counts_RPA.shape[1])
    if rules.memory:
        _label_by_memory(rules, state, plan, counts_RPA, part, seen_RN)
    else:
        _label_by_votes(rules, state, plan, counts_RPA, part, seen_RN)
    _find_majority(rules, plan, counts_RPA, part, seen_RN)
    _record_label(state, plan, counts_RPA, n_votes, part, seen_RN)
    _advance(rules, state, plan, part, seen_RN)
    _weigh(rules, state, plan, part, seen_RN)
    _find_minority(counted_RPA, least, part, seen_RN, minority_RPA)
    _protect(rules, state, plan, part, seen_RN)
    _route(rules, state, plan, part, seen_RN)
    if rules.rcsu:
        _choose_skips(rules, plan, part, seen_RN)


@njit
def _label_by_votes(
    rules: Any,
    state: State,
    plan: Plan,
    counts_RPA: Ints,
    part: Part,
    seen_RN: Records,
) -> None:
    """`votes.choose_label` by this visit's votes, or by those before training."""
    first, incumbent = rules.tie_first, rules.tie_incumbent
    for r in range(plan.order.shape[0]):
        for at in range(part.start, part.stop):
            p = at - part.start
            n = plan.order[r, at]
            old = state.facts[r, n].label
            top, n_tied, winner = _winner(counts_RPA, r, p, plan.tie, n, old, first, incumbent)
            keep = top == 0 or (rules.frozen and old >= 0)
            seen_RN[r, at].label = old if keep else winner
            seen_RN[r, at].tie = top > 0 and n_tied > 1


@njit
def _label_by_memory(
    rules: Any,
    state: State,
    plan: Plan,
    counts_RPA: Ints,
    part: Part,
    seen_RN: Records,
) -> None:
    """`votes.choose_label` by the discounted votes of all visits."""
    A = counts_RPA.shape[2]
    first, incumbent = rules.tie_first, rules.tie_incumbent
    for r in range(plan.order.shape[0]):
        for at in range(part.start, part.stop):
            p = at - part.start
            n = plan.order[r, at]
            old = state.facts[r, n].label
            voted = False
            for a in range(A):
                state.memory[r, n, a] = rules.discount * state.memory[r, n, a] + counts_RPA[r, p, a]
                voted |= counts_RPA[r, p, a] > 0
            _top, n_tied, winner = _winner(state.memory, r, n, plan.tie, n, old, first, incumbent)
            seen_RN[r, at].label = winner if voted else old
            seen_RN[r, at].tie = voted and n_tied > 1


@njit
def _find_majority(rules: Any, plan: Plan, counts_RPA: Ints, part: Part, seen_RN: Records) -> None:
    """Winner of this visit's votes: the label, or ties at random if labels come from elsewhere."""
    for r in range(plan.order.shape[0]):
        for at in range(part.start, part.stop):
            p = at - part.start
            seen_RN[r, at].majority = seen_RN[r, at].label
            if not rules.current:
                n = plan.order[r, at]
                top, _n_tied, winner = _winner(counts_RPA, r, p, plan.tie, n, -1, False, False)
                if top > 0:
                    seen_RN[r, at].majority = winner


@njit
def _record_label(
    state: State, plan: Plan, counts_RPA: Ints, n_votes: int, part: Part, seen_RN: Records
) -> None:
    """Flip and match rate of the new label."""
    for r in range(plan.order.shape[0]):
        for at in range(part.start, part.stop):
            p = at - part.start
            n = plan.order[r, at]
            old, label = state.facts[r, n].label, seen_RN[r, at].label
            got = counts_RPA[r, p, label] if label >= 0 else 0
            seen_RN[r, at].flipped = label != old and old >= 0
            seen_RN[r, at].match_rate = got / n_votes
            state.facts[r, n].label = label


@njit(inline="always")
def _winner(
    scores: Any, r: int, i: int, tie_RN: Floats, n: int, old: int, first: bool, incumbent: bool
) -> tuple[Any, int, int]:
    """Highest score in row `scores[r, i]`, how many answers have it, and which of them wins."""
    top = scores[r, i, 0]
    n_tied = 0
    winner = 0
    for a in range(scores.shape[2]):
        if scores[r, i, a] > top:
            top = scores[r, i, a]
            n_tied = 0
            winner = a
        n_tied += scores[r, i, a] == top
    if n_tied == 1 or first:
        return top, n_tied, winner
    if incumbent and old >= 0 and scores[r, i, old] == top:
        return top, n_tied, old
    # A draw just below 1 times n can round up to n in guard_core's single precision.
    place = min(int(tie_RN[r, n] * n_tied), n_tied - 1)
    while place > 0:
        winner += 1
        place -= scores[r, i, winner] == top
    return top, n_tied, winner


@njit
def _advance(rules: Any, state: State, plan: Plan, part: Part, seen_RN: Records) -> None:
    """`monitor.advance`."""
    W = rules.W
    for r in range(plan.order.shape[0]):
        for at in range(part.start, part.stop):
            n = plan.order[r, at]
            flips = _push(state.flips, r, n, seen_RN[r, at].flipped)
            total = _push(state.match_rates, r, n, seen_RN[r, at].match_rate)
            visits = state.facts[r, n].visits + 1
            flip_rate = 1.0 * seen_RN[r, at].flipped if rules.instant else flips / W
            competed = state.facts[r, n].had_competition or flip_rate > rules.tau_FR
            state.facts[r, n].visits = visits
            state.facts[r, n].had_competition = competed
            seen_RN[r, at].flip_rate = flip_rate
            seen_RN[r, at].mean_match_rate = total / min(visits, W)
            seen_RN[r, at].had_competition = competed


@njit(inline="always")
def _push(history_RNW: Any, r: int, n: int, newest: Any) -> Any:
    """Shift a row by one visit, and its sum from left to right, oldest first."""
    last = history_RNW.shape[2] - 1
    total = history_RNW[r, n, 0] * 0
    for w in range(last):
        history_RNW[r, n, w] = history_RNW[r, n, w + 1]
        total += history_RNW[r, n, w]
    history_RNW[r, n, last] = newest
    return total + history_RNW[r, n, last]


@njit
def _weigh(rules: Any, state: State, plan: Plan, part: Part, seen_RN: Records) -> None:
    """`frs.frs_weight`; 1 without FRS."""
    for r in range(plan.order.shape[0]):
        for at in range(part.start, part.stop):
            if not rules.frs:
                seen_RN[r, at].weight = 1.0
                continue
            n = plan.order[r, at]
            flip_rate, mean = seen_RN[r, at].flip_rate, seen_RN[r, at].mean_match_rate
            fired = state.facts[r, n].c2_fired
            c1 = flip_rate > rules.tau_FR and seen_RN[r, at].match_rate > rules.tau_MR
            c2 = not seen_RN[r, at].had_competition and state.facts[r, n].visits >= rules.W
            c2 = c2 and mean > rules.tau_MR and fired < rules.W
            weight = 1 - rules.l1 * flip_rate
            weight = weight * (1 - rules.l2) if c1 else weight
            weight = weight * (1 - rules.l2 / 2) if c2 else weight
            state.facts[r, n].c2_fired = fired + c2
            seen_RN[r, at].weight = rules.w_min if weight < rules.w_min else weight


@njit
def _find_minority(
    counted_RPA: Ints, least: int, part: Part, seen_RN: Records, minority_RPA: Flags
) -> None:
    """`mps.minority_candidates`."""
    R, _P, A = counted_RPA.shape
    for r in range(R):
        for at in range(part.start, part.stop):
            p = at - part.start
            label = seen_RN[r, at].label
            found = 0
            for a in range(A):
                minority = counted_RPA[r, p, a] >= least and a != label
                minority_RPA[r, p, a] = minority
                found += minority
            seen_RN[r, at].n_minority = found


@njit
def _protect(rules: Any, state: State, plan: Plan, part: Part, seen_RN: Records) -> None:
    """`mps.protect`; 0 without MPS."""
    for r in range(plan.order.shape[0]):
        for at in range(part.start, part.stop):
            if not rules.mps:
                seen_RN[r, at].beta = 0.0
                continue
            n = plan.order[r, at]
            strength = seen_RN[r, at].flip_rate
            contested = strength > rules.tau_FR
            steady = 0 if contested else state.facts[r, n].steady + 1
            active = contested or (state.facts[r, n].mps_active and steady < rules.T_steady)
            if rules.saturating:
                strength = min(strength / max(rules.tau_FR, 1e-6), 1.0)
            wanted = active and not (rules.plain and seen_RN[r, at].n_minority == 0)
            state.facts[r, n].steady = steady
            state.facts[r, n].mps_active = active
            seen_RN[r, at].beta = rules.beta_max * strength if wanted else 0.0


@njit
def _route(rules: Any, state: State, plan: Plan, part: Part, seen_RN: Records) -> None:
    """`rcsu.at_high_risk`, and the route of a problem that is not skipped."""
    for r in range(plan.order.shape[0]):
        for at in range(part.start, part.stop):
            high = (
                seen_RN[r, at].had_competition
                and state.facts[r, plan.order[r, at]].visits >= rules.W
            )
            high = high and seen_RN[r, at].mean_match_rate > rules.theta_MR
            route = _AT_RISK if seen_RN[r, at].flip_rate > rules.tau_FR else _STABLE
            seen_RN[r, at].route = _HIGH_RISK if high else route
            seen_RN[r, at].skipped = False


@njit
def _choose_skips(rules: Any, plan: Plan, part: Part, seen_RN: Records) -> None:
    """`rcsu.choose_skips`."""
    P = part.stop - part.start
    cap = int(rules.skip_share * P)
    cap = max(1, cap) if rules.at_least_one else cap
    key_P, scratch_P = np.empty(P), np.empty(P)
    for r in range(plan.order.shape[0]):
        n_candidates = 0
        for at in range(part.start, part.stop):
            n = plan.order[r, at]
            key_P[at - part.start] = 2.0
            if seen_RN[r, at].route == _HIGH_RISK and plan.skip[r, n] < rules.p_skip:
                key_P[at - part.start] = 0.0 if rules.skip_first else plan.pick[r, n]
                n_candidates += 1
        if cap > 0 and n_candidates > 0:
            scratch_P[:] = key_P
            last = _ranked(scratch_P, cap - 1) if n_candidates > cap else 2.0
            _skip(key_P, last, cap, seen_RN[r, part.start :])


@njit
def _ranked(key_P: Floats, rank: int) -> float:
    """The key of a rank, 0 for the smallest (Hoare's quickselect); disorders the keys."""
    low, high = 0, key_P.shape[0] - 1
    while low < high:
        pivot = key_P[(low + high) // 2]
        i, j = low, high
        while i <= j:
            while key_P[i] < pivot:
                i += 1
            while key_P[j] > pivot:
                j -= 1
            if i <= j:
                key_P[i], key_P[j] = key_P[j], key_P[i]
                i += 1
                j -= 1
        if rank <= j:
            high = j
        elif rank >= i:
            low = i
        else:
            break
    return key_P[rank]


@njit
def _skip(key_P: Floats, last: float, cap: int, seen_P: Records) -> None:
    """Skip keys below `last`, and those equal to it in batch order while there is room."""
    room = cap
    for p in range(key_P.shape[0]):
        room -= key_P[p] < last
    for p in range(key_P.shape[0]):
        level = key_P[p] == last and last < 2 and room > 0
        room -= level
        if key_P[p] < last or level:
            seen_P[p].skipped = True
            seen_P[p].route = _SKIPPED
