"""Minority-preserving sampling: candidates and their weight (docs/method.md, section 5)."""

from __future__ import annotations

from guard_core.arrays import Array, divide, floor_share, namespace
from guard_core.config import GuardConfig
from guard_core.state import GuardState, Rates
from guard_core.votes import Votes


def candidate_votes(votes: Votes, config: GuardConfig) -> Array:
    """(..., P, A) responses per answer that candidates are chosen by."""
    return votes.samples if config.minority_over == "samples" else votes.counts


def minority_candidates(votes: Votes, is_label: Array, config: GuardConfig) -> Array:
    """Answers other than the label with enough responses (paper equation 13).

    Args:
        votes: this visit's votes.
        is_label: (..., P, A) bool; the label's place.
        config: `minority_over` and `minority_share` are read.

    Returns:
        (..., P, A) bool.
    """
    least = max(1, floor_share(config.minority_share, votes.n_samples))
    return (candidate_votes(votes, config) >= least) & ~is_label


def protect(
    rows: GuardState, rates: Rates, minority: Array, config: GuardConfig
) -> tuple[Array, Array, Array]:
    """Turn protection on or off and set its strength (paper equation 14).

    Args:
        rows: the batch's rows, this visit recorded.
        rates: this visit's rates.
        minority: (..., P, A) bool from `minority_candidates`.
        config: `beta_max`, `beta_schedule`, `T_steady`, `tau_FR` and `empty_minority` are read.

    Returns:
        `mps_active` and `steady` of the rows, updated, and `beta` (..., P), 0 where it is off.
    """
    xp = namespace(rates.flip_rate)
    steady = xp.where(rates.contested, 0, rows.steady + 1)
    active = rates.contested | (rows.mps_active & (steady < config.T_steady))
    strength = rates.flip_rate
    if config.beta_schedule == "saturating":
        # Any flip rate above a threshold of 0 saturates; the floor only avoids 0 / 0.
        strength = divide(strength, max(config.tau_FR, 1e-6))
        strength = xp.where(strength > 1, 1.0, strength)
    beta = config.beta_max * strength * xp.astype(active, strength.dtype)
    if config.empty_minority == "plain":
        beta = beta * xp.astype(xp.any(minority, axis=-1), beta.dtype)
    return active, steady, beta
