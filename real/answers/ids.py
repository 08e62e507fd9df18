"""Answer ids of every problem, stable over a whole run."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from real.answers.boxes import Extract, last_box, last_number
from real.answers.canonical import MAX_LENGTH, canonical
from real.answers.equality import Equality

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


class AnswerIds:
    """Answer ids of every problem.

    Ids follow the order of first appearance, so an id says nothing about which answer is true (a
    truth that always had id 0 would bias the tie break "first"). They only grow, and never change
    their meaning. The truth has no say in which responses are merged.
    """

    def __init__(self, truths: Sequence[str | None], equality: Equality | None = None) -> None:
        """Start with no answers to problems with (N,) reference answers, bare or boxed, or None.

        Raises:
            TypeError: a reference answer is no text.
        """
        for truth in truths:
            if not isinstance(truth, str | None):
                raise TypeError(f"truths: texts or None, not {truth!r}; give str(...) of a number")
        self._equality = equality
        self._key: Callable[[str], str] = str if equality is None else equality.key
        self._truths = [
            None if t is None else "" if unusable(t) else canonical(_inside(t)) for t in truths
        ]
        self._texts: list[list[str]] = [[] for _ in truths]
        """Canonical string of every id, as it was written first."""
        self._ids: list[dict[str, int]] = [{} for _ in truths]
        """Of the equality's keys; of canonical strings without an equality."""

    def __len__(self) -> int:
        return len(self._truths)

    @property
    def n_answers(self) -> int:
        """Largest number of answers of any problem so far: the A of `counts_PA`."""
        return max(map(len, self._texts), default=0)

    def n_answers_of(self, problem: int) -> int:
        """Number of answers of one problem so far; their ids are 0 to this, exclusive."""
        return len(self._texts[problem])

    def ids(
        self, problem: int, responses: Sequence[str], extract: Extract = "strict"
    ) -> np.ndarray:
        """Ids of one problem's responses, int64 (V,); -1 unparseable. New answers get new ids.

        Raises:
            TypeError: the responses are one text.
        """
        if isinstance(responses, str):
            raise TypeError("responses: several texts of one problem, not one; give [text]")
        texts, known = self._texts[problem], self._ids[problem]
        ids_V = np.full(len(responses), UNPARSEABLE, dtype=np.int64)
        for vote, response in enumerate(responses):
            text = last_box(response)
            if text is None and extract == "flexible":
                text = last_number(response)
            if answer := canonical(text or ""):
                ids_V[vote] = known.setdefault(self._key(answer), len(texts))
                if ids_V[vote] == len(texts):  # a new one
                    texts.append(answer)
        return ids_V

    def has_truth(self, problem: int) -> bool:
        """True if the problem has a reference answer that responses can be compared with."""
        return bool(self._truths[problem])

    def truth_id(self, problem: int) -> int:
        """Id of the reference answer: `UNSEEN` (-2) until a response gives it, `NO_TRUTH` (-1).

        Check `has_truth` before comparing: -1 is also the id of unparseable responses.
        """
        truth = self._truths[problem]
        return self._ids[problem].get(self._key(truth), UNSEEN) if truth else NO_TRUTH

    def text(self, problem: int, answer: int) -> str:
        """Canonical text of an answer id, at least 0, as it was written first."""
        return self._texts[problem][answer]

    def to_values(self) -> dict[str, object]:
        """Everything as plain JSON types, for checkpoints."""
        return {
            "truths": self._truths,
            "classes": [[{"writings": [text]} for text in texts] for texts in self._texts],
            "given_up": [] if self._equality is None else self._equality.given_up,
        }

    @classmethod
    def from_values(cls, values: Mapping[str, Any], equality: Equality | None = None) -> AnswerIds:
        """The answer ids that `to_values` wrote; the equality takes over what it gave up."""
        made = cls(values["truths"], equality)
        for texts, known, answers in zip(made._texts, made._ids, values["classes"], strict=True):
            for i, writings in enumerate(answer["writings"] for answer in answers):
                texts.append(writings[0])
                for text in writings:  # the rules may write an earlier version's otherwise
                    known.setdefault(made._key(canonical(text)), i)
        if equality is not None:
            equality.restore([text for text in values["given_up"] if isinstance(text, str)])
        return made


MAX_WORDS = 8
"""Of a reference answer outside of a box; a longer text is a solution, which no box repeats."""
_WORD = re.compile(r"(?<![\\\w])[^\W\d_]{2,}")


def unusable(reference: str) -> str:
    """Why no response can equal a reference answer, in words; empty if one can."""
    text = _inside(reference)
    if len(text) > MAX_LENGTH:
        return f"longer than {MAX_LENGTH:,} characters"
    if len(_WORD.findall(text)) > MAX_WORDS:
        return f"prose of more than {MAX_WORDS} words"
    answer = canonical(text)
    boxed = last_box(rf"\boxed{{{answer}}}")
    if not answer or boxed == "":
        return "empty"
    return "" if boxed and canonical(boxed) == answer else "nothing that a box can hold"


def _inside(reference: str) -> str:
    box = last_box(reference)
    return reference if box is None else box
