"""The answers with most votes of every problem at once, and which of them is the true one."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd

from lab.columns import ROUNDING, Bools, Floats, Ints, floats, ints


class Lives(NamedTuple):
    """The visits of one replicate, by problem and visit, visit 0 first."""

    problem: Ints
    """(N,) problem of each life."""
    start: Ints
    """(N,) first visit of each life."""
    length: Ints
    """(N,) visits of each life."""
    table: dict[str, np.ndarray]
    """Column of the trace to (visits,) values."""

    @property
    def life(self) -> Ints:
        """(visits,) life of each visit."""
        return np.repeat(np.arange(len(self.start)), self.length)


class TopVotes(NamedTuple):
    """The answers that get an area of their own."""

    answer: Ints
    """(top, N) answer ids, the true one first where it is known, then those with most votes; -1
    where a problem has fewer."""
    votes: Ints
    """(top, visits) votes of these answers."""
    correct: Bools
    """(N,) the first answer is the true one."""


class _Pairs(NamedTuple):
    """Distinct pairs of life and answer."""

    life: Ints
    answer: Ints
    row_pair: Ints
    """(vote rows,) pair of each row."""


def top_votes(lives: Lives, votes: pd.DataFrame, top: int) -> TopVotes:
    """As `lab.measures.life.vote_areas` chooses, for all problems of a replicate.

    Args:
        lives: all visits of the replicate.
        votes: rows of a trace's votes of the same replicate.
        top: answers per problem.
    """
    place = _places(lives, votes)
    votes, place = votes.take(np.flatnonzero(place >= 0)), place[place >= 0]
    count = floats(votes, "count")
    pairs = _pairs(lives.life[place], ints(votes, "answer"))
    is_true = _true(lives, pairs, place, count)
    total = np.bincount(pairs.row_pair, count, len(pairs.life))
    order = np.lexsort((pairs.answer, -total, ~is_true, pairs.life))
    rank = np.empty(len(order), np.int64)
    sorted_life = pairs.life[order]
    rank[order] = np.arange(len(order)) - np.searchsorted(sorted_life, sorted_life)
    return _filled(lives, pairs, rank, is_true, place, count, top)


def _filled(
    lives: Lives, pairs: _Pairs, rank: Ints, is_true: Bools, place: Ints, count: Floats, top: int
) -> TopVotes:
    answer = np.full((top, len(lives.start)), -1, np.int64)
    kept = rank < top
    answer[rank[kept], pairs.life[kept]] = pairs.answer[kept]
    counts = np.zeros((top, int(lives.length.sum())), np.int64)
    row_rank = rank[pairs.row_pair]
    shown = row_rank < top
    counts[row_rank[shown], place[shown]] = count[shown].astype(np.int64)
    correct = np.zeros(len(lives.start), bool)
    correct[pairs.life[is_true]] = True
    return TopVotes(answer, counts, correct)


def _places(lives: Lives, votes: pd.DataFrame) -> Ints:
    """(vote rows,) place of each row's visit among the lives; -1 for a visit that is not there."""
    width = 1 + max(lives.table["visit"].max(), ints(votes, "visit").max(initial=0))
    known = lives.problem[lives.life] * width + lives.table["visit"]
    wanted = ints(votes, "problem") * width + ints(votes, "visit")
    place = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
    return np.where(known[place] == wanted, place, -1)


def _pairs(life: Ints, answer: Ints) -> _Pairs:
    width = 1 + answer.max(initial=0)
    pair, found = pd.factorize(life * width + answer)
    found = np.asarray(found, np.int64)
    return _Pairs(found // width, found % width, np.asarray(pair, np.int64))


def _true(lives: Lives, pairs: _Pairs, place: Ints, count: Floats) -> Bools:
    """(pairs,) the answer is the true one, as `lab.measures.life.true_answer` finds it."""
    n_lives, life = len(lives.start), lives.life
    label_if_right = np.full(n_lives, -1, np.int64)
    right = np.flatnonzero(lives.table["label_correct"])[::-1]
    label_if_right[life[right]] = lives.table["label"][right]
    accuracy = lives.table["label_accuracy"]
    share = count / np.maximum(lives.table["n_votes"][place], 1)
    same = np.abs(share - accuracy[place]) < ROUNDING
    n_same = np.bincount(pairs.row_pair, same, len(pairs.life))
    n_rows = np.bincount(pairs.row_pair, minlength=len(pairs.life))
    # A visit without a vote for the answer has no row: its accuracy must be zero there.
    n_positive = np.bincount(life, accuracy > ROUNDING, n_lives)[pairs.life]
    known = np.bincount(life, ~np.isfinite(accuracy), n_lives)[pairs.life] == 0
    fits = known & (n_same == n_rows) & (n_rows == n_positive)
    alone = np.bincount(pairs.life, fits, n_lives)[pairs.life] == 1
    guessed = (label_if_right[pairs.life] < 0) & fits & alone
    known_P = label_if_right[pairs.life]
    return guessed | ((known_P == pairs.answer) & (known_P >= 0))
