r"""From responses to answer ids: last balanced box, canonical string, equality, stable ids.

One equality serves votes, rewards and truth (`equality`). Nothing in a response is evaluated in
this process: formulas that need it go to math-verify in a process that can be killed.

    answer_ids = AnswerIds(truths, Equality())
    ids_V = answer_ids.ids(problem, responses)
"""

from __future__ import annotations

from real.answers.canonical import canonical, last_box
from real.answers.equality import Equality
from real.answers.ids import NO_TRUTH, UNPARSEABLE, UNSEEN, AnswerIds, Extract, classes

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
]
