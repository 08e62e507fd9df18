"""Risk-conditioned sparse updating: who sits out a step (paper section 3.5; docs/method.md, 6)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from guard_core.config import GuardConfig, Settings, floor_share
from guard_core.decision import Route

STABLE, AT_RISK, HIGH_RISK, SKIPPED = (int(route) for route in Route)
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
    return had_competition & (visits >= s.W) & (mean_match_rate > s.theta_MR)


def skip_key(s: Settings, visit: Any, skip: float, pick: float) -> float:
    """Return the key by which a problem is skipped, the smallest first, or `NO_CANDIDATE`."""
    if visit.route != HIGH_RISK or skip >= s.p_skip:
        return NO_CANDIDATE
    return 0.0 if s.skip_order_first else pick


def choose_skips(keys: Sequence[float], cap: int, visits: Any) -> None:
    """Skip the candidates with the smallest keys, at most `cap`; equal ones in batch order."""
    for p in range(len(keys)):
        if keys[p] == NO_CANDIDATE:
            continue
        n_before = 0
        for q in range(len(keys)):
            n_before += keys[q] < keys[p] or (keys[q] == keys[p] and q < p)
        if n_before < cap:
            visits[p].skipped = True
            visits[p].route = SKIPPED
