"""Risk-conditioned sparse updating: problems that are skipped (docs/method.md, section 6)."""

from __future__ import annotations

from guard_core.arrays import Array, floor_share, namespace
from guard_core.config import GuardConfig
from guard_core.votes import Draws


def at_high_risk(
    had_competition: Array, visits: Array, mean_match_rate: Array, config: GuardConfig
) -> Array:
    """Problems that were contested once and are confident again (paper section 3.5).

    Args:
        had_competition: (..., P) of `GuardState`.
        visits: (..., P) of `GuardState`, this one included.
        mean_match_rate: (..., P) of `Rates`.
        config: `W` and `theta_MR` are read.

    Returns:
        (..., P) bool.
    """
    return had_competition & (visits >= config.W) & (mean_match_rate > config.theta_MR)


def choose_skips(high_risk: Array, draws: Draws, config: GuardConfig) -> Array:
    """Leave out high-risk problems at random, up to the batch's cap.

    Args:
        high_risk: (..., P) bool.
        draws: `skip` decides who is a candidate, `pick` who of them fits under the cap.
        config: `p_skip`, `skip_share`, `skip_cap` and `skip_order` are read.

    Returns:
        (..., P) bool. Equal `pick` draws are settled in batch order.
    """
    xp = namespace(high_risk)
    cap = skip_cap(high_risk.shape[-1], config)
    candidate = high_risk & (draws.skip < config.p_skip)
    if cap == 0:
        return xp.zeros_like(candidate)
    if config.skip_order == "first":
        return candidate & (_running(xp, candidate) <= cap)
    # Draws lie below 1, so 2 sends everybody else behind the candidates.
    key = xp.where(candidate, draws.pick, 2.0)
    last = xp.sort(key, axis=-1)[..., cap - 1 : cap]
    below = candidate & (key < last)
    level = candidate & (key == last)
    room = cap - xp.sum(xp.astype(below, xp.int64), axis=-1, keepdims=True)
    return below | (level & (_running(xp, level) <= room))


def skip_cap(n_problems: int, config: GuardConfig) -> int:
    """Largest number of a batch's problems that may be skipped."""
    cap = floor_share(config.skip_share, n_problems)
    return max(1, cap) if config.skip_cap == "at_least_one" else cap


def _running(xp: object, flags: Array) -> Array:
    return xp.cumulative_sum(xp.astype(flags, xp.int64), axis=-1)  # type: ignore[attr-defined]
