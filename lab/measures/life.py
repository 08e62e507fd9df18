"""A single problem's life: who got its votes, visit by visit.

With the run's votes every answer has an area of its own. A trace that did not keep them still
knows the label's share, the true answer's share and the unparseable ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal

import numpy as np
import pandas as pd

from lab.base.columns import ROUNDING, Floats, flags, floats, ints, require
from lab.base.errors import UserError
from lab.trace.trace import Trace

Kind = Literal["correct", "label", "answer", "other", "unparseable"]
TOP = 6
"""Answers that get an area of their own if nothing else is asked for."""
_NEEDED = (
    "replicate",
    "problem",
    "visit",
    "n_votes",
    "n_unparseable",
    "label",
    "match_rate",
    "label_accuracy",
    "label_correct",
    "flip_rate",
    "weight",
    "route",
    "flipped",
)


def problem_life(visits: pd.DataFrame, replicate: int, problem: int) -> pd.DataFrame:
    """The visits of one problem in their order, visit 0 first.

    Raises:
        UserError: a column is missing, or the problem was never visited.
    """
    require(visits, _NEEDED, "problem's life")
    own = _own(visits, replicate, problem)
    if own.empty:
        raise UserError(
            f"problem's life: replicate {replicate} has no visit of problem {problem}; choose "
            "a problem of the run"
        )
    return own.sort_values("visit").reset_index(drop=True)


def vote_areas(
    trace: Trace,
    replicate: int,
    problem: int,
    names: Mapping[int, str] | None = None,
    top: int = TOP,
) -> pd.DataFrame:
    """Shares of the votes that fill each visit, by answer where the trace kept its votes.

    Args:
        names: answer id to its text; if None those that the trace knows. Without a text the id is
            shown.
        top: answers that get an area of their own; the rest share one.

    Returns:
        One row per visit and area, areas from the bottom up: visit, area (name), kind (`correct`
        the true answer, `label` a wrong label, which without votes may be another answer from
        visit to visit, `answer`, `other` answers together, `unparseable`), share (0 to 1; the
        areas of a visit sum to 1).

    Raises:
        UserError: as `problem_life`.
    """
    life = problem_life(trace.visits, replicate, problem)
    votes = _own(trace.votes, replicate, problem)
    names = trace.answer_texts(replicate, problem) if names is None else names
    parts = [
        pd.DataFrame({"visit": ints(life, "visit"), "area": area, "kind": kind, "share": share})
        for area, kind, share in areas(life, votes, names, top)
    ]
    return pd.concat(parts, ignore_index=True)


def areas(
    life: pd.DataFrame, votes: pd.DataFrame, names: Mapping[int, str], top: int = TOP
) -> Iterator[tuple[str, Kind, Floats]]:
    """Name, kind and (visits,) share of each area, see `vote_areas`.

    Args:
        life: the visits of one problem in their order.
        votes: its votes; empty where the trace kept none.
        names: answer id to its text.
        top: answers that get an area of their own.
    """
    return _coarse(life) if votes.empty else _by_answer(life, votes, names, top)


def true_answer(life: pd.DataFrame, votes: pd.DataFrame | None = None) -> int | None:
    """Id of the true answer as far as a trace gives it away.

    Args:
        life: from `problem_life`.
        votes: of the same problem: where the truth was never the label, the one answer whose
            share is the label accuracy of every visit.
    """
    right = flags(life, "label_correct")
    if right.any():
        return int(ints(life, "label")[right][0])
    accuracy = floats(life, "label_accuracy")
    if votes is None or not np.isfinite(accuracy).all() or not (accuracy > 0).any():
        return None
    fitting = [
        int(answer)
        for answer in np.unique(ints(votes, "answer"))
        if (np.abs(_share(life, votes, int(answer)) - accuracy) < ROUNDING).all()
    ]
    return fitting[0] if len(fitting) == 1 else None


def _own(table: pd.DataFrame, replicate: int, problem: int) -> pd.DataFrame:
    chosen = (ints(table, "replicate") == replicate) & (ints(table, "problem") == problem)
    return table.take(np.flatnonzero(chosen))


def _share(life: pd.DataFrame, votes: pd.DataFrame, answer: int) -> Floats:
    """(visits,) share of the votes that an answer got."""
    own = votes.take(np.flatnonzero(ints(votes, "answer") == answer))
    visit = ints(life, "visit")
    counts = np.bincount(ints(own, "visit"), floats(own, "count"), 1 + visit.max())[visit]
    return counts / np.maximum(floats(life, "n_votes"), 1)


def _by_answer(
    life: pd.DataFrame, votes: pd.DataFrame, names: Mapping[int, str], top: int
) -> Iterator[tuple[str, Kind, Floats]]:
    truth = true_answer(life, votes)
    totals = np.bincount(ints(votes, "answer"), floats(votes, "count"))
    # The true answer always has an area; equal totals keep the order of the ids.
    answers = [int(answer) for answer in np.flatnonzero(totals)]
    ranked = sorted(answers, key=lambda answer: (answer != truth, -totals[answer]))
    labels = set(ints(life, "label").tolist())
    left = 1 - _unparseable(life)
    for answer in ranked[:top]:
        share = _share(life, votes, answer)
        left = left - share
        kind: Kind = "correct" if answer == truth else "label" if answer in labels else "answer"
        yield names.get(answer) or f"answer {answer}", kind, share
    yield "other answers", "other", np.maximum(left, 0.0)
    yield "unparseable", "unparseable", _unparseable(life)


def _coarse(life: pd.DataFrame) -> Iterator[tuple[str, Kind, Floats]]:
    """Label, true answer and rest; the true answer's share is 0 where it is not known."""
    right = flags(life, "label_correct")
    accuracy = np.nan_to_num(floats(life, "label_accuracy"))
    wrong = np.where(right, 0.0, floats(life, "match_rate"))
    unparseable = _unparseable(life)
    yield "true answer", "correct", accuracy
    yield "wrong label", "label", wrong
    yield "other answers", "other", np.maximum(1 - accuracy - wrong - unparseable, 0.0)
    yield "unparseable", "unparseable", unparseable


def _unparseable(life: pd.DataFrame) -> Floats:
    return floats(life, "n_unparseable") / np.maximum(floats(life, "n_votes"), 1)
