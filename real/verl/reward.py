"""Score of a response in verl's evaluations: 1 where its answer is the true one.

Votes get no score here, since the group has not voted yet.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from real.answers import classes
from real.answers.equality import Equality


def compute_score(
    data_source: str, solution_str: str, ground_truth: str | None, extra_info: Any = None, **_: Any
) -> dict[str, float]:
    """Return verl's reward of a response, and as `acc` what its evaluations show."""
    ids, truth_id = classes([solution_str], ground_truth, _equality())
    right = float(ids[0] >= 0 and ids[0] == truth_id)
    return {"score": right, "acc": right}


@cache
def _equality() -> Equality:
    """One process that compares answers, for each of verl's reward workers."""
    return Equality()
