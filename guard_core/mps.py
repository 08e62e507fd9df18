"""Minority-preserving sampling (paper equations 12 and 13; docs/method.md, section 5)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from guard_core.config import Numbers, Settings


def find_minority(least: int, label: int, votes: Sequence[Any], minority: Numbers) -> int:
    """Mark answers other than the label with enough votes (paper equation 12); return how many."""
    n_minority = 0
    for a in range(len(votes)):
        minority[a] = votes[a] >= least and a != label
        n_minority += minority[a]
    return n_minority


def protect(s: Settings, problem: Any, visit: Any) -> float:
    """Turn the protection on or off; return beta (paper equation 13), 0 where it is off."""
    strength = visit.flip_rate
    contested = strength > s.tau_FR
    problem.steady = 0 if contested else problem.steady + 1
    problem.mps_active = contested or (problem.mps_active and problem.steady < s.T_steady)
    if s.beta_schedule_saturating:
        strength = min(strength / max(s.tau_FR, 1e-6), 1.0)
    off = not problem.mps_active or (s.empty_minority_plain and visit.n_minority == 0)
    return 0.0 if off else s.beta_max * strength
