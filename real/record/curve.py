"""The summary of the curve of a run's evaluations."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np


def summary(previous: Mapping[str, Any] | None, row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the summary of the curve with one more evaluation, as in `run.json`.

    Args:
        previous: the summary up to the evaluation before; None at the first. Points at or after
            the new one's step are dropped, since a resumed run makes them again.
        row: columns of the trace's evals.

    Returns:
        `points` [step, pass@1], `first` and `last` with all that was measured, `best` (chosen with
        hindsight, from the true answers) and `area`, the mean height of the curve over the steps.
        `best` and `area` are None where no true answer is known.
    """
    scores = {
        name: float(value)
        for name, value in row.items()
        if name.startswith(("pass_at", "maj")) and math.isfinite(value)
    }
    now = {"step": int(row["step"]), **scores}
    before = [] if previous is None else previous["points"]
    points = [point for point in before if point[0] < now["step"]]
    if "pass_at_1" in scores:
        points.append([now["step"], scores["pass_at_1"]])
    first = now if previous is None or not points[:-1] else previous["first"]
    best = max(points, key=lambda point: point[1], default=None)
    return {
        "first": first,
        "last": now,
        "best": None if best is None else {"step": best[0], "pass_at_1": best[1]},
        "area": _area(points),
        "points": points,
    }


def lines(curve: Mapping[str, Any]) -> list[str]:
    """Return the curve in lines for readers.

    Args:
        curve: from `summary`.
    """
    if curve["best"] is None:
        return ["no true answers: accuracy was not measured"]
    first, last, best = curve["first"], curve["last"], curve["best"]
    text = [
        f"pass@1 best {best['pass_at_1']:.3f} at step {best['step']} (with hindsight), "
        f"mean over training {curve['area']:.3f}"
    ]
    ks = sorted(int(name.removeprefix("pass_at_")) for name in last if name.startswith("pass_at_"))
    parts = [
        f"pass@{k} {first[f'pass_at_{k}']:.3f} -> {last[f'pass_at_{k}']:.3f}"
        for k in ks
        if k > 1 and f"pass_at_{k}" in first
    ]
    return [*text, ", ".join(parts)] if parts else text


def _area(points: list[list[float]]) -> float | None:
    """Area under pass@1 over steps, divided by the steps that it spans."""
    if not points:
        return None
    steps, scores = np.array(points, float).T
    span = steps[-1] - steps[0]
    return float(np.trapezoid(scores, steps) / span) if span else float(scores[-1])
