"""Flip-rate-aware reward scaling (paper equations 3 to 11; docs/method.md, sections 3 and 4)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from guard_core.config import ROUNDING, Numbers, Settings
from guard_core.decision import SKIPPED


def push(history: Numbers, newest: Any) -> Any:
    """Shift the history by one visit; return its sum from left to right, oldest first."""
    last = len(history) - 1
    total = history[0] * 0
    for w in range(last):
        kept = history[w + 1]
        history[w] = kept
        total += kept
    history[last] = newest
    return total + history[last]


def weigh(s: Settings, problem: Any, visit: Any) -> float:
    """Return the FRS weight (paper equations 6-11); counts the visits at which C2 holds."""
    c1 = visit.flip_rate > s.tau_FR and visit.match_rate > s.tau_MR
    c2 = not problem.had_competition and problem.visits >= s.W
    c2 = c2 and visit.mean_match_rate > s.tau_MR + ROUNDING and problem.c2_fired < s.W
    problem.c2_fired += c2
    weight = 1 - s.l1 * visit.flip_rate
    weight = weight * (1 - s.l2) if c1 else weight
    weight = weight * (1 - s.l2 / 2) if c2 else weight
    return s.w_min if weight < s.w_min else weight


def weigh_support(s: Settings, scores: Sequence[Any], visit: Any) -> None:
    """Change weight and skip by the label's support among the scores that it was chosen by."""
    if s.margin_power == 0 and s.min_share == 0:
        return
    total, support, best = 0.0, 0.0, 0.0
    for a in range(len(scores)):
        total += scores[a]
        if a == visit.label:
            support += scores[a]
        elif scores[a] > best:
            best = 1.0 * scores[a]
    total = total if total > 0 else 1.0
    margin = max((support - best) / total, 0.0)
    for _ in range(s.margin_power):
        visit.weight *= margin
    if support / total < s.min_share - ROUNDING:
        visit.skipped, visit.route = True, SKIPPED
