r"""From responses to answer ids: last balanced box, canonical string, stable ids per problem.

One equality serves votes, rewards and truth: two answers are the same if and only if their
canonical strings are. Nothing is evaluated here, so nothing in a response can run or hang.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TypeGuard

import numpy as np

from lab.errors import UserError
from real.canonical import canonical

__all__ = ["NO_TRUTH", "UNPARSEABLE", "UNSEEN", "AnswerBook", "canonical", "classes", "last_box"]

UNPARSEABLE = -1
"""Answer id of a response without a balanced box, or with an empty or over-long one."""
NO_TRUTH = -1
"""`truth_id` of a problem without a usable reference answer: compare nothing with it."""
UNSEEN = -2
"""`AnswerBook.truth_id` of a reference answer that no response has given yet; equals no id."""

# One or two backslashes: models sometimes escape their LaTeX once more. Fixed repeat counts keep
# every attempt at a match constant in time, hence the whole scan linear.
_BRACES = re.compile(r"\\{1,2}(?:boxed|fbox)\s{0,8}\{|\\[\\{}]|[{}]")


def last_box(text: str) -> str | None:
    r"""Content of the last balanced `\boxed{...}` or `\fbox{...}`.

    "Last" is the box that opens last among those that close, so of nested boxes it is the inner
    one. Boxes that never close and escaped braces (`\{`) are passed over. Linear in the text.

    Returns:
        What stands between the braces, perhaps empty; None without a balanced box.
    """
    if "box" not in text:
        return None
    best, end = -1, -1
    open_braces: list[int] = []  # where a box's content starts; -1 for an ordinary brace
    for match in _BRACES.finditer(text):
        token = match.group()
        if token == "{":
            open_braces.append(-1)
        elif token == "}":
            start = open_braces.pop() if open_braces else -1
            if start > best:
                best, end = start, match.start()
        elif len(token) > 2:
            open_braces.append(match.end())
    return None if best < 0 else text[best:end]


def classes(responses: Sequence[str], truth: str | None = None) -> tuple[np.ndarray, int]:
    r"""One problem's responses to answer ids, the truth by the same equality.

    Args:
        responses: whole response texts; the answer is the last balanced box.
        truth: the reference answer, bare or in a box.

    Returns:
        ids: int64 (V,), 0, 1, ... in order of first appearance, `UNPARSEABLE` (-1) without answer.
        truth_id: the truth's id; where no response gives it, the next free id, so that it equals
            no response's; `NO_TRUTH` (-1) without a truth.
    """
    book = AnswerBook([truth])
    ids = book.ids(0, responses)
    truth_id = book.truth_id(0)
    return ids, (book.n_answers if truth_id == UNSEEN else truth_id)


class AnswerBook:
    """Answer ids of every problem, stable over a whole run.

    Ids follow the order of first appearance, so an id says nothing about which answer is true (a
    truth that always had id 0 would bias the tie break "first"). They only grow: a problem has as
    many ids as its responses gave distinct answers so far.
    """

    def __init__(self, truths: Sequence[str | None]) -> None:
        """Start with no answers.

        Args:
            truths: (N,) reference answers, bare or boxed; None where there is none.
        """
        self._truths = [None if truth is None else _read_truth(truth) for truth in truths]
        self._ids: list[dict[str, int]] = [{} for _ in truths]

    def __len__(self) -> int:
        """Number of problems N."""
        return len(self._ids)

    @property
    def n_answers(self) -> int:
        """Largest number of answers of any problem so far: the A of `counts_PA`."""
        return max(map(len, self._ids), default=0)

    def ids(self, problem: int, responses: Sequence[str]) -> np.ndarray:
        """Ids of one problem's responses, int64 (V,); -1 unparseable. New answers get new ids."""
        known = self._ids[problem]
        ids_V = np.full(len(responses), UNPARSEABLE, dtype=np.int64)
        for vote, response in enumerate(responses):
            box = last_box(response)
            answer = "" if box is None else canonical(box)
            if answer:
                ids_V[vote] = known.setdefault(answer, len(known))
        return ids_V

    def has_truth(self, problem: int) -> bool:
        """Whether the problem has a reference answer that responses can be compared with."""
        return bool(self._truths[problem])

    def truth_id(self, problem: int) -> int:
        """Id of the reference answer.

        Returns:
            The id; `UNSEEN` (-2) while no response has given it; `NO_TRUTH` (-1) without one.
            Check `has_truth` before comparing: -1 is also the id of unparseable responses.
        """
        truth = self._truths[problem]
        return self._ids[problem].get(truth, UNSEEN) if truth else NO_TRUTH

    def text(self, problem: int, answer: int) -> str:
        """Canonical text of an answer id.

        Raises:
            IndexError: the problem has no answer of that id.
        """
        if not 0 <= answer < len(self._ids[problem]):
            raise IndexError(f"problem {problem} has no answer id {answer}")
        return list(self._ids[problem])[answer]

    def to_values(self) -> dict[str, object]:
        """Everything as plain JSON types, for checkpoints."""
        return {"truths": list(self._truths), "answers": [list(known) for known in self._ids]}

    @classmethod
    def from_values(cls, values: Mapping[str, object]) -> AnswerBook:
        """The book that `to_values` wrote.

        Raises:
            UserError: the values are not of that form.
        """
        truths, answers = values.get("truths"), values.get("answers")
        if not _is_truths(truths) or not _is_answers(answers) or len(truths) != len(answers):
            raise UserError("answer book: malformed values, use an undamaged checkpoint")
        book = cls([None] * len(truths))
        book._truths = list(truths)
        book._ids = [{text: answer for answer, text in enumerate(known)} for known in answers]
        return book


def _read_truth(truth: str) -> str:
    box = last_box(truth)
    return canonical(truth if box is None else box)


def _is_truths(values: object) -> TypeGuard[list[str | None]]:
    return isinstance(values, list) and all(v is None or isinstance(v, str) for v in values)


def _is_answers(values: object) -> TypeGuard[list[list[str]]]:
    return isinstance(values, list) and all(
        isinstance(known, list)
        and all(isinstance(text, str) for text in known)
        and len(set(known)) == len(known)
        for known in values
    )
