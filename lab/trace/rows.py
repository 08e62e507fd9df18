"""The columns of a visit, filled in one place for both worlds."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from guard_core import Decision, Votes
from lab.trace.schema import VISITS

DECIDED = {
    "label": "label",
    "flipped": "flipped",
    "tie": "tied",
    "match_rate": "match_rate",
    "flip_rate": "flip_rate",
    "mean_match_rate": "mean_match_rate",
    "had_competition": "had_competition",
    "route": "route",
    "weight": "weight",
    "beta": "beta",
    "skipped": "skip",
}
"""Column of the visits to the field of `guard_core.Decision` that it holds."""

BEFORE_TRAINING: dict[str, Any] = {
    "flipped": False,
    "flip_rate": 0.0,
    "mean_match_rate": np.nan,
    "had_competition": False,
    "route": 0,
    "weight": 1.0,
    "beta": 0.0,
    "n_minority": 0,
    "skipped": False,
}
"""Values of visit 0, at which the guard takes no decision yet."""

COMPETITIVE_SHARE = 0.25
"""The true answer is competitive while it holds at least this share of the votes."""


def record_dtype(*more: tuple[str, type[np.generic]]) -> np.dtype[np.void]:
    """Return a record type for one visit: the guard's columns, in the schema's dtypes.

    The fields are the extra ones, `n_unparseable`, `n_minority` and the columns of `DECIDED`,
    largest first, so that records are aligned without gaps.

    Args:
        more: name and type of further fields.
    """
    own = {"n_unparseable", "n_minority", *DECIDED}
    fields = [*more, *((c.name, np.dtype(c.dtype)) for c in VISITS if c.name in own)]
    fields.sort(key=lambda field: -np.dtype(field[1]).itemsize)
    return np.dtype(fields, align=True)


def visit_columns(
    decision: Decision,
    votes: Votes,
    truth: ArrayLike,
    known: ArrayLike = True,
    *,
    before_training: bool = False,
) -> dict[str, Any]:
    """Return the columns of visits that follow from the votes and the guard's decision.

    Those that number the visit (replicate, step, epoch, visit, problem) are left to the caller.

    Args:
        decision: of (..., P) problems, as NumPy arrays.
        votes: counts (..., P, A).
        truth: (..., P) ids of the true answers; negative where no response has given it.
        known: (..., P) bool; False where the problem has no true answer.
        before_training: the votes are those of visit 0.

    Returns:
        Column name to an array (..., P) or to one value for all rows.
    """
    counts, truth_P = np.asarray(votes.counts), np.asarray(truth)
    label_P = np.asarray(decision.label)
    given_P = truth_P >= 0
    at_truth_P = np.take_along_axis(counts, np.maximum(truth_P, 0)[..., None], axis=-1)[..., 0]
    return {
        "n_votes": votes.n_votes,
        "n_unparseable": votes.n_votes - counts.sum(axis=-1),
        "n_minority": np.asarray(decision.minority).sum(axis=-1),
        **{name: getattr(decision, field) for name, field in DECIDED.items()},
        **(BEFORE_TRAINING if before_training else {}),
        **truth_columns(
            np.where(given_P, at_truth_P, 0), votes.n_votes, given_P & (label_P == truth_P), known
        ),
    }


def truth_columns(
    n_right: ArrayLike, n_votes: int, label_correct: ArrayLike, known: ArrayLike = True
) -> dict[str, NDArray[np.generic]]:
    """Return the columns that need the true answer: NaN and False where none is known.

    Args:
        n_right: (...) votes for the true answer.
        n_votes: V.
        label_correct: (...) bool; the label is the true answer.
        known: (...) bool; False where the problem has no true answer.
    """
    share = np.asarray(n_right) / n_votes
    return {
        "label_accuracy": np.where(known, share, np.nan),
        "label_correct": np.logical_and(known, label_correct),
        "correct_competitive": np.logical_and(known, share >= COMPETITIVE_SHARE),
    }
