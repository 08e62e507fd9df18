"""The rest of `guard_core.Guard.step` for a batch, compiled: rates, weight, beta and skips.

See `sim.engine.label` for how it relates to guard_core.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from guard_core import Route

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
Records = NDArray[np.void]

_STABLE, _AT_RISK, _HIGH_RISK, _SKIPPED = (int(route) for route in Route)


@njit(cache=True)
def decide(
    rules_1: Records,
    facts_RN: Records,
    flips_RNW: NDArray[np.integer[Any]],
    match_rates_RNW: Floats,
    order_RN: Ints,
    skip_RN: Floats,
    pick_RN: Floats,
    counted_RPA: Ints,
    least: int,
    cap: int,
    start: int,
    seen_RN: Records,
    minority_RPA: Flags,
) -> None:
    """Record one visit of every problem of the batch and decide what to do with it.

    Args:
        rules_1: the guard's settings, see `sim.engine.guard_settings`.
        facts_RN: the guard's state, see `sim.engine.state`; the batch's part is changed.
        flips_RNW: the same.
        match_rates_RNW: the same.
        order_RN: problems in visiting order.
        skip_RN: `Draws.skip`, problem by problem and not visit by visit.
        pick_RN: `Draws.pick`, the same.
        counted_RPA: responses per answer that minority candidates are chosen by.
        least: responses that make an answer a minority candidate.
        cap: most problems of the batch that may be skipped.
        start: place of the batch's first visit in the epoch.
        seen_RN: output, see `sim.engine.rows.SEEN`; columns `start` to `start + P`, which hold the
        labels,
            are completed.
        minority_RPA: output; minority candidates.
    """
    rules = rules_1[0]
    stop = start + counted_RPA.shape[1]
    _advance(rules, facts_RN, flips_RNW, match_rates_RNW, order_RN, start, stop, seen_RN)
    _weigh(rules, facts_RN, order_RN, start, stop, seen_RN)
    _find_minority(counted_RPA, least, start, seen_RN, minority_RPA)
    _protect(rules, facts_RN, order_RN, start, stop, seen_RN)
    _route(rules, facts_RN, order_RN, start, stop, seen_RN)
    if rules.rcsu and cap > 0:
        _choose_skips(rules, order_RN, skip_RN, pick_RN, cap, start, stop, seen_RN)


@njit
def _advance(
    rules: Any,
    facts_RN: Records,
    flips_RNW: NDArray[np.integer[Any]],
    match_rates_RNW: Floats,
    order_RN: Ints,
    start: int,
    stop: int,
    seen_RN: Records,
) -> None:
    """`monitor.advance`."""
    W = rules.W
    for r in range(order_RN.shape[0]):
        for at in range(start, stop):
            n = order_RN[r, at]
            flips = _push(flips_RNW, r, n, seen_RN[r, at].flipped)
            total = _push(match_rates_RNW, r, n, seen_RN[r, at].match_rate)
            visits = facts_RN[r, n].visits + 1
            flip_rate = 1.0 * seen_RN[r, at].flipped if rules.instant else flips / W
            competed = facts_RN[r, n].had_competition or flip_rate > rules.tau_FR
            facts_RN[r, n].visits = visits
            facts_RN[r, n].had_competition = competed
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
def _weigh(
    rules: Any, facts_RN: Records, order_RN: Ints, start: int, stop: int, seen_RN: Records
) -> None:
    """`frs.frs_weight`; 1 without FRS."""
    for r in range(order_RN.shape[0]):
        for at in range(start, stop):
            if not rules.frs:
                seen_RN[r, at].weight = 1.0
                continue
            n = order_RN[r, at]
            flip_rate, mean = seen_RN[r, at].flip_rate, seen_RN[r, at].mean_match_rate
            fired = facts_RN[r, n].c2_fired
            c1 = flip_rate > rules.tau_FR and seen_RN[r, at].match_rate > rules.tau_MR
            c2 = not seen_RN[r, at].had_competition and facts_RN[r, n].visits >= rules.W
            c2 = c2 and mean > rules.tau_MR and fired < rules.W
            weight = 1 - rules.l1 * flip_rate
            weight = weight * (1 - rules.l2) if c1 else weight
            weight = weight * (1 - rules.l2 / 2) if c2 else weight
            facts_RN[r, n].c2_fired = fired + c2
            seen_RN[r, at].weight = rules.w_min if weight < rules.w_min else weight


@njit
def _find_minority(
    counted_RPA: Ints, least: int, start: int, seen_RN: Records, minority_RPA: Flags
) -> None:
    """`mps.minority_candidates`."""
    R, P, A = counted_RPA.shape
    for r in range(R):
        for p in range(P):
            label = seen_RN[r, start + p].label
            found = 0
            for a in range(A):
                minority = counted_RPA[r, p, a] >= least and a != label
                minority_RPA[r, p, a] = minority
                found += minority
            seen_RN[r, start + p].n_minority = found


@njit
def _protect(
    rules: Any, facts_RN: Records, order_RN: Ints, start: int, stop: int, seen_RN: Records
) -> None:
    """`mps.protect`; 0 without MPS."""
    for r in range(order_RN.shape[0]):
        for at in range(start, stop):
            if not rules.mps:
                seen_RN[r, at].beta = 0.0
                continue
            n = order_RN[r, at]
            strength = seen_RN[r, at].flip_rate
            contested = strength > rules.tau_FR
            steady = 0 if contested else facts_RN[r, n].steady + 1
            active = contested or (facts_RN[r, n].mps_active and steady < rules.T_steady)
            if rules.saturating:
                strength = min(strength / max(rules.tau_FR, 1e-6), 1.0)
            wanted = active and not (rules.plain and seen_RN[r, at].n_minority == 0)
            facts_RN[r, n].steady = steady
            facts_RN[r, n].mps_active = active
            seen_RN[r, at].beta = rules.beta_max * strength if wanted else 0.0


@njit
def _route(
    rules: Any, facts_RN: Records, order_RN: Ints, start: int, stop: int, seen_RN: Records
) -> None:
    """`rcsu.at_high_risk`, and the route of a problem that is not skipped."""
    for r in range(order_RN.shape[0]):
        for at in range(start, stop):
            high = seen_RN[r, at].had_competition and facts_RN[r, order_RN[r, at]].visits >= rules.W
            high = high and seen_RN[r, at].mean_match_rate > rules.theta_MR
            route = _AT_RISK if seen_RN[r, at].flip_rate > rules.tau_FR else _STABLE
            seen_RN[r, at].route = _HIGH_RISK if high else route
            seen_RN[r, at].skipped = False


@njit
def _choose_skips(
    rules: Any,
    order_RN: Ints,
    skip_RN: Floats,
    pick_RN: Floats,
    cap: int,
    start: int,
    stop: int,
    seen_RN: Records,
) -> None:
    """`rcsu.choose_skips`."""
    P = stop - start
    key_P, scratch_P = np.empty(P), np.empty(P)
    for r in range(order_RN.shape[0]):
        n_candidates = 0
        for at in range(start, stop):
            n = order_RN[r, at]
            key_P[at - start] = 2.0
            if seen_RN[r, at].route == _HIGH_RISK and skip_RN[r, n] < rules.p_skip:
                key_P[at - start] = 0.0 if rules.skip_first else pick_RN[r, n]
                n_candidates += 1
        if n_candidates > 0:
            scratch_P[:] = key_P
            last = _ranked(scratch_P, cap - 1) if n_candidates > cap else 2.0
            _skip(key_P, last, cap, seen_RN[r, start:])


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
