"""The votes of a trace that keeps them: each answer's count, and its text."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from real.answers import AnswerIds

Ints = NDArray[np.int64]
Rows = dict[str, Any]


class Visited(NamedTuple):
    """Votes of some problems, as the trace keeps them."""

    problems_P: Ints
    """(P,) problem indices."""
    answers_PV: Ints
    """(P, V) answer ids, -1 unparseable."""
    columns: Rows
    """Columns of the trace's visits, without step and epoch."""


class VoteTables(NamedTuple):
    """Rows that a batch's votes add to the trace, without step and epoch."""

    votes: Rows
    """Columns of the trace's votes, problem by problem in the batch's order, ids ascending."""
    answers: Rows
    """Columns of the trace's answers: the texts of those that were given for the first time."""


class VoteRows:
    """Counts the votes of every visit, and knows the answers whose texts were written before."""

    def __init__(self, answer_ids: AnswerIds) -> None:
        """Take every answer of `answer_ids` for written down."""
        self._answer_ids = answer_ids
        self._n_written_N = np.array(
            [answer_ids.n_answers_of(p) for p in range(len(answer_ids))], np.int64
        )

    def count(self, problems_P: Ints, answers_PV: Ints, visit: int | Ints) -> VoteTables:
        """The rows of one visit of a batch's problems.

        Args:
            problems_P: (P,) problem indices.
            answers_PV: (P, V) answer ids of `answer_ids`, -1 unparseable, which gets no row.
            visit: number of this visit; (P,) where it differs between the problems.
        """
        votes = vote_rows(problems_P, answers_PV, visit)
        row, problem, answer = self._new(problems_P)
        texts = [
            self._answer_ids.text(int(p), int(a)) for p, a in zip(problem, answer, strict=True)
        ]
        names = {"problem": problem, "answer": answer, "text": np.array(texts, np.str_)}
        return VoteTables(votes, {"replicate": 0, "visit": _at(row, visit), **names})

    def _new(self, problems_P: Ints) -> tuple[Ints, Ints, Ints]:
        """Row, problem and id of the answers that were not written yet, second votes' among them.

        Ids follow the order of first appearance, so those beyond the last written one are new.
        """
        new_answers = [
            (row, problem, answer)
            for row, problem in enumerate(problems_P.tolist())
            for answer in range(self._n_written_N[problem], self._answer_ids.n_answers_of(problem))
        ]
        row, problem, answer = np.array(new_answers, np.int64).reshape(-1, 3).T
        np.maximum.at(self._n_written_N, problem, answer + 1)
        return row, problem, answer


def vote_rows(problems_P: Ints, answers_PV: Ints, visit: int | Ints) -> Rows:
    """Columns of the trace's votes: one row per problem and answer with at least one of V votes."""
    width = 1 + int(answers_PV.max(initial=0))
    key_PV = np.arange(len(problems_P))[:, None] * width + answers_PV
    voted, count = np.unique(key_PV[answers_PV >= 0], return_counts=True)
    row, answer = np.divmod(voted, width)
    names = {"problem": problems_P[row], "answer": answer, "count": count}
    return {"replicate": 0, "visit": _at(row, visit), **names}


def _at(row: Ints, visit: int | Ints) -> int | Ints:
    """The visit of each row, where it differs between the problems."""
    return visit if isinstance(visit, int) else visit[row]
