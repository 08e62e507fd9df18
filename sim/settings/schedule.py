"""Step sizes over a run: the trainer's cosine with a linear warm-up, or one constant."""

from __future__ import annotations

import math
from typing import Literal

Schedule = Literal["cosine", "constant"]


def step_size(
    schedule: Schedule, peak: float, batch: int, batches: int, warmup_ratio: float
) -> float:
    """Step size of one batch.

    Args:
        schedule: `cosine` rises linearly over the warm-up and falls along half a cosine to 0;
            `constant` is `peak` throughout.
        peak: largest step size.
        batch: number of the batch over the whole run, from 0.
        batches: batches of the whole run.
        warmup_ratio: share of them that the warm-up takes.
    """
    if schedule == "constant":
        return peak
    warm = int(warmup_ratio * batches)
    if batch < warm:
        return peak * (batch + 1) / warm
    return peak * 0.5 * (1 + math.cos(math.pi * (batch - warm) / max(1, batches - warm)))
