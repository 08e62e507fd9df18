r"""From responses to answer ids: last balanced box, canonical string, equality, stable ids.

One equality serves votes, rewards and truth (`equality`). Nothing in a response is run: its text is
read into a tree (`tokens`, `reader`), and the values of formulas are computed from the tree within
limits that are counted (`values`).

    answer_ids = AnswerIds(truths, Equality())
    ids_V = answer_ids.ids(problem, responses)
"""

from __future__ import annotations

from real.answers.boxes import Extract, last_box, repeats
from real.answers.canonical import canonical
from real.answers.equality import Equality
from real.answers.ids import NO_TRUTH, UNPARSEABLE, UNSEEN, AnswerIds, classes

__all__ = [
    "NO_TRUTH",
    "UNPARSEABLE",
    "UNSEEN",
    "AnswerIds",
    "Equality",
    "Extract",
    "canonical",
    "classes",
    "last_box",
    "repeats",
]
