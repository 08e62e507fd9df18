"""Answer ids of every problem, stable over a whole run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec
import numpy as np

from real.answers.canonical import canonical, last_box, last_number
from real.answers.equality import Equality, ParseBudget

Extract = Literal["strict", "flexible"]
UNPARSEABLE = -1
"""Answer id of a response in which no answer is found, or an empty or over-long one."""
NO_TRUTH = -1
"""`truth_id` of a problem without a usable reference answer: compare nothing with it."""
UNSEEN = -2
"""`AnswerIds.truth_id` of a reference answer that no response has given yet; equals no id."""


def classes(
    responses: Sequence[str], truth: str | None = None, equality: Equality | None = None
) -> tuple[np.ndarray, int]:
    """Return answer ids of one problem's responses, and the truth's id by the same equality.

    Ids are int64 (V,), 0, 1, ... in order of first appearance, `UNPARSEABLE` (-1) without answer.
    Where no response gives the truth its id is the next free one, so that it equals no response's;
    `NO_TRUTH` (-1) without a truth. Without an equality canonical strings are compared.
    """
    answer_ids = AnswerIds([truth], equality)
    ids = answer_ids.ids(0, responses)
    truth_id = answer_ids.truth_id(0)
    return ids, (answer_ids.n_answers if truth_id == UNSEEN else truth_id)


class _Class(msgspec.Struct, forbid_unknown_fields=True):
    writings: list[str]
    """In order of appearance; later ones are compared with the first alone."""
    key: str
    """The equality's; empty where strings are compared."""


@dataclass(slots=True)
class _Problem:
    truth: str | None
    """Canonical reference answer; empty if it is unusable, None if there is none."""
    classes: list[_Class] = field(default_factory=list)
    truth_id: int = UNSEEN
    n_compared: int = 0
    ids: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        self.ids = {text: i for i, one in enumerate(self.classes) for text in one.writings}


class AnswerIds:
    """Answer ids of every problem.

    Ids follow the order of first appearance, so an id says nothing about which answer is true (a
    truth that always had id 0 would bias the tie break "first"). They only grow, and never change
    their meaning. A new writing joins the first id, in id order, whose first writing it equals, or
    opens a new one; so equality within a problem is an equivalence whatever the checker says.

    The truth is compared with the first writings in id order too, and the first that equals it is
    the true answer. It has no say in which responses are merged: without it the ids are the same.
    """

    def __init__(self, truths: Sequence[str | None], equality: Equality | None = None) -> None:
        """Start with no answers to problems with (N,) reference answers, bare or boxed, or None."""
        self._problems = [_Problem(None if t is None else _read_truth(t)) for t in truths]
        self._equality = equality

    def __len__(self) -> int:
        return len(self._problems)

    @property
    def n_answers(self) -> int:
        """Largest number of answers of any problem so far: the A of `counts_PA`."""
        return max(map(self.n_answers_of, range(len(self))), default=0)

    def n_answers_of(self, problem: int) -> int:
        """Number of answers of one problem so far; their ids are 0 to this, exclusive."""
        return len(self._problems[problem].classes)

    def ids(
        self, problem: int, responses: Sequence[str], extract: Extract = "strict"
    ) -> np.ndarray:
        """Ids of one problem's responses, int64 (V,); -1 unparseable. New answers get new ids."""
        known = self._problems[problem]
        budget = None if self._equality is None else self._equality.budget()
        ids_V = np.full(len(responses), UNPARSEABLE, dtype=np.int64)
        for vote, response in enumerate(responses):
            found = last_box(response)
            if found is None and extract == "flexible":
                found = last_number(response)
            answer = "" if found is None else canonical(found)
            if answer:
                seen = known.ids.get(answer)
                ids_V[vote] = self._new_writing(known, answer, budget) if seen is None else seen
        return ids_V

    def has_truth(self, problem: int) -> bool:
        """True if the problem has a reference answer that responses can be compared with."""
        return bool(self._problems[problem].truth)

    def truth_id(self, problem: int) -> int:
        """Id of the reference answer: `UNSEEN` (-2) until a response gives it, `NO_TRUTH` (-1).

        Check `has_truth` before comparing: -1 is also the id of unparseable responses.
        """
        known = self._problems[problem]
        if not known.truth:
            return NO_TRUTH
        if known.truth_id == UNSEEN and known.n_compared < len(known.classes):
            equal = known.ids.get(known.truth)
            if equal is None and self._equality is not None:
                equal, _ = self._match(known, known.truth, self._equality.budget())
            known.truth_id = UNSEEN if equal is None else equal
            known.n_compared = len(known.classes)
        return known.truth_id

    def text(self, problem: int, answer: int) -> str:
        """Canonical text of an answer id, at least 0, as it was written first."""
        return self._problems[problem].classes[answer].writings[0]

    def to_values(self) -> dict[str, object]:
        """Everything as plain JSON types, for checkpoints."""
        given_up = {"given_up": [], "postponed": 0}
        return {
            "truths": [known.truth for known in self._problems],
            "classes": [msgspec.to_builtins(known.classes) for known in self._problems],
            **(given_up if self._equality is None else self._equality.to_values()),
        }

    @classmethod
    def from_values(cls, values: Mapping[str, Any], equality: Equality | None = None) -> AnswerIds:
        """The answer ids that `to_values` wrote; the equality takes over what it gave up."""
        made = cls([], equality)
        classes = msgspec.convert(values["classes"], list[list[_Class]])
        made._problems = list(map(_Problem, values["truths"], classes))
        if equality is not None:
            equality.restore(values["given_up"], values["postponed"])
        return made

    def _new_writing(self, known: _Problem, answer: str, budget: ParseBudget | None) -> int:
        equal, key = self._match(known, answer, budget)
        if equal is None:
            equal = len(known.classes)
            known.classes.append(_Class([], key))
        known.classes[equal].writings.append(answer)
        known.ids[answer] = equal
        return equal

    def _match(
        self, known: _Problem, answer: str, budget: ParseBudget | None
    ) -> tuple[int | None, str]:
        """The first id whose first writing equals the answer, and the answer's key."""
        if self._equality is None or budget is None:
            return None, ""
        key = self._equality.key(answer, budget)
        for i, one in enumerate(known.classes):
            if one.key == key and self._equality.same(one.writings[0], answer, budget):
                return i, key
        return None, key


def _read_truth(truth: str) -> str:
    box = last_box(truth)
    return canonical(truth if box is None else box)
