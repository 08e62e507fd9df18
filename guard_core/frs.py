"""Flip-rate-aware reward scaling: the weight of a problem's loss (docs/method.md, section 4)."""

from __future__ import annotations

from guard_core.arrays import Array, namespace
from guard_core.config import GuardConfig
from guard_core.state import GuardState, Rates


def frs_weight(rows: GuardState, rates: Rates, config: GuardConfig) -> tuple[Array, Array]:
    """Weight every problem by how far its label can be trusted (paper equations 6-11).

    Args:
        rows: the batch's rows, this visit recorded.
        rates: this visit's rates.
        config: `l1`, `l2`, `w_min`, `tau_MR`, `tau_FR` and `W` are read.

    Returns:
        Weights (..., P), and `c2_fired` (..., P) with this visit counted.
    """
    xp = namespace(rates.flip_rate)
    real = rates.flip_rate.dtype
    c1 = rates.contested & (rates.match_rate > config.tau_MR)
    c2 = ~rows.had_competition & (rows.visits >= config.W)
    c2 = c2 & (rates.mean_match_rate > config.tau_MR) & (rows.c2_fired < config.W)
    weight = 1 - config.l1 * rates.flip_rate
    weight = weight * (1 - config.l2 * xp.astype(c1, real))
    weight = weight * (1 - config.l2 / 2 * xp.astype(c2, real))
    weight = xp.where(weight < config.w_min, config.w_min, weight)
    return weight, rows.c2_fired + xp.astype(c2, rows.c2_fired.dtype)
