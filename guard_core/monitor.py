"""Update of a problem's history at one visit, and its rates (docs/method.md, section 3)."""

from __future__ import annotations

from guard_core.arrays import Array, divide, namespace, ordered_sum
from guard_core.config import GuardConfig
from guard_core.state import GuardState, Rates


def advance(
    rows: GuardState, label: Array, match_rate: Array, memory: Array, config: GuardConfig
) -> tuple[GuardState, Rates]:
    """Record one visit, then derive the rates from the updated history.

    Args:
        rows: the batch's rows before the visit.
        label: (..., P) this visit's label.
        match_rate: (..., P) floats.
        memory: (..., P, A) the vote memory with this visit's votes.
        config: `W`, `flip_rate` and `tau_FR` are read.
    """
    xp = namespace(label)
    flipped = (label != rows.label) & (rows.label >= 0)
    flip = xp.astype(flipped, rows.flips.dtype)
    flips = xp.concat([rows.flips[..., 1:], flip[..., None]], axis=-1)
    match_rates = xp.concat([rows.match_rates[..., 1:], match_rate[..., None]], axis=-1)
    visits = rows.visits + 1
    if config.flip_rate == "instant":
        flip_rate = xp.astype(flip, match_rate.dtype)
    else:
        flip_rate = divide(xp.astype(ordered_sum(flips), match_rate.dtype), config.W)
    seen = xp.astype(xp.where(visits > config.W, config.W, visits), match_rate.dtype)
    contested = flip_rate > config.tau_FR
    rows = GuardState(
        label=label,
        visits=visits,
        flips=flips,
        match_rates=match_rates,
        had_competition=rows.had_competition | contested,
        c2_fired=rows.c2_fired,
        mps_active=rows.mps_active,
        steady=rows.steady,
        memory=memory,
    )
    return rows, Rates(flipped, match_rate, flip_rate, contested, ordered_sum(match_rates) / seen)
