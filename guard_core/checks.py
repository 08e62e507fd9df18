"""Refusals of states, batches and problems that do not belong together."""

from __future__ import annotations

import math
from typing import Any

from guard_core.config import GuardConfig
from guard_core.votes import Array, Votes

_WIDE = ("flips", "match_rates", "memory")
"""Arrays of a state that have one more axis."""


def check_state(state: Any, config: GuardConfig) -> None:
    """Refuse a `GuardState` that cannot come from a guard of this config.

    Of settings that leave no trace in a state, such as thresholds, nothing can be said.

    Raises:
        ValueError: shapes do not fit, or the state is one of other settings.
    """
    shape = state.label.shape
    for name in type(state).__slots__:
        sizes = getattr(state, name).shape
        if (sizes[:-1] if name in _WIDE else sizes) != shape:
            raise ValueError(f"state: {name} of shape {sizes} does not fit label of shape {shape}")
    W, widths = config.rates.W, (state.flips.shape[-1], state.match_rates.shape[-1])
    remembers, remembered = config.labels.label_from == "memory", state.memory.shape[-1] > 0
    begun, seen = state.visits > 0, state.mps_active | (state.steady > 0)
    labelled = (begun | (state.label >= 0)).any()
    faults = {
        f"W = {W}, the state keeps {widths[0]} visits": widths != (W, W),
        "no vote memory, the state has one": remembered and not remembers,
        "a vote memory, the state has none": remembers and not remembered and labelled,
        "no MPS, the state has its marks": config.mps is None and seen.any(),
        "MPS, the state has visits without it": config.mps is not None and (begun > seen).any(),
        "no FRS, the state has its marks": config.frs is None and state.c2_fired.any(),
    }
    if wrong := [fault for fault, is_wrong in faults.items() if is_wrong]:
        raise ValueError(f"state: was made by other settings; this guard has {wrong[0]}")


def check_batch(shape: tuple[int, ...], votes: Votes, scores: Any, **draws: Array) -> None:
    """Refuse votes, draws and scores that are not those of a state's rows, (..., P) = `shape`.

    Raises:
        ValueError: a shape differs; the message has both. Or a score is negative or not finite.
    """
    given = {"votes.counts": votes.counts.shape[:-1]}
    given |= {f"draws.{name}": array.shape for name, array in draws.items()}
    if scores is not None:
        given["scores"] = scores.shape[:-1]
    for name, sizes in given.items():
        if sizes != shape:
            raise ValueError(
                f"{name}: for problems of shape {sizes}, and the state has rows of shape {shape}; "
                "give state.take(problems) and one row for each of these problems"
            )
    if scores is not None and scores.size and not 0 <= scores.min() <= scores.max() < math.inf:
        raise ValueError("scores: must be at least 0 and finite")


def check_problems(problems: Array, shape: tuple[int, ...]) -> None:
    """Refuse numbers of problems that a state of this shape does not hold."""
    if problems.ndim == 0 or problems.shape[:-1] not in ((), shape[:-1]):
        raise ValueError(
            f"problems: shape {problems.shape} does not fit a state of shape {shape}; "
            "give (P,), or (..., P) with all its leading axes"
        )
    if problems.size and not (problems.min() >= 0 and problems.max() < shape[-1]):
        raise ValueError(
            f"problems: {problems.min()} to {problems.max()} must lie in 0..{shape[-1] - 1}"
        )


def check_rows(whole: Any, rows: Any, shape: tuple[int, ...]) -> None:
    """Refuse rows of another batch or of other settings than those of the state they go into."""
    if rows.label.shape != shape:
        raise ValueError(
            f"state: rows of shape {rows.label.shape} for problems of shape {shape}; "
            "give the rows that step returned for these problems"
        )
    for name in ("flips", "match_rates"):
        old, new = getattr(whole, name).shape[-1], getattr(rows, name).shape[-1]
        if old != new:
            raise ValueError(f"state: rows with {new} visits of {name}, and the state keeps {old}")
    widths = whole.memory.shape[-1], rows.memory.shape[-1]
    if 0 in widths and any(widths) and (widths[0] > 0 or whole.visits.any()):
        raise ValueError(
            f"state: rows with a memory of {widths[1]} answers, and the state's has {widths[0]}; "
            "they were made by other settings"
        )
