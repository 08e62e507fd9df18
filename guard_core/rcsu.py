"""Risk-conditioned sparse updating: who sits out a step (paper section 3.5; docs/method.md, 6)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from guard_core.config import ROUNDING, GuardConfig, Settings, floor_share
from guard_core.decision import HIGH_RISK, SKIPPED

NO_CANDIDATE = 2.0
"""Key of a problem that is no candidate for skipping; those of candidates lie below 1."""


def skip_cap(n_problems: int, config: GuardConfig) -> int:
    """Largest number of a batch's problems that may be skipped."""
    if config.rcsu is None:
        return 0
    cap = floor_share(config.rcsu.skip_share, n_problems)
    return max(1, cap) if config.rcsu.skip_cap == "at_least_one" else cap


def at_high_risk(s: Settings, had_competition: Any, visits: Any, mean_match_rate: Any) -> Any:
    """Return whether problems, one or an array of them, were contested once and are confident."""
    return had_competition & (visits >= s.W) & (mean_match_rate > s.theta_MR + ROUNDING)


def skip_key(s: Settings, visit: Any, skip: float, pick: float) -> float:
    """Return the key by which a problem is skipped, the smallest first, or `NO_CANDIDATE`."""
    if visit.route != HIGH_RISK or skip >= s.p_skip:
        return NO_CANDIDATE
    return 0.0 if s.skip_order_first else pick


def choose_skips(keys: Sequence[float], cap: int, visits: Any) -> None:
    """Skip the candidates with the smallest keys, at most `cap`; equal ones in batch order."""
    n_candidates = 0
    for p in range(len(keys)):
        n_candidates += keys[p] != NO_CANDIDATE
    if n_candidates == 0:
        return
    last = last_key(keys, cap) if n_candidates > cap else 1.0
    room = cap
    for p in range(len(keys)):
        room -= keys[p] < last
    for p in range(len(keys)):
        equal = keys[p] == last and room > 0
        room -= equal
        if equal or keys[p] < last:
            visits[p].skipped = True
            visits[p].route = SKIPPED


def last_key(keys: Sequence[float], cap: int) -> float:
    """Return a number that parts the `cap` smallest keys, which lie in [0, 1], from the others.

    It is at least the key of rank `cap`, and equals it where the next one is the same. Bisection
    needs neither a sorted copy nor one comparison per pair.
    """
    low, high, middle = -1.0, 1.0, 0.0
    while low < middle < high:
        n_below = 0
        for p in range(len(keys)):
            n_below += keys[p] <= middle
        if n_below == cap:
            return middle
        if n_below > cap:
            high = middle
        else:
            low = middle
        middle = (low + high) / 2 if low >= 0 else high
    return high
