"""Score of a response in verl's evaluations, 1 where its answer is true; votes get none."""

from __future__ import annotations

from typing import Any

from real.answers import Equality
from real.other_trainers import is_right

_EQUALITY = Equality()
"""Of each of verl's reward workers, with the keys of the answers that it has seen."""


def compute_score(
    data_source: str, solution_str: str, ground_truth: str | None, extra_info: Any = None, **_: Any
) -> dict[str, float]:
    """Return verl's reward of a response, and as `acc` what its evaluations show."""
    right = float(is_right(solution_str, ground_truth, _EQUALITY))
    return {"score": right, "acc": right}
